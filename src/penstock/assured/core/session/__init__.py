"""The core of a client of message routers. Read events.py first, then session.py."""
