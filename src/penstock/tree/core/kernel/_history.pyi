HISTORY_SIZE_MIN: int
"""Minimum size of a history."""

class History:
    def __init__(self, size: int, streams_max: int) -> None: ...
