"""Transactions go to the other router as they come, and are held aside there until they end (REPL-10).

What a transaction publishes follows it over the link at once (TOGETHER frames). When it is committed, its record goes
as every record does, but for the contents that are there already: a SPLICED frame is a RECORDS frame whose missing
parts are taken from what is held. So a commit is small, however large the transaction. Rolled back, it is forgotten
there; with the link, or when the other router becomes active, so is everything that is held.

         0       1       2       3       4       5       6       7
       ┌───────┬───────┬───────────────┬───────────────────────────────┐
     0 │ 10    │ flags │ 0             │ number                        │ TOGETHER: bytes follow, held under that number
       ├───────┼───────┼───────────────┼───────────────────────────────┤ behind what there is; flag 1: it is forgotten
     0 │ 11    │ 0     │ 0             │ count                         │ SPLICED: so many pieces follow, 16 bytes each,
       └───────┴───────┴───────────────┴───────────────────────────────┘ then what is said here
     0 │ said, bytes                   │ number                        │ a piece: so many of the bytes said here, then
     8 │ offset                        │ size                          │ so many of what is held under the number
       └───────────────────────────────┴───────────────────────────────┘
"""

import struct
from collections.abc import Callable, Iterator

import msgspec

from penstock.assured._intake import PublishBatch
from penstock.assured._layout import KIND_SPLICED, KIND_TOGETHER, LENGTH_SIZE, PEER_FRAME_SIZE_MAX, RECORDS_HEAD_SIZE
from penstock.assured._records import (
    DESTINATION_SIZE,
    HEAD_SIZE,
    MESSAGE_HEAD_SIZE,
    RECORD_MESSAGE,
    RECORD_TRANSACTION,
    TRANSACTION_HEAD_SIZE,
)
from penstock.base.errors import RemoteProtocolError
from penstock.net.framing import encode_frame

FORGOTTEN = 1
HELD_SIZE_MAX = 2**26
"""Of all transactions together."""

HELD_COUNT_MAX = 65_536
SPLICED_SIZE_MIN = 48
"""A content that is smaller is sent again: a piece takes almost as much."""

Key = tuple[int, int]
"""A publisher, and its transaction."""

_TOGETHER = struct.Struct("<BBHI")
_PIECE = struct.Struct("<IIII")


class _Streamed(msgspec.Struct):
    number: int
    size: int = 0
    contents: dict[int, tuple[int, int]] = {}
    """By number of the message: where it is, and its size."""
    is_committed: bool = False


class Streaming:
    """The active router's side; `is_wanted` says whether something of what is published is replicated."""

    def __init__(self, out: list[bytes], bytes_max: int, is_wanted: Callable[[PublishBatch], bool]) -> None:
        self._out = out
        self._bytes_max = min(bytes_max, HELD_SIZE_MAX)
        self._is_wanted = is_wanted
        self._streamed: dict[Key, _Streamed] = {}
        self._size = 0
        self._number = 0
        self._committed_count = 0

    def published(self, key: Key, batch: PublishBatch) -> None:
        """What the other router has no room for goes with the commit."""
        size = len(batch.data)
        if self._size + size > self._bytes_max or len(self._streamed) >= HELD_COUNT_MAX or not self._is_wanted(batch):
            return
        streamed = self._streamed.get(key)
        if streamed is None:
            self._number += 1
            streamed = self._streamed[key] = _Streamed(self._number)
        sizes = batch.topic_sizes.astype("u4") + batch.payload_sizes
        offsets = batch.topic_offsets + streamed.size
        numbers = range(batch.first_number, batch.first_number + len(batch))
        streamed.contents.update(zip(numbers, zip(offsets.tolist(), sizes.tolist(), strict=True), strict=True))
        streamed.size += size
        self._size += size
        self._out.append(encode_frame(_TOGETHER.pack(KIND_TOGETHER, 0, 0, streamed.number) + batch.data))

    def committed(self, key: Key) -> None:
        """Its record is about to be sent."""
        if (streamed := self._streamed.get(key)) is not None:
            streamed.is_committed = True
            self._committed_count += 1

    def rolled_back(self, key: Key) -> None:
        if (streamed := self._streamed.get(key)) is not None and not streamed.is_committed:
            self._forget(key)

    def _forget(self, key: Key) -> None:
        streamed = self._streamed.pop(key)
        self._size -= streamed.size
        self._out.append(encode_frame(_TOGETHER.pack(KIND_TOGETHER, FORGOTTEN, 0, streamed.number)))

    def send(self, frame: bytes) -> int:
        """A RECORDS frame, without what the other router holds of it. How many bytes are sent."""
        ended: list[Key] = []
        pieces: list[tuple[int, int, int, int]] = []
        said: list[bytes] = []
        done = LENGTH_SIZE
        if self._committed_count:
            for number, at, offset, size in self._held_contents(frame, ended):
                pieces.append((at - done, number, offset, size))
                said.append(frame[done:at])
                done = at + size
        if pieces:
            pieces.append((len(frame) - done, 0, 0, 0))
            said.append(frame[done:])
            head = _TOGETHER.pack(KIND_SPLICED, 0, 0, len(pieces))
            frame = encode_frame(b"".join([head, *(_PIECE.pack(*each) for each in pieces), *said]))
        self._out.append(frame)
        self._committed_count -= len(ended)
        for key in ended:
            self._forget(key)
        return len(frame)

    def _held_contents(self, frame: bytes, ended: list[Key]) -> Iterator[tuple[int, int, int, int]]:
        """(number, where it is in the frame, where among what is held, its size); `ended` gets the transactions."""
        at = LENGTH_SIZE + RECORDS_HEAD_SIZE
        while at < len(frame):
            size = int.from_bytes(frame[at + 4 : at + 8], "little")
            if frame[at] == RECORD_TRANSACTION:
                publisher, transaction = struct.unpack_from("<QI", frame, at + HEAD_SIZE)
                streamed = self._streamed.get((publisher, transaction))
                if streamed is not None:
                    ended.append((publisher, transaction))
                    yield from _contents(frame, at + TRANSACTION_HEAD_SIZE, at + size, streamed)
            at += size


def _contents(frame: bytes, at: int, end: int, streamed: _Streamed) -> Iterator[tuple[int, int, int, int]]:
    while at < end:
        if frame[at] == RECORD_MESSAGE:
            payload_size, topic_size, destinations = struct.unpack_from("<IHH", frame, at + 8)
            number = int.from_bytes(frame[at + 32 : at + 40], "little")
            offset, size = streamed.contents.get(number, (0, 0))
            if size == payload_size + topic_size and size >= SPLICED_SIZE_MIN:
                yield streamed.number, at + MESSAGE_HEAD_SIZE + destinations * DESTINATION_SIZE, offset, size
        at += int.from_bytes(frame[at + 4 : at + 8], "little")


class Held:
    """The side of the router that stands by."""

    def __init__(self) -> None:
        self._held: dict[int, bytearray] = {}
        self._size = 0

    def __len__(self) -> int:
        return len(self._held)

    def together(self, frame: bytes) -> None:
        if len(frame) < _TOGETHER.size:
            raise RemoteProtocolError("a frame of a transaction is too short")
        _, flags, _, number = _TOGETHER.unpack_from(frame)
        if flags & FORGOTTEN:
            self._size -= len(self._held.pop(number, b""))
            return
        self._size += len(frame) - _TOGETHER.size
        if self._size > HELD_SIZE_MAX or (number not in self._held and len(self._held) >= HELD_COUNT_MAX):
            raise RemoteProtocolError(f"transactions that have not ended have {self._size} bytes")
        self._held.setdefault(number, bytearray()).extend(memoryview(frame)[_TOGETHER.size :])

    def joined(self, frame: bytes) -> bytes:
        """The RECORDS frame that it stands for."""
        if len(frame) < _TOGETHER.size:
            raise RemoteProtocolError("a spliced frame is too short")
        count = _TOGETHER.unpack_from(frame)[3]
        at = _TOGETHER.size + count * _PIECE.size
        if at > len(frame):
            raise RemoteProtocolError(f"a spliced frame has no {count} pieces")
        parts: list[memoryview] = []
        total = 0
        for said, number, offset, size in _PIECE.iter_unpack(memoryview(frame)[_TOGETHER.size : at]):
            held = self._held.get(number, b"")
            total += said + size
            if at + said > len(frame) or offset + size > len(held) or total > PEER_FRAME_SIZE_MAX:
                raise RemoteProtocolError("a spliced frame speaks of what there is not")
            parts += [memoryview(frame)[at : at + said], memoryview(held)[offset : offset + size]]
            at += said
        if at != len(frame):
            raise RemoteProtocolError("a spliced frame says more than it has pieces")
        return b"".join(parts)
