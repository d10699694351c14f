"""The record region: the newest coherent version of each record, overwritten in place."""

from penstock.shm._region import RegionMarks, RegionReader, RegionRecord, RegionWriter

__all__ = ["RegionMarks", "RegionReader", "RegionRecord", "RegionWriter"]
