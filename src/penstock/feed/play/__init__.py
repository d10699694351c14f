"""An exchange, played: made-up or recorded days over MoldUDP64 and SoupBinTCP, at any speed.

player.py and soup_player.py send; generator.py makes a day up.
"""
