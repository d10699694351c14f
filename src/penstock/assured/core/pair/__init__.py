"""The core of a pair of message routers. Read pairing.py first, then pair.py."""
