"""How far the source streams of a capture have come, so that each message is taken once, wherever reading begins.

    cursors = Cursors()
    rows = rows.select(cursors.judge(rows) == KEPT)    # without those that other publishers brought before
    later = Cursors.of(cursors.export())               # plain data: goes into a slice, a commit, a streaming offset

What is kept is what a Merger would have passed, but for the order: a message that comes after one with a higher number
is kept when it comes.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy
from numpy.typing import NDArray

from penstock.base.counters import Cause
from penstock.base.errors import LimitError
from penstock.capture._cursors import (
    ANNOUNCEMENT,
    FENCED,
    KEPT,
    REPEATED,
    UNNUMBERED,
    UNSYNCHRONISED,
    StreamCursor,
    judge_rows,
)
from penstock.capture.rows import MessageRows

__all__ = ["KEPT", "REPEATED", "SKIPPED", "CursorImage", "Cursors"]

STREAMS_MAX = 65_536
"""Source streams that are told apart."""

SKIPPED = {
    FENCED: str(Cause.FENCED),
    UNSYNCHRONISED: str(Cause.UNSYNCHRONISED),
    ANNOUNCEMENT: "discontinuity",
    UNNUMBERED: str(Cause.UNEXPECTED),
}
"""Why messages are left out that are no repetitions, by verdict."""

Number = Annotated[int, msgspec.Meta(ge=0)]
Word = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class CursorImage(msgspec.Struct, frozen=True, array_like=True):
    """A stream's cursor as plain data."""

    stream: Word
    term: Word
    seq: Number
    source_seq: Number
    part: Annotated[int, msgspec.Meta(ge=0, le=65_535)]
    tag: Annotated[int, msgspec.Meta(ge=-1, le=65_535)]
    holes: list[tuple[Number, Number]] = []
    session_name: Word = 0
    """CRC32C of the session name in the last announcement; 0: not known."""
    session_date: Word = 0
    """CRC32C of its trading date; 0: not known."""
    begun: Word = 0
    """The lineage with which the last announced session began; 0: not known."""


class Cursors:
    """One cursor per source stream that has been met."""

    def __init__(self) -> None:
        self._cursors: dict[int, StreamCursor] = {}

    @staticmethod
    def of(images: list[CursorImage]) -> Cursors:
        made = Cursors()
        for image in images:
            cursor = made._cursors[image.stream] = StreamCursor(image.stream)
            cursor.restore(*msgspec.structs.astuple(image)[1:])
        return made

    def export(self) -> list[CursorImage]:
        return [CursorImage(stream, *self._cursors[stream].export()) for stream in sorted(self._cursors)]

    @property
    def beginnings(self) -> dict[int, list[int]]:
        """By stream: the lineages with which announced sessions began, in order."""
        return {stream: cursor.beginnings for stream, cursor in self._cursors.items()}

    def judge(self, rows: MessageRows) -> NDArray[numpy.uint8]:
        """What becomes of each message: KEPT, REPEATED, or a key of SKIPPED."""
        verdicts = judge_rows(self._cursors, rows.payloads, rows.rows)
        if len(self._cursors) > STREAMS_MAX:
            raise LimitError(f"the capture has more than {STREAMS_MAX} source streams")
        return verdicts
