"""Penstock's data in Spark: journals and raw feeds as DataFrames, and the pipeline from capture to archive and audit.

Nothing of the microsecond path is here. Read slices.py first: a slice is the unit of work that Spark distributes.
"""
