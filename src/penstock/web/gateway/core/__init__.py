"""Requests of a browser, the replies, and its outbox, without I/O."""
