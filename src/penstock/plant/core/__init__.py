"""Decisions of a node, without I/O."""
