"""Shared memory between processes of one host: the critical ring and the record region."""
