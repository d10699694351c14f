"""Formats and rules without I/O: what is issued, proved, sealed, granted and refused. The time is an argument."""
