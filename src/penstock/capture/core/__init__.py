"""Rows, cursors and texts of captured records, without I/O."""
