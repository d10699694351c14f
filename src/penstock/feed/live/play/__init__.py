"""Players of a recorded or generated day: MoldUDP64, SoupBinTCP, and a player as a node."""
