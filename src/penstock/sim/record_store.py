"""Numbered records on a simulated disk: synced records survive a crash; the newest unsynced ones are lost.

The scenario `journal` shows that a journal on a faulty disk keeps this promise; other scenarios rely on the promise and
store their records here.
"""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from penstock.sim.randomness import SeededRandomness
from penstock.sim.world import World

T = TypeVar("T")


class SimulatedRecords(Generic[T]):
    """Records `first` to `last`, without a gap. Syncs take up to `sync_ns_max`.

    `has_group_commit`: only one sync is under way at a time, and all requests during a sync share the next one.
    Otherwise each request has its own sync.
    """

    def __init__(
        self, world: World, randomness: SeededRandomness, sync_ns_max: int, *, has_group_commit: bool = False
    ) -> None:
        self.first = 1
        self.durable = 0
        """Number of the last record that survives a crash."""
        self.torn = 0
        """Records that crashes have lost."""
        self._world = world
        self._randomness = randomness
        self._sync_ns_max = sync_ns_max
        self._has_group_commit = has_group_commit
        self._records: list[T] = []
        self._waiting: list[tuple[int, Callable[[int], None]]] = []
        self._is_syncing = False
        self._stalled_until_ns = 0
        self._incarnation = 0

    @property
    def last(self) -> int:
        return self.first + len(self._records) - 1

    def __contains__(self, sequence: int) -> bool:
        return self.first <= sequence <= self.last

    def __getitem__(self, sequence: int) -> T:
        return self._records[sequence - self.first]

    def records(self, first: int = 0, last: int | None = None) -> list[T]:
        """The records from `first` to `last` that are stored; without bounds, all."""
        end = None if last is None else max(0, last + 1 - self.first)
        return self._records[max(0, first - self.first) : end]

    # Writing

    def append(self, records: Iterable[T]) -> None:
        self._records += records

    def remove_before(self, sequence: int) -> list[T]:
        """Remove the oldest records, and return them."""
        count = max(0, min(sequence - self.first, len(self._records)))
        removed = self._records[:count]
        del self._records[:count]
        self.first += count
        return removed

    def cut_after(self, sequence: int) -> None:
        """Remove the newest records."""
        del self._records[max(0, sequence + 1 - self.first) :]
        self.durable = min(self.durable, sequence)

    def restart_at(self, sequence: int) -> None:
        """Remove all records; the next record gets this number."""
        self._records.clear()
        self.first = sequence
        self.durable = max(self.durable, sequence - 1)

    # Syncs

    def sync(self, done: Callable[[int], None]) -> None:
        """Make the records up to now durable, then call `done` with the number of the last; a crash calls nothing."""
        self._waiting.append((self.last, done))
        if not (self._has_group_commit and self._is_syncing):
            self._sync()

    def stall(self, duration_ns: int) -> None:
        """A sync that begins within this time ends only after it."""
        self._stalled_until_ns = self._world.now_ns() + duration_ns

    def _sync(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._is_syncing = True

        def synced() -> None:
            self._is_syncing = False
            for through, done in waiting:
                self.durable = max(self.durable, min(through, self.last))
                done(through)
            if self._waiting and not self._is_syncing:
                self._sync()

        begin_ns = max(self._world.now_ns(), self._stalled_until_ns)
        self._world.at(begin_ns + self._randomness.below(self._sync_ns_max), self.unless_crashed(synced))

    # Crashes

    def crash(self) -> None:
        """Lose a random number of the newest records that are not synced; pending syncs never end."""
        self._incarnation += 1
        self._waiting.clear()
        self._is_syncing = False
        unsynced = self.last - self.durable
        if unsynced > 0:
            lost = min(unsynced - self._randomness.below(unsynced + 1), len(self._records))
            self.torn += lost
            self.cut_after(self.last - lost)
        self.durable = self.last

    def unless_crashed(self, action: Callable[[], None]) -> Callable[[], None]:
        """Return the action, disabled by a crash."""
        incarnation = self._incarnation
        return lambda: action() if self._incarnation == incarnation else None
