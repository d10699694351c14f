"""What a replay plays, in pieces, and when: messages with the times at which they were captured or happened.

A Play is over memory of its own; it can be packed as it is (middleware.batch.Packable). `Pace` does no I/O: time is
passed in.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.topics import InterestTable
from penstock.wire import MESSAGE_DTYPE, Extension, MessageFlag

BEGINNING_NS = -(2**63)
END_NS = 2**63 - 1

ORIGIN_DTYPE = np.dtype(
    [
        ("type", "<u2"), ("size", "<u2"), ("stream", "<u4"), ("term", "<u4"), ("part", "<u2"), ("flags", "<u2"),
        ("source_seq", "<u8"), ("seq", "<u8"),
    ]
)  # fmt: skip
"""An ORIGIN extension, its header included (docs/reference/protocol/packet.md)."""

ORIGIN_BODY_SIZE = ORIGIN_DTYPE.itemsize - 4
SEALED = int(MessageFlag.SEALED)


class Play:
    """Messages of one stream, or of several in the order they are played."""

    def __init__(
        self,
        topic_data: NDArray[np.uint8],
        payloads: NDArray[np.uint8],
        rows: NDArray[Any],
        times_ns: NDArray[np.int64],
        numbers: NDArray[np.uint64] | None = None,
    ) -> None:
        """`numbers` say in which order the messages of one stream follow each other; unless given, times do."""
        self.topic_data = topic_data
        self.payloads = payloads
        self.rows = rows
        self.times_ns = times_ns
        self.numbers: NDArray[Any] = times_ns if numbers is None else numbers

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, which: slice | NDArray[Any]) -> "Play":
        return Play(self.topic_data, self.payloads, self.rows[which], self.times_ns[which], self.numbers[which])

    def in_order(self) -> "Play":
        """By number."""
        if (self.numbers[1:] >= self.numbers[:-1]).all():
            return self
        return self.select(np.argsort(self.numbers, kind="stable"))


class Chosen:
    """Which of what was recorded is played: a stretch of time, and topics."""

    def __init__(
        self, from_ns: int = BEGINNING_NS, to_ns: int = END_NS, topics: Sequence[str] = (), streams: Sequence[int] = ()
    ) -> None:
        """From `from_ns` on and before `to_ns`; without topics or streams, all of them."""
        self.from_ns = from_ns
        self.to_ns = to_ns
        self.streams = frozenset(streams)
        self._table = InterestTable() if topics else None
        for interest in topics:
            assert self._table is not None
            self._table.add(interest, 0)

    def of(self, play: Play) -> Play:
        """Sealed messages are left out: what opens them belongs to the publisher that sealed them."""
        wanted = (play.times_ns >= self.from_ns) & (play.times_ns < self.to_ns) & (play.rows["flags"] & SEALED == 0)
        if self._table is not None:
            rows = play.rows
            offsets, _ = self._table.match_batch(play.topic_data.data, rows["topic_offset"], rows["topic_size"])
            wanted &= offsets[1:] > offsets[:-1]
        return play if wanted.all() else play.select(wanted)


class Pace:
    """Tells what is due. A speed of 10 plays ten times as fast as it was; 0 plays all at once."""

    def __init__(self, speed: float, now_ns: int, first_time_ns: int) -> None:
        self._speed = speed
        self._start_ns = now_ns
        self._first_time_ns = first_time_ns

    def due(self, times_ns: NDArray[np.int64], now_ns: int) -> int:
        """How many of these are due; they are in order. Whoever is late catches up, nothing is left out."""
        if not self._speed:
            return len(times_ns)
        reached_ns = self._first_time_ns + int((now_ns - self._start_ns) * self._speed)
        return int(np.searchsorted(times_ns, reached_ns, side="right"))

    def wait_ns(self, time_ns: int, now_ns: int) -> int:
        """How long a message of this time is not due yet."""
        if not self._speed:
            return 0
        return max(self._due_ns(time_ns) - now_ns, 0)

    def late_ns(self, time_ns: int, now_ns: int) -> int:
        """How long a message of this time has been due."""
        return max(now_ns - self._due_ns(time_ns), 0) if self._speed else 0

    def _due_ns(self, time_ns: int) -> int:
        return self._start_ns + int((time_ns - self._first_time_ns) / self._speed)


Keys: TypeAlias = Callable[[Play], NDArray[Any]]


def interleaved(sources: Sequence[Iterator[Play]], keys: Keys) -> Iterator[Play]:
    """Pieces of several sources in the order of their keys, in memory for a piece of each.

    Each source is in order, and what is equal comes in the order of the sources.
    """
    waiting: list[tuple[Play, NDArray[Any], Iterator[Play]]] = []
    for source in sources:
        _fetch(source, keys, waiting)
    while waiting:
        bound = min(found[-1] for _, found, _ in waiting)
        parts: list[tuple[Play, NDArray[Any]]] = []
        later: list[tuple[Play, NDArray[Any], Iterator[Play]]] = []
        for play, found, source in waiting:
            count = int(np.searchsorted(found, bound, side="right"))
            if count:
                parts.append((play.select(slice(count)), found[:count]))
            if count < len(play):
                later.append((play.select(slice(count, None)), found[count:], source))
            else:
                _fetch(source, keys, later)
        waiting = later
        yield _joined(parts)


def _fetch(source: Iterator[Play], keys: Keys, into: list[tuple[Play, NDArray[Any], Iterator[Play]]]) -> None:
    for play in source:
        if len(play):
            into.append((play, keys(play), source))
            return


def _joined(parts: Sequence[tuple[Play, NDArray[Any]]]) -> Play:
    if len(parts) == 1:
        return parts[0][0]
    moved = []
    topic_offset = payload_offset = 0
    for play, _ in parts:
        rows = play.rows.copy()
        rows["topic_offset"] += topic_offset
        rows["payload_offset"] += payload_offset
        rows["extensions_offset"] += payload_offset
        moved.append(rows)
        topic_offset += len(play.topic_data)
        payload_offset += len(play.payloads)
    order = np.argsort(np.concatenate([found for _, found in parts]), kind="stable")
    return Play(
        np.concatenate([play.topic_data for play, _ in parts]),
        np.concatenate([play.payloads for play, _ in parts]),
        np.concatenate(moved)[order],
        np.concatenate([play.times_ns for play, _ in parts])[order],
        np.concatenate([play.numbers for play, _ in parts])[order],
    )


def in_one_line(tracks: Sequence[Sequence[Iterator[Play]]]) -> Iterator[Play]:
    """What is played, in order: tracks[n] are the pieces of stream n, by number; streams follow each other by time."""
    by_stream = [_forward(interleaved(sources, lambda play: play.numbers)) for sources in tracks]
    return interleaved(by_stream, lambda play: play.times_ns)


def _forward(plays: Iterator[Play]) -> Iterator[Play]:
    """Time does not go back within a stream: its numbers say what came first."""
    reached_ns = BEGINNING_NS
    for play in plays:
        times_ns = np.maximum(np.maximum.accumulate(play.times_ns), reached_ns)
        reached_ns = int(times_ns[-1])
        yield Play(play.topic_data, play.payloads, play.rows, times_ns, play.numbers)


def origin_extensions(count: int) -> NDArray[Any]:
    """Blank ORIGIN extensions."""
    made = np.zeros(count, ORIGIN_DTYPE)
    made["type"] = int(Extension.ORIGIN)
    made["size"] = ORIGIN_BODY_SIZE
    return made


def blank_rows(count: int) -> NDArray[Any]:
    return np.zeros(count, MESSAGE_DTYPE)
