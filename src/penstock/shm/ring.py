"""The critical ring: every event in order, or an error with the position of the first loss."""

from penstock.shm._ring import RingWriter
from penstock.shm._ring_reader import RingReader

__all__ = ["RingReader", "RingWriter"]
