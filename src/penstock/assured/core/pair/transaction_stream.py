"""Transactions are sent to the standby while they are open, and buffered there until they end (REPL-10).

What a transaction publishes follows it over the link at once (TOGETHER frames). When it is committed, its record is
sent like any other, without the contents that the standby already has: a SPLICED frame is a RECORDS frame whose missing
parts are taken from the buffered contents. So a commit is small, however large the transaction. Rolled back, it is
forgotten there; with the link, or when the other router becomes active, so is everything that is held.

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

from collections.abc import Callable

from penstock.assured.core.pair._splicing import Contents, encode_together, join, read_together, splice
from penstock.assured.core.router._intake import PublishBatch
from penstock.assured.wire._layout import TOGETHER_HEAD_SIZE
from penstock.base.errors import RemoteProtocolError

HELD_SIZE_MAX = 2**26
"""Maximum size of all transactions."""

HELD_COUNT_MAX = 65_536
Key = tuple[int, int]
"""A publisher and its transaction."""


class TransactionStream:
    """The active router's side; `is_wanted` returns True if a part of a batch is replicated."""

    def __init__(self, out: list[bytes], bytes_max: int, is_wanted: Callable[[PublishBatch], bool]) -> None:
        self._out = out
        self._bytes_max = min(bytes_max, HELD_SIZE_MAX)
        self._is_wanted = is_wanted
        self._streamed: dict[Key, Contents] = {}
        self._committed: set[Key] = set()
        """Keys of the above."""
        self._size = 0
        self._number = 0

    def published(self, key: Key, batch: PublishBatch) -> None:
        """Send a batch ahead. What exceeds the other router's buffer is sent with the commit."""
        size = len(batch.data)
        if self._size + size > self._bytes_max or len(self._streamed) >= HELD_COUNT_MAX or not self._is_wanted(batch):
            return
        contents = self._streamed.get(key)
        if contents is None:
            self._number += 1
            contents = self._streamed[key] = Contents(self._number)
        contents.add(batch)
        self._size += size
        self._out.append(encode_together(contents.number, batch.data))

    def committed(self, key: Key) -> None:
        """The transaction's record is about to be sent."""
        if key in self._streamed:
            self._committed.add(key)

    def rolled_back(self, key: Key) -> None:
        if key in self._streamed and key not in self._committed:
            self._forget(key)

    def _forget(self, key: Key) -> None:
        contents = self._streamed.pop(key)
        self._committed.discard(key)
        self._size -= contents.size
        self._out.append(encode_together(contents.number, is_forgotten=True))

    def send(self, frame: bytes) -> int:
        """Send a RECORDS frame without the parts that the other router has. Return the number of bytes sent."""
        ended: list[Key] = []
        if self._committed:
            frame, ended = splice(frame, self._streamed)
        self._out.append(frame)
        for key in ended:
            self._forget(key)
        return len(frame)


class HeldTransactions:
    """The standby's side."""

    def __init__(self) -> None:
        self._held: dict[int, bytearray] = {}
        self._size = 0

    def __len__(self) -> int:
        return len(self._held)

    def together(self, frame: bytes) -> None:
        number, is_forgotten = read_together(frame)
        if is_forgotten:
            self._size -= len(self._held.pop(number, b""))
            return
        self._size += len(frame) - TOGETHER_HEAD_SIZE
        if self._size > HELD_SIZE_MAX or (number not in self._held and len(self._held) >= HELD_COUNT_MAX):
            raise RemoteProtocolError(f"transactions that have not ended have {self._size} bytes")
        self._held.setdefault(number, bytearray()).extend(memoryview(frame)[TOGETHER_HEAD_SIZE:])

    def joined(self, frame: bytes) -> bytes:
        """Restore the RECORDS frame."""
        return join(frame, self._held)
