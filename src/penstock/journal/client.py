"""Follow a journal over TCP: the public names of live/client.py."""

from penstock.journal.live.client import follow_remote, follow_remote_batches, measure_remote

__all__ = ["follow_remote", "follow_remote_batches", "measure_remote"]
