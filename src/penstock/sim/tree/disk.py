"""The disk of a root or standby of a simulated tree: the packets of each stream; the newest ones are not durable."""

from collections.abc import Callable

from penstock.base.clock import NS_PER_MS
from penstock.sim.randomness import SeededRandomness
from penstock.sim.record_store import SimulatedRecords
from penstock.sim.world import World
from penstock.tree.core.control import StreamInfo
from penstock.tree.core.events import Append, Appended, JournalRead, ReadJournal, Recovered, Start
from penstock.tree.core.kernel._tail import TailMemory
from penstock.tree.core.root.publisher_positions import published_numbers
from penstock.wire import decode, decode_hops
from penstock.wire.packet import Extension

SYNC_NS_MAX = 2 * NS_PER_MS
TAIL_HALF_SIZE = 256 * 1024
"""Small, so that it is sometimes full; a publisher's block fits, with the root's additions."""


class TreeDisk:
    """Survives crashes of its process, which lose unsynced packets."""

    def __init__(self, world: World, randomness: SeededRandomness, *, is_synced: bool) -> None:
        self.infos: dict[int, StreamInfo] = {}
        self.stores: dict[int, SimulatedRecords[bytes]] = {}
        """Records by stream; record n is packet n."""
        self.is_root = False
        self._world = world
        self._randomness = randomness
        self._is_synced = is_synced
        self.tail = TailMemory(bytearray(2 * TAIL_HALF_SIZE), TAIL_HALF_SIZE)
        self._marks: dict[int, set[int]] = {}
        """Publishers' numbers of removed packets."""

    @property
    def torn(self) -> int:
        return sum(store.torn for store in self.stores.values())

    def define(self, info: StreamInfo) -> None:
        self.infos[info.number] = info
        if info.number not in self.stores:
            self.stores[info.number] = SimulatedRecords(self._world, self._randomness, SYNC_NS_MAX)

    def append(self, instruction: Append, done: Callable[[Appended], None]) -> None:
        """`done` is called when the packet is written or synced, as configured."""
        store = self.stores[instruction.stream]
        if instruction.cut_after is not None:
            store.cut_after(instruction.cut_after)
        first = instruction.through - len(instruction.sizes) + 1
        if first > store.last + 1:
            store.restart_at(first)
        places = zip(instruction.offsets.tolist(), instruction.sizes.tolist(), strict=True)
        added = [instruction.packets[at : at + size] for at, size in places]
        store.append(added)
        if not instruction.is_in_tail:
            self._put(b"".join(added))
        assert store.last == instruction.through, f"record {store.last} is packet {instruction.through}"
        appended = Appended(instruction.stream, instruction.through)
        store.sync(lambda through: done(appended) if self._is_synced else None)
        if not self._is_synced:
            self._world.after(0, store.unless_crashed(lambda: done(appended)))

    def _put(self, packets: bytes) -> None:
        """Write to the tail, as a store does. Recovery may miss the tail: a crash that loses the tail equals a
        failed machine.
        """
        if not self.tail.has_room(len(packets)):
            self.tail.turn()
        self.tail.write(packets)

    def read(self, request: ReadJournal) -> JournalRead:
        store = self.stores[request.stream]
        after = max(request.after, store.first - 1)
        if request.time_ns is not None:
            times = [_time_ns(packet) for packet in store.records()]
            row = next((row for row, time_ns in enumerate(times) if time_ns >= request.time_ns), len(times))
            after = store.first - 1 + row
        found: list[bytes] = []
        size = 0
        for packet in store.records(after + 1):
            if found and size + len(packet) > request.bytes_max:
                break
            found.append(packet)
            size += len(packet)
        return JournalRead(request.request, b"".join(found), after, after + len(found))

    def remove_through(self, stream: int, through: int) -> None:
        """Retention: remove the oldest packets."""
        store = self.stores[stream]
        _mark(self._marks, store.remove_before(through + 1))
        store.durable = max(store.durable, store.first - 1)

    def crash(self) -> None:
        self.tail = TailMemory(bytearray(2 * TAIL_HALF_SIZE), TAIL_HALF_SIZE)
        for store in self.stores.values():
            store.crash()

    def recovered(self, place: str, now_ns: int) -> Start:
        numbers = {publisher_id: set(found) for publisher_id, found in self._marks.items()}
        for store in self.stores.values():
            _mark(numbers, store.records())
        streams = tuple(
            Recovered(info, self.stores[number].first, self.stores[number].last) for number, info in self.infos.items()
        )
        term = max((begins[0] for info in self.infos.values() for begins in info.begins), default=0)
        beyond = {publisher_id: sorted(found) for publisher_id, found in numbers.items()}
        return Start(streams, {}, beyond, term, self.is_root, place, now_ns)


def _mark(marks: dict[int, set[int]], packets: list[bytes]) -> None:
    for publisher_id, numbers in published_numbers(b"".join(packets)).items():
        marks.setdefault(publisher_id, set()).update(numbers)


def _time_ns(packet: bytes) -> int:
    return decode_hops(decode(packet)[0].extensions[Extension.HOPS])[0].time_ns
