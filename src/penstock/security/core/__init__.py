"""Formats and rules without I/O: tokens, keys, proofs, sealed payloads, grants and refusals. Time is an argument."""
