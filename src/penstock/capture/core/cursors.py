"""Positions of a capture's source streams, so that each message is taken once, wherever reading begins.

    cursors = Cursors()
    rows = rows.select(cursors.judge(rows) == KEPT)    # without duplicates from other publishers
    later = Cursors.of(cursors.export())               # plain data for a slice, a commit or a streaming offset

The messages kept are those that a Merger would deliver, but in another order: a message that arrives after one with a
higher number is kept when it arrives.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy
from numpy.typing import NDArray

from penstock.base.counters import Cause
from penstock.base.errors import LimitError
from penstock.capture.core._cursors import (
    ANNOUNCEMENT,
    FENCED,
    KEPT,
    REPEATED,
    UNNUMBERED,
    UNSYNCHRONISED,
    StreamCursor,
    judge_rows,
)
from penstock.capture.core.rows import MessageRows

__all__ = ["KEPT", "REPEATED", "SKIPPED", "CursorImage", "Cursors"]

STREAMS_MAX = 65_536
"""Maximum number of source streams."""

SKIPPED = {
    FENCED: str(Cause.FENCED),
    UNSYNCHRONISED: str(Cause.UNSYNCHRONISED),
    ANNOUNCEMENT: "discontinuity",
    UNNUMBERED: str(Cause.UNEXPECTED),
}
"""Reasons for leaving out messages that are not duplicates, by verdict."""

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
    """CRC32C of the session name in the last announcement; 0: unknown."""
    session_date: Word = 0
    """CRC32C of the session's trading date; 0: unknown."""
    begun: Word = 0
    """The lineage with which the last announced session began; 0: unknown."""


class Cursors:
    """One cursor per source stream seen."""

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
        """Return the lineages with which announced sessions began, by stream, in order."""
        return {stream: cursor.beginnings for stream, cursor in self._cursors.items()}

    def judge(self, rows: MessageRows) -> NDArray[numpy.uint8]:
        """Return the verdict on each message: KEPT, REPEATED, or a key of SKIPPED."""
        verdicts = judge_rows(self._cursors, rows.payloads, rows.rows)
        if len(self._cursors) > STREAMS_MAX:
            raise LimitError(f"the capture exceeds the limit of {STREAMS_MAX} source streams")
        return verdicts
