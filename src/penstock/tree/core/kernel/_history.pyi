HISTORY_SIZE_MIN: int
"""Bytes that a history has at least."""

class History:
    def __init__(self, size: int, streams_max: int) -> None: ...
