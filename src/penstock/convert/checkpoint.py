"""Where a converter is, and what its state was there."""

from typing import NamedTuple


class Checkpoint(NamedTuple):
    """Two converters of the same stream with equal checkpoints have converted alike up to there."""

    next_source_sequence: int
    next_message_sequence: int
    digest: int
