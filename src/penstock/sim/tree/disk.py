"""What a root or standby of a simulated tree has on its disk: of each stream its packets, the newest not yet safe."""

from collections.abc import Callable

from penstock.base.clock import NS_PER_MS
from penstock.sim.randomness import SeededRandomness
from penstock.sim.world import World
from penstock.tree.core.control import StreamInfo
from penstock.tree.core.events import Append, Appended, JournalRead, ReadJournal, Recovered, Start
from penstock.tree.core.kernel._tail import TailMemory
from penstock.tree.core.root.publisher_positions import published_numbers
from penstock.wire import decode, decode_hops
from penstock.wire.packet import Extension

SYNC_NS_MAX = 2 * NS_PER_MS
TAIL_HALF_SIZE = 256 * 1024
"""Small, so that it is full now and then; a publisher's block fits, with what the root adds."""


class TreeDisk:
    """Survives crashes of its process; what was not synced then is torn off somewhere."""

    def __init__(self, world: World, randomness: SeededRandomness, *, is_synced: bool) -> None:
        self.infos: dict[int, StreamInfo] = {}
        self.packets: dict[int, list[bytes]] = {}
        """Record n is at n - 1 - dropped."""
        self.dropped: dict[int, int] = {}
        self.torn = 0
        self.is_root = False
        self._world = world
        self._randomness = randomness
        self._is_synced = is_synced
        self._durable: dict[int, int] = {}
        self._incarnation = 0
        self.tail = TailMemory(bytearray(2 * TAIL_HALF_SIZE), TAIL_HALF_SIZE)
        self._marks: dict[int, set[int]] = {}
        """Publishers' numbers of what is dropped."""

    def last(self, stream: int) -> int:
        return self.dropped.get(stream, 0) + len(self.packets.get(stream, ()))

    def define(self, info: StreamInfo) -> None:
        self.infos[info.number] = info
        self.packets.setdefault(info.number, [])

    def append(self, instruction: Append, done: Callable[[Appended], None]) -> None:
        """`done` is called when it is written, or synced, as the tree is configured."""
        stream = instruction.stream
        packets = self.packets[stream]
        if instruction.cut_after is not None:
            del packets[max(0, instruction.cut_after - self.dropped.get(stream, 0)) :]
            self._durable[stream] = min(self._durable.get(stream, 0), instruction.cut_after)
        first = instruction.through - len(instruction.sizes) + 1
        if first > self.last(stream) + 1:
            packets.clear()
            self.dropped[stream] = first - 1
        places = zip(instruction.offsets.tolist(), instruction.sizes.tolist(), strict=True)
        added = [instruction.packets[at : at + size] for at, size in places]
        packets += added
        if not instruction.is_in_tail:
            self._put(b"".join(added))
        assert self.last(stream) == instruction.through, f"record {self.last(stream)} is packet {instruction.through}"
        appended = Appended(stream, instruction.through)
        incarnation = self._incarnation

        def synced() -> None:
            if incarnation == self._incarnation:
                self._durable[stream] = max(self._durable.get(stream, 0), min(instruction.through, self.last(stream)))
                if self._is_synced:
                    done(appended)

        self._world.after(self._randomness.below(SYNC_NS_MAX), synced)
        if not self._is_synced:
            self._world.after(0, lambda: done(appended) if incarnation == self._incarnation else None)

    def _put(self, packets: bytes) -> None:
        """Into the tail, as a store does. What is there needs not be found again: what a crash tears off here is as
        much as a machine loses, and the tail with it."""
        if not self.tail.has_room(len(packets)):
            self.tail.turn()
        self.tail.write(packets)

    def read(self, request: ReadJournal) -> JournalRead:
        stream = request.stream
        packets, dropped = self.packets[stream], self.dropped.get(stream, 0)
        after = max(request.after, dropped)
        if request.time_ns is not None:
            times = [_time_ns(packet) for packet in packets]
            after = dropped + next((row for row, time_ns in enumerate(times) if time_ns >= request.time_ns), len(times))
        found: list[bytes] = []
        size = 0
        for packet in packets[after - dropped :]:
            if found and size + len(packet) > request.bytes_max:
                break
            found.append(packet)
            size += len(packet)
        return JournalRead(request.request, b"".join(found), after, after + len(found))

    def forget(self, stream: int, through: int) -> None:
        """Retention: the oldest packets go."""
        count = min(max(0, through - self.dropped.get(stream, 0)), len(self.packets.get(stream, ())))
        _mark(self._marks, self.packets[stream][:count])
        del self.packets[stream][:count]
        self.dropped[stream] = self.dropped.get(stream, 0) + count

    def crash(self) -> None:
        self._incarnation += 1
        self.tail = TailMemory(bytearray(2 * TAIL_HALF_SIZE), TAIL_HALF_SIZE)
        for stream, packets in self.packets.items():
            safe = max(0, self._durable.get(stream, 0) - self.dropped.get(stream, 0))
            kept = safe + self._randomness.below(len(packets) - safe + 1) if len(packets) > safe else len(packets)
            self.torn += len(packets) - kept
            del packets[kept:]
            self._durable[stream] = self.last(stream)

    def recovered(self, place: str, now_ns: int) -> Start:
        numbers = {publisher_id: set(found) for publisher_id, found in self._marks.items()}
        for packets in self.packets.values():
            _mark(numbers, packets)
        streams = tuple(
            Recovered(info, self.dropped.get(number, 0) + 1, self.last(number)) for number, info in self.infos.items()
        )
        term = max((begins[0] for info in self.infos.values() for begins in info.begins), default=0)
        beyond = {publisher_id: sorted(found) for publisher_id, found in numbers.items()}
        return Start(streams, {}, beyond, term, self.is_root, place, now_ns)


def _mark(marks: dict[int, set[int]], packets: list[bytes]) -> None:
    for publisher_id, numbers in published_numbers(b"".join(packets)).items():
        marks.setdefault(publisher_id, set()).update(numbers)


def _time_ns(packet: bytes) -> int:
    return decode_hops(decode(packet)[0].extensions[Extension.HOPS])[0].time_ns
