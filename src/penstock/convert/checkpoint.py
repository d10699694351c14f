"""A converter's position and the digest of its state at that position."""

from typing import NamedTuple


class Checkpoint(NamedTuple):
    """Two converters of the same stream with equal checkpoints have converted identically up to that position."""

    next_source_sequence: int
    next_message_sequence: int
    digest: int
