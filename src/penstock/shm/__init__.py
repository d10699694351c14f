"""Shared memory between processes of one host: the critical ring and the record region.

The ring carries every event in order; the region holds the newest version of each record. Neither knows how the other
process gets the memory: that is penstock.net.live.handover. Read protocol/shared-memory.md first, then _ring.pyx,
_ring_reader.pyx and _region.pyx.
"""

from penstock.base.segment import Segment
from penstock.shm.region import RegionMarks, RegionReader, RegionRecord, RegionWriter
from penstock.shm.ring import RingReader, RingWriter

__all__ = ["RegionMarks", "RegionReader", "RegionRecord", "RegionWriter", "RingReader", "RingWriter", "Segment"]
