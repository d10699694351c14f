"""Compiled only: see _values.pxd."""
