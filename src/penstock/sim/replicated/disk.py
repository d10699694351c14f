"""The journal of a simulated router of a pair; its newest records are not yet durable."""

from collections.abc import Callable

import numpy

from penstock.assured.core.router.events import Append, ReadRecords, RecordsRead, Replay
from penstock.base.clock import NS_PER_MS
from penstock.journal.core._log import RECORD_DTYPE
from penstock.sim.randomness import SeededRandomness
from penstock.sim.record_store import SimulatedRecords
from penstock.sim.world import World

READ_NS_MAX = NS_PER_MS


class RouterDisk:
    def __init__(self, world: World, randomness: SeededRandomness, sync_ns_max: int) -> None:
        self.store = SimulatedRecords[tuple[int, bytes]](world, randomness, sync_ns_max, has_group_commit=True)
        """Append time and content of each record."""
        self._world = world
        self._randomness = randomness

    @property
    def next_sequence(self) -> int:
        return self.store.last + 1

    def append(self, rows: Append, done: Callable[[int], None]) -> None:
        assert rows.first == self.next_sequence, f"record {self.next_sequence} is called {rows.first}"
        places = zip(rows.offsets, rows.sizes, rows.timestamps_ns, strict=True)
        self.store.append((int(time_ns), bytes(rows.data[at : at + size])) for at, size, time_ns in places)
        assert rows.through == self.store.last
        self.store.sync(done)

    def read(self, request: ReadRecords, done: Callable[[RecordsRead], None]) -> None:
        wanted = [int(each) for each in request.sequences if int(each) in self.store]
        found = RecordsRead(request.request, *self._batch(wanted), self.store.first)
        self._world.after(self._randomness.below(READ_NS_MAX), self.store.unless_crashed(lambda: done(found)))

    def crash(self) -> None:
        if self.store.durable == self.store.last:
            self._randomness.below(1)  # each crash takes one draw, so that seeds keep their runs
        self.store.crash()

    def replay(self) -> Replay:
        return Replay(*self._batch(list(range(self.store.first, self.next_sequence))))

    def _batch(self, sequences: list[int]) -> tuple[bytes, numpy.ndarray]:
        rows = numpy.zeros(len(sequences), RECORD_DTYPE)
        data = bytearray()
        for row, sequence in zip(rows, sequences, strict=True):
            time_ns, record = self.store[sequence]
            row["sequence"], row["timestamp_ns"], row["offset"], row["size"] = sequence, time_ns, len(data), len(record)
            data += record + bytes(-len(record) % 8)
        return bytes(data), rows
