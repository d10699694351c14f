"""The core of a pair of message routers. Read protocol.py first, then pair.py."""
