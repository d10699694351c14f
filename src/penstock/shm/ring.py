"""The critical ring: every event in order, or an error that says where the loss begins."""

from penstock.shm._ring import RingReader, RingWriter

__all__ = ["RingReader", "RingWriter"]
