"""Serve a journal over TCP: the public name of live/server.py."""

from penstock.journal.live.server import JournalServer

__all__ = ["JournalServer"]
