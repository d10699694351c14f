"""Source streams: several lines of one feed made one, recorded feeds and SoupBinTCP as if they were lines.

Cores: arbiter.py, challenger.py; on real sockets: driver.py, soup_client.py; from files: sources.py, tape.py.
"""
