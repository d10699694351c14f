"""A feed adapter without I/O: events in, instructions out, time as an argument.

adapter.py is a complete adapter. lines/ merges several lines into one source stream, sync/ keeps the adapters of a feed
synchronised, service/ serves subscribers over TCP, play/ plays an exchange. Read events.py first, then adapter.py.
"""
