"""The record region: the newest coherent version of each record, overwritten in place."""

from penstock.shm._region import RegionReader, RegionRecord, RegionWriter

__all__ = ["RegionReader", "RegionRecord", "RegionWriter"]
