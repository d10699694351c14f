from typing import Any

import numpy
from numpy.typing import NDArray

KEPT: int
REPEATED: int
FENCED: int
UNSYNCHRONISED: int
ANNOUNCEMENT: int
UNNUMBERED: int

class StreamCursor:
    def __init__(self, stream_id: int) -> None: ...
    beginnings: list[int]

    def export(self) -> tuple[int, int, int, int, int, list[tuple[int, int]], int, int, int]: ...
    def restore(
        self,
        term: int,
        seq: int,
        source_seq: int,
        part: int,
        tag: int,
        holes: list[tuple[int, int]],
        session_name: int = 0,
        session_date: int = 0,
        begun: int = 0,
    ) -> None: ...

def judge_rows(
    cursors: dict[int, StreamCursor], payloads: NDArray[numpy.uint8], rows: NDArray[Any]
) -> NDArray[numpy.uint8]: ...
