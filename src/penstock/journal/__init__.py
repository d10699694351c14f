"""The journal: an append-only log in segment files; what was acknowledged is on the disk."""
