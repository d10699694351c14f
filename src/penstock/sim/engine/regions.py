"""Records in shared memory of an application in a simulated distribution plant: regions by model, the places of topics
in them, and a ring of notices; for the reader and for observers.
"""

import fcntl
import os
from typing import NamedTuple

from penstock.base.errors import RecordUnavailableError
from penstock.base.segment import Segment
from penstock.engine import Event, read_events
from penstock.engine.client._store import RecordState, RecordStore
from penstock.engine.core.kernel._event import NO_SLOT, EventKind
from penstock.model import MessageModel
from penstock.shm import RegionReader, RegionWriter, RingReader, RingWriter
from penstock.shm._region import REGION_HEADER_SIZE
from penstock.shm.memory import SEALS_OF_SIZE
from penstock.sim.randomness import SeededRandomness

NOTICES_SIZE = 8_192
NOTICE_SIZE_MAX = 304
WORD = 8


class Place(NamedTuple):
    """Location of a topic's record in the region of its model."""

    topic: str
    model_id: int
    slot: int


class OpenedRegion:
    """Mapped until close()."""

    def __init__(self, model: MessageModel, region: Segment, marks: Segment | None) -> None:
        self.model = model
        self.is_shared = marks is None
        self.store = RecordStore(region, model, marks)
        self._segments = [each for each in (region, marks) if each is not None]
        self._tap = RegionReader(region, model)
        self._fd = region.fds[0]
        self._stride = (os.fstat(self._fd).st_size - REGION_HEADER_SIZE) // self.store.record_count

    def peek(self, slot: int) -> int:
        """The number of the current record, read without leaving a mark; 0 if there is none."""
        record = self._tap.read(slot)
        return 0 if record is None else int(record.message.number)

    def image(self, slot: int) -> bytes:
        """Every byte of a record, with its header and checksums."""
        return os.pread(self._fd, self._stride, REGION_HEADER_SIZE + slot * self._stride)

    def close(self) -> None:
        self.store.close()
        self._tap.close()
        for each in self._segments:
            each.close()


class ReadAmid(NamedTuple):
    """The content read from a record while it was being written; None: unreadable."""

    record: bytes | None
    before: bytes | None
    after: bytes | None


class HalfWritten:
    """A record during a write: some of its words are still the previous ones."""

    def __init__(self, model: MessageModel) -> None:
        with RegionWriter.create(1, [part.size for part in model.parts]) as blank:
            content = os.pread(blank.segment.fds[0], 2**20, 0)
        self._fd = os.memfd_create("penstock-sim", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.write(self._fd, content)
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, SEALS_OF_SIZE)
        self._segment = Segment("region", (self._fd,))
        self._reader = RegionReader(self._segment, model)

    def read(self, before: bytes, after: bytes, randomness: SeededRandomness) -> ReadAmid:
        """Return the content of a read during a write. The generation, which is written first and last, is the
        previous one or marks the write."""
        mixed = bytearray(before)
        for at in range(WORD, len(before), WORD):
            if before[at : at + WORD] != after[at : at + WORD] and randomness.chance(0.5):
                mixed[at : at + WORD] = after[at : at + WORD]
        if randomness.chance(0.5):
            mixed[0] |= 1
        return ReadAmid(self._read(bytes(mixed)), self._read(before), self._read(after))

    def _read(self, image: bytes) -> bytes | None:
        os.pwrite(self._fd, image, REGION_HEADER_SIZE)
        try:
            record = self._reader.read(0)
        except RecordUnavailableError:
            return None
        return None if record is None else record.payload

    def close(self) -> None:
        self._reader.close()
        self._segment.close()


class RecordsIntake:
    """The regions of one connection. The reader's view is as new as its notifications; the other view is current."""

    def __init__(self, notices: RingWriter, models: dict[int, MessageModel]) -> None:
        self.regions: dict[int, OpenedRegion] = {}
        """Regions by model, as known to the reader."""
        self.places: dict[str, Place] = {}
        """Places by topic, as known to the reader."""
        self.noticed: dict[str, None] = {}
        """Topics with notices of writes that the reader has not read yet."""
        self.written: dict[str, Place] = {}
        """Places by topic, as sent by the node."""
        self.numbers: dict[str, int] = {}
        """The number of the record at the last observation, by topic."""
        self._models = models
        self._reader, self._tap = RingReader(notices.segment), RingReader(notices.segment)
        self._items: dict[int, Place] = {}
        self._tapped: dict[int, Place] = {}
        self._current: dict[int, OpenedRegion] = {}
        self._images: dict[tuple[int, int], bytes] = {}
        self._half_written: dict[int, HalfWritten] = {}

    # The node

    def tell(self, model: MessageModel, region: Segment, marks: Segment | None) -> OpenedRegion:
        """The node writes records of the model there from now on; the reader is notified later."""
        before = self._current.get(model.id)
        opened = self._current[model.id] = OpenedRegion(model, region, marks)
        if before is not None and self.regions.get(model.id) is not before:
            before.close()
        self._images = {key: image for key, image in self._images.items() if key[0] != model.id}
        return opened

    def peek(self, topic: str) -> int:
        """The number of the record that the node has written of the topic; 0 for none."""
        place = self.written.get(topic)
        region = None if place is None else self._current.get(place.model_id)
        return 0 if place is None or region is None else region.peek(place.slot)

    def observe(self) -> list[tuple[Place, bytes, bytes]]:
        """Process the records overwritten since the last call: their content before and after."""
        overwritten = []
        self._tap.restart()
        while (payload := self._tap.read(0)) is not None:
            for event in read_events(payload):
                if event.kind == EventKind.DEFINE:
                    place = _place(event)
                    self._tapped[event.item] = self.written[place.topic] = place
                elif event.kind == EventKind.REMOVE and (gone := self._tapped.pop(event.item, None)) is not None:
                    if self.written.get(gone.topic) is gone:
                        del self.written[gone.topic]
                elif event.kind == EventKind.NOTICE and (region := self._current.get(event.model_id)) is not None:
                    key, image = (event.model_id, event.slot), region.image(event.slot)
                    before, self._images[key] = self._images.get(key), image
                    self.numbers[self._tapped[event.item].topic] = region.peek(event.slot)
                    if before is not None and before != image:
                        overwritten.append((self._tapped[event.item], before, image))
        return overwritten

    def half_written(self, place: Place, before: bytes, after: bytes, randomness: SeededRandomness) -> ReadAmid:
        """The content for a reader during a write."""
        if place.model_id not in self._half_written:
            self._half_written[place.model_id] = HalfWritten(self._models[place.model_id])
        return self._half_written[place.model_id].read(before, after, randomness)

    # The reader

    def open(self, opened: OpenedRegion) -> None:
        """The reader has learned of a region. Noticed records are still to be read."""
        if self._current.get(opened.model.id) is not opened:
            return  # the region is no longer in use
        if (before := self.regions.get(opened.model.id)) is not None:
            before.close()
        self.regions[opened.model.id] = opened
        self.noticed |= {each.topic: None for each in self.places.values() if each.model_id == opened.model.id}

    def drain(self) -> list[int]:
        """Read all notices; returns the subscriptions that are live. Raises OverrunError if the ring has overrun the
        reader.
        """
        lives = []
        while (payload := self._reader.read(0)) is not None:
            for event in read_events(payload):
                match event.kind:
                    case EventKind.DEFINE:
                        self._define(event)
                    case EventKind.REMOVE:
                        self.forget(event.item)
                    case EventKind.NOTICE if event.item in self._items:
                        self.noticed[self._items[event.item].topic] = None
                    case EventKind.LIVE:
                        lives.append(event.subscription)
        return lives

    def _define(self, event: Event) -> None:
        place = _place(event)
        if self._items.get(event.item) == place or place.slot == NO_SLOT:
            return
        self.forget(event.item)
        self._items[event.item] = self.places[place.topic] = place
        if (region := self.regions.get(place.model_id)) is not None:
            region.store.forget(place.slot)

    def forget(self, item: int) -> None:
        place = self._items.pop(item, None)
        if place is not None and self.places.get(place.topic) is place:
            del self.places[place.topic]

    def release(self, topic: str) -> None:
        """The consumer has unsubscribed."""
        for item in [item for item, place in self._items.items() if place.topic == topic]:
            self.forget(item)
        self.places.pop(topic, None)
        self.written.pop(topic, None)

    def restart(self) -> bool:
        return self._reader.restart()

    def is_updated(self, topic: str) -> bool:
        place = self.places[topic]
        return self.regions[place.model_id].store.is_updated(place.slot)

    def read(self, topic: str) -> RecordState | None:
        """The newest record, if there is one."""
        place = self.places.get(topic)
        region = None if place is None else self.regions.get(place.model_id)
        if place is None or region is None:
            return None
        self.noticed.pop(topic, None)
        return region.store.read(place.slot)

    def close(self) -> None:
        for region in {id(each): each for each in (*self.regions.values(), *self._current.values())}.values():
            region.close()
        for half in self._half_written.values():
            half.close()
        self._reader.close()
        self._tap.close()


def _place(event: Event) -> Place:
    return Place(event.topic.decode(), event.model_id, event.slot)
