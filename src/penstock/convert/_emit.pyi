"""Compiled only: see _emit.pxd."""
