"""The journal of a simulated message router: its records, the newest not yet safe.

What the journal's own scenario shows is taken for granted here: after a crash there is a beginning of what was
appended, with everything in it that was acknowledged.
"""

from collections.abc import Callable

import numpy

from penstock.assured.core.router.events import Append, ReadRecords, RecordsRead, Replay
from penstock.base.clock import NS_PER_MS
from penstock.journal.core._log import RECORD_DTYPE
from penstock.sim.randomness import SeededRandomness
from penstock.sim.world import World

READ_NS_MAX = NS_PER_MS


class RouterDisk:
    def __init__(self, world: World, randomness: SeededRandomness, sync_ns_max: int) -> None:
        self.torn = 0
        self._sync_ns_max = sync_ns_max
        self._world = world
        self._randomness = randomness
        self._records: dict[int, tuple[int, bytes]] = {}
        """By number: when it was appended, and what."""
        self._first = 1
        self._next = 1
        self._durable = 0
        self._waiting: list[tuple[int, Callable[[int], None]]] = []
        self._is_syncing = False
        self._hangs_until_ns = 0
        self._incarnation = 0

    @property
    def next_sequence(self) -> int:
        return self._next

    def append(self, rows: Append, done: Callable[[int], None]) -> None:
        assert rows.first == self._next, f"record {self._next} is called {rows.first}"
        for at, size, time_ns in zip(rows.offsets, rows.sizes, rows.timestamps_ns, strict=True):
            self._records[self._next] = (int(time_ns), bytes(rows.data[at : at + size]))
            self._next += 1
        self._waiting.append((rows.through, done))
        if not self._is_syncing:
            self._sync()

    def _sync(self) -> None:
        """All that waits goes to the disk together; what comes meanwhile, with the next turn."""
        incarnation, waiting = self._incarnation, self._waiting
        self._waiting = []
        self._is_syncing = True

        def synced() -> None:
            if incarnation != self._incarnation:
                return
            self._is_syncing = False
            for through, done in waiting:
                self._durable = max(self._durable, through)
                done(through)
            if self._waiting and not self._is_syncing:
                self._sync()

        begin_ns = max(self._world.now_ns(), self._hangs_until_ns)
        self._world.at(begin_ns + self._randomness.below(self._sync_ns_max), synced)

    def hang(self, duration_ns: int) -> None:
        """Nothing gets onto it for so long."""
        self._hangs_until_ns = self._world.now_ns() + duration_ns

    def read(self, request: ReadRecords, done: Callable[[RecordsRead], None]) -> None:
        wanted = [int(each) for each in request.sequences if int(each) in self._records]
        incarnation = self._incarnation
        found = RecordsRead(request.request, *self._batch(wanted), self._first)
        self._world.after(
            self._randomness.below(READ_NS_MAX), lambda: done(found) if incarnation == self._incarnation else None
        )

    def remove_before(self, sequence: int) -> None:
        for each in range(self._first, min(sequence, self._next)):
            del self._records[each]
        self._first = max(self._first, min(sequence, self._next))

    def crash(self) -> None:
        self._incarnation += 1
        end = self._durable + 1 + self._randomness.below(self._next - self._durable)
        for each in range(max(end, self._first), self._next):
            del self._records[each]
            self.torn += 1
        self._next = max(end, self._first)
        self._durable = self._next - 1
        self._waiting.clear()
        self._is_syncing = False

    def replay(self) -> Replay:
        return Replay(*self._batch(list(range(self._first, self._next))))

    def _batch(self, sequences: list[int]) -> tuple[bytes, numpy.ndarray]:
        rows = numpy.zeros(len(sequences), RECORD_DTYPE)
        data = bytearray()
        for row, sequence in zip(rows, sequences, strict=True):
            time_ns, record = self._records[sequence]
            row["sequence"], row["timestamp_ns"], row["offset"], row["size"] = sequence, time_ns, len(data), len(record)
            data += record + bytes(-len(record) % 8)
        return bytes(data), rows
