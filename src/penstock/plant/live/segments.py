"""The shared memory of a node's local consumers: created, handed over under random names, withdrawn.

Each consumer has a ring of events and a ring of notices, and per message model a region of its adaptive records, with
marks that the consumer writes. Consumers with equal rights may share regions.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from penstock.base.clock import random_bytes
from penstock.base.segment import Segment
from penstock.engine import EVENT_SIZE_MAX
from penstock.engine.control import OpenRegion
from penstock.engine.core.events import Sinks
from penstock.engine.core.kernel._region_sink import RegionSink
from penstock.model import MessageModel
from penstock.plant.config import NodeConfig
from penstock.shm import RegionMarks, RegionWriter, RingWriter

NAME_SIZE = 16


class Offering(Protocol):
    """The service that hands segments over (net.handover)."""

    def offer(self, name: str, segment: Segment) -> None: ...

    def withdraw(self, name: str) -> None: ...


class Placed(NamedTuple):
    """The names under which a local consumer's rings are handed over."""

    ring: str = ""
    notices: str = ""


class _Offered(NamedTuple):
    name: str
    memory: RingWriter | RegionWriter | RegionMarks


class _Region(NamedTuple):
    model: MessageModel
    sink: RegionSink
    offered: tuple[_Offered, ...]


class Parted(NamedTuple):
    """A consumer that needs a new region in place of a shared one, and the region's model."""

    consumer: int
    model: MessageModel
    record_count: int


class Segments:
    """Call it from one thread at a time."""

    def __init__(self, config: NodeConfig, handover: Offering) -> None:
        self._config = config
        self._handover = handover
        self._rings: dict[int, tuple[_Offered, ...]] = {}  # by consumer
        self._regions: dict[tuple[int, int], _Region] = {}  # by consumer and model
        self._shared: dict[tuple[str, int], _Region] = {}  # by entitlement text and model
        self._is_sharing = config.shared_regions and config.engine.offsets == "common"

    def open(self, consumer: int, *, takes_records: bool) -> tuple[Sinks, Placed]:
        """Create the rings of a new consumer; the ring of notices only if the consumer takes records in regions."""
        notices = None
        with self._undone() as offered:
            ring = RingWriter.create(self._config.ring_bytes, EVENT_SIZE_MAX)
            offered.append(self._offer(ring, ring.segment))
            if takes_records:
                notices = RingWriter.create(self._config.notices_bytes, EVENT_SIZE_MAX)
                offered.append(self._offer(notices, notices.segment))
        self._rings[consumer] = tuple(offered)
        return Sinks(ring=ring, notices=notices), Placed(*(each.name for each in offered))

    def open_region(
        self, consumer: int, model: MessageModel, record_count: int, entitled: str
    ) -> tuple[RegionSink, OpenRegion]:
        """Create or share a region for `record_count` records, in place of the consumer's previous one. `entitled`
        is equal for consumers with equal rights."""
        region = self._shared.get((entitled, model.id)) if self._is_sharing else None
        if region is None or region.sink.record_count < record_count:
            region = self._make_region(model, record_count)
            if self._is_sharing:
                self._shared[entitled, model.id] = region
        before = self._regions.get((consumer, model.id))
        self._regions[consumer, model.id] = region
        if before is not None:
            self._release(before)
        names = [each.name for each in region.offered]
        opened = OpenRegion(
            model.id,
            model.version,
            names[0],
            names[1] if len(names) > 1 else "",
            model.record_size,
            region.sink.record_count,
            [part.offset for part in model.parts],
            is_shared=region.sink.is_shared,
        )
        return region.sink, opened

    def part(self, consumer: int) -> list[Parted]:
        """Exclude a consumer that may keep its mappings: return the consumers that share a region with it and need a
        new one, including the consumer itself if it stays. Nobody else joins the old region."""
        own = {id(each) for (number, _), each in self._regions.items() if number == consumer and each.sink.is_shared}
        self._shared = {key: each for key, each in self._shared.items() if id(each) not in own}
        users = ((number, each) for (number, _), each in self._regions.items() if id(each) in own)
        return [Parted(number, each.model, each.sink.record_count) for number, each in users]

    def close(self, consumer: int) -> None:
        """Withdraw all segments of a consumer; existing mappings stay valid."""
        for offered in self._rings.pop(consumer, ()):
            self._withdraw(offered)
        for key in [key for key in self._regions if key[0] == consumer]:
            self._release(self._regions.pop(key))

    def close_all(self) -> None:
        for consumer in [*self._rings, *(consumer for consumer, _ in self._regions)]:
            self.close(consumer)

    def _make_region(self, model: MessageModel, record_count: int) -> _Region:
        marks = None
        with self._undone() as offered:
            region = RegionWriter.create(record_count, [part.size for part in model.parts])
            offered.append(self._offer(region, region.segment))
            if not self._is_sharing:
                marks = RegionMarks.create(record_count)
                offered.append(self._offer(marks, marks.segment))
        return _Region(model, RegionSink(region, marks, is_shared=self._is_sharing), tuple(offered))

    def _release(self, region: _Region) -> None:
        """Withdraw a region unless other consumers use it."""
        if any(each is region for each in self._regions.values()):
            return
        self._shared = {key: each for key, each in self._shared.items() if each is not region}
        for offered in region.offered:
            self._withdraw(offered)

    def _offer(self, memory: RingWriter | RegionWriter | RegionMarks, segment: Segment) -> _Offered:
        name = random_bytes(NAME_SIZE).hex()  # known only to the consumer
        try:
            self._handover.offer(name, segment)
        except BaseException:
            memory.close()
            raise
        return _Offered(name, memory)

    @contextmanager
    def _undone(self) -> Iterator[list[_Offered]]:
        """Withdraw everything offered in this context if it fails half-way."""
        offered: list[_Offered] = []
        try:
            yield offered
        except BaseException:
            for each in offered:
                self._withdraw(each)
            raise

    def _withdraw(self, offered: _Offered) -> None:
        self._handover.withdraw(offered.name)
        offered.memory.close()
