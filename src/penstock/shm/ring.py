"""The critical ring: every event in order, or an error that says where the loss begins."""

from penstock.shm._ring import RingWriter
from penstock.shm._ring_reader import RingReader

__all__ = ["RingReader", "RingWriter"]
