"""How feeds frame and number their messages: MoldUDP64, SoupBinTCP, IEX-TP, files, captures, text."""
