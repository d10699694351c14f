"""Reads records that a node writes into shared memory, and watches them for changes."""

import threading
import time
from collections import deque
from collections.abc import Sequence

import msgspec

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import (
    LocalProtocolError,
    NotFoundError,
    OverrunError,
    PenstockError,
    ProducerGoneError,
    RemoteProtocolError,
    RingClosedError,
)
from penstock.base.log import logger
from penstock.engine.client._notices import Notices
from penstock.engine.client._store import RecordState, RecordStore
from penstock.engine.client._watch import Watch
from penstock.engine.client.consumer import NO_GUARD, SLICE_S, ConsumerRequest, ModelFinder, NodeConsumer
from penstock.engine.client.filter_watch import FOREVER_S, FilterWatch, Region
from penstock.engine.client.filters import NotificationFilter
from penstock.engine.client.inbox import Attached, Detached, RegionOpened
from penstock.engine.client.sources import RecordCounts
from penstock.engine.core.kernel._event import NO_SLOT, Event, EventKind, read_events
from penstock.engine.core.session_events import decode_session
from penstock.middleware.core.events import SessionEvent
from penstock.model import MessageModel
from penstock.net.guard import Guard
from penstock.shm import RingReader

log = logger("engine.records")

DEFINE, REMOVE, LIVE = int(EventKind.DEFINE), int(EventKind.REMOVE), int(EventKind.LIVE)
SESSION = int(EventKind.SESSION)

SESSIONS_MAX = 1_000


class _Place(msgspec.Struct, frozen=True):
    topic: str
    model_id: int
    slot: int


class RecordsReader(NodeConsumer):
    """Any thread may read. One thread at a time handles messages of the node; the others continue without waiting."""

    def __init__(self, request: ConsumerRequest, models: ModelFinder | None = None, guard: Guard = NO_GUARD) -> None:
        self._attached: Attached | None = None
        self._ring: RingReader | None = None
        self._notices = Notices()
        self._regions: dict[int, Region] = {}
        self._items: dict[int, _Place] = {}
        self._places: dict[str, _Place] = {}
        self._filter_watches: dict[int, FilterWatch] = {}
        self._watch_number = 0
        self._overruns = 0
        self._sessions: deque[SessionEvent] = deque(maxlen=SESSIONS_MAX)
        self._ended = [0, 0, 0]  # reads, withheld, unavailable: sums of closed regions and watches
        self._is_live = False
        self._is_over = False
        self._messages_lock = threading.RLock()
        super().__init__(request, models, guard)

    # Reading

    def topics(self) -> list[str]:
        self._handle_messages(0.0)
        return [topic for topic, place in list(self._places.items()) if not self._is_withdrawn(place)]

    def _is_withdrawn(self, place: _Place) -> bool:
        region = self._regions.get(place.model_id)
        try:
            return region is not None and region.store.is_withdrawn(place.slot)
        except LocalProtocolError:
            return False  # another thread has replaced the region

    def sessions(self) -> list[SessionEvent]:
        """The session events of source streams, oldest first."""
        self._handle_messages(0.0)
        return list(self._sessions)

    def read(self, topic: str, timeout: float | None, *, only_updated: bool) -> RecordState | None:
        deadline = time.monotonic() + (FOREVER_S if timeout is None else timeout)
        wait = 0.0
        while True:
            self._handle_messages(wait)
            place = self._places.get(topic)
            region = None if place is None else self._regions.get(place.model_id)
            if place is not None and region is not None:
                left_ns = int(max(0.0, min(deadline - time.monotonic(), SLICE_S)) * NS_PER_SECOND)
                if (state := self._read(region, place, only_updated, left_ns)) is not None:
                    return state
            wait = min(deadline - time.monotonic(), SLICE_S)
            if wait <= 0:
                return None

    def _read(self, region: Region, place: _Place, only_updated: bool, timeout_ns: int) -> RecordState | None:
        try:
            if only_updated and not region.store.is_updated(place.slot):
                return None
            state = region.store.read(place.slot, timeout_ns)
            return None if state is None or state.is_withdrawn else state
        except LocalProtocolError:
            if self._regions.get(place.model_id) is region:
                raise
            return None  # another thread has replaced the region

    def is_updated(self, topic: str) -> bool:
        place, region = self._place(topic)
        return region is not None and region.store.is_updated(place.slot)

    def delta(self, topic: str) -> tuple[str, ...]:
        place, region = self._place(topic)
        return () if region is None else region.store.delta(place.slot)

    def _place(self, topic: str) -> tuple[_Place, Region | None]:
        self._handle_messages(0.0)
        place = self._places.get(topic)
        if place is None:
            raise NotFoundError(f"no record of {topic!r}", hint="check that it matches the subscription")
        return place, self._regions.get(place.model_id)

    # Changes

    def watch(self, rule: NotificationFilter) -> int:
        with self._messages_lock:
            self._check(rule)
            self._watch_number += 1
            filter_watch = self._filter_watches[self._watch_number] = FilterWatch(rule)
            for model_id, region in self._regions.items():
                filter_watch.add(model_id, region)
                self._route(model_id)
            return self._watch_number

    def change_watch(self, number: int, rule: NotificationFilter) -> None:
        with self._messages_lock:
            self._check(rule)
            self._filter_watch(number).change(rule)

    def end_watch(self, number: int) -> None:
        with self._messages_lock:
            filter_watch = self._filter_watches.pop(number, None)
            if filter_watch is not None:
                for model_id, watch in filter_watch.watches.items():
                    self._keep_counts(watch)
                    self._route(model_id)

    def take_changes(self, number: int, count_max: int, timeout: float) -> list[tuple[str, RecordState]]:
        """Changes that pass the filter, at most `count_max`; waits up to `timeout` for the first."""
        deadline = time.monotonic() + timeout
        wait = 0.0
        while True:
            self._handle_messages(wait)
            filter_watch = self._filter_watch(number)
            now_ns, wall_ns = time.monotonic_ns(), time.time_ns()
            found: list[tuple[str, RecordState]] = []
            while len(found) < count_max and (told := filter_watch.next(now_ns, wall_ns)) is not None:
                model_id, slot, state = told
                topic = self._regions[model_id].topics.get(slot)
                if topic is not None:
                    found.append((topic, state))
            left = deadline - time.monotonic()
            if found or left <= 0:
                return found
            wait = min(left, SLICE_S, filter_watch.wait_s(now_ns, wall_ns))

    def models(self) -> list[MessageModel]:
        """The models of the open regions."""
        return [region.model for region in list(self._regions.values())]

    def is_live(self) -> bool:
        """True if all records that existed at the subscription can be read."""
        self._handle_messages(0.0)
        return self._is_live and all(place.model_id in self._regions for place in list(self._items.values()))

    def counted(self) -> RecordCounts:
        reads, withheld, unavailable = self._ended
        watches = [watch for each in list(self._filter_watches.values()) for watch in list(each.watches.values())]
        return RecordCounts(
            topics=len(self._places),
            reads=reads + sum(region.store.read_count for region in list(self._regions.values())),
            notices=self._notices.count,
            withheld=withheld + sum(watch.withheld for watch in watches),
            unavailable=unavailable + sum(watch.unavailable for watch in watches),
            overruns=self._overruns,
            detachments=self.detachments,
        )

    def close(self) -> None:
        self._is_over = True
        super().close()
        with self._messages_lock:
            self._leave()
            self._forget()

    def _filter_watch(self, number: int) -> FilterWatch:
        filter_watch = self._filter_watches.get(number)
        if filter_watch is None:
            raise LocalProtocolError("these changes are closed")
        return filter_watch

    def _check(self, rule: NotificationFilter) -> None:
        """Raise an error for fields that no known model has."""
        models = self.models()
        for model in models:
            rule.moves_in(model)
        for name in (*rule.fields, *rule.moved):
            if models and not any(name in model.fields_by_name for model in models):
                raise LocalProtocolError(f"no record has a field {name!r}")

    def _keep_counts(self, watch: Watch) -> None:
        self._ended[1] += watch.withheld
        self._ended[2] += watch.unavailable

    # Messages of the node

    def _handle_messages(self, timeout: float) -> None:
        """Handle messages of the node that are available or arrive within the timeout, unless another thread does."""
        if not self._messages_lock.acquire(timeout=max(timeout, 0.0)):
            return
        try:
            self._handle_notifications()
            if self._ring is not None:
                self._drain(self._ring, int(max(timeout, 0.0) * NS_PER_SECOND))
            elif timeout > 0:
                self._inbox.wait(timeout)
                self._handle_notifications()
        finally:
            self._messages_lock.release()

    def _handle_notifications(self) -> None:
        if self._is_over:
            raise LocalProtocolError("the records are closed")
        self.raise_if_over()
        while (told := self._inbox.take()) is not None:
            match told:
                case Attached():
                    self._leave()
                    self._forget()
                    self._attached = told
                    self.epoch = told.welcome.epoch
                    if told.notices is not None:
                        self._ring = RingReader(told.notices, wait=self.request.wait)
                case RegionOpened():
                    self._open(told)
                case Detached():
                    self.detachments += 1
                    self._is_live = False
                    self._leave()
                case _:
                    told.close()

    def _drain(self, ring: RingReader, timeout_ns: int) -> None:
        try:
            if rest := self._notices.drain(ring, timeout_ns):
                self._take_events(read_events(rest))
        except (OverrunError, RemoteProtocolError) as error:
            log.info("notices_overrun", error=str(error))
            self._overruns += 1
            if not self._restart("notices"):
                self._leave()
                return
            ring.restart()
            for filter_watch in self._filter_watches.values():
                for watch in filter_watch.watches.values():
                    watch.look()
        except (ProducerGoneError, RingClosedError):
            self._leave()

    def _take_events(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.kind == DEFINE:
                self._define(event)
            elif event.kind == REMOVE:
                self._remove(event.item)
            elif event.kind == LIVE:
                self._is_live = True
            elif event.kind == SESSION:
                self._sessions.append(decode_session(event.session))

    def _define(self, event: Event) -> None:
        place = _Place(event.topic.decode("utf-8", "replace"), event.model_id, event.slot)
        if self._items.get(event.item) == place or event.slot == NO_SLOT:
            return
        self._remove(event.item)
        self._items[event.item] = self._places[place.topic] = place
        if place.model_id in self._regions:
            self._admit(place)

    def _admit(self, place: _Place) -> None:
        region = self._regions[place.model_id]
        if not 0 <= place.slot < region.store.record_count:
            log.warning("slot_refused", topic=place.topic, slot=place.slot)
            return
        region.topics[place.slot] = place.topic
        region.store.forget(place.slot)
        for filter_watch in self._filter_watches.values():
            filter_watch.watches[place.model_id].admit(place.slot)

    def _remove(self, item: int) -> None:
        place = self._items.pop(item, None)
        if place is None:
            return
        if self._places.get(place.topic) is place:
            del self._places[place.topic]
        region = self._regions.get(place.model_id)
        if region is not None and region.topics.pop(place.slot, None) is not None:
            for filter_watch in self._filter_watches.values():
                filter_watch.watches[place.model_id].expel(place.slot)

    def _open(self, opened: RegionOpened) -> None:
        """Open the region with the records of a model, in place of the previous one."""
        model_id = opened.opened.model_id
        model = self.model(model_id, opened.opened.model_version)
        try:
            if model is None:
                raise LocalProtocolError(f"model {model_id} is unknown")
            store = RecordStore(opened.segment, model, opened.marks, is_converting=self.request.is_converting)
        except PenstockError as error:
            log.warning("region_refused", model_id=model_id, error=str(error))
            opened.close()
            return
        self._close_region(model_id)
        self._regions[model_id] = region = Region(opened, store, model)
        for filter_watch in self._filter_watches.values():
            filter_watch.add(model_id, region)
        for place in [each for each in self._items.values() if each.model_id == model_id]:
            self._admit(place)
        self._route(model_id)

    def _route(self, model_id: int) -> None:
        self._notices.route(model_id, [each.watches[model_id] for each in self._filter_watches.values()])

    def _close_region(self, model_id: int) -> None:
        region = self._regions.pop(model_id, None)
        if region is not None:
            self._ended[0] += region.store.read_count
            region.close()
            for filter_watch in self._filter_watches.values():
                self._keep_counts(filter_watch.watches.pop(model_id))

    def _forget(self) -> None:
        """Discard items and regions: the next connection defines them again."""
        for model_id in list(self._regions):
            self._close_region(model_id)
            self._notices.route(model_id, [])
        self._items.clear()
        self._places.clear()

    def _leave(self) -> None:
        ring, self._ring = self._ring, None
        if ring is not None:
            ring.close()
        attached, self._attached = self._attached, None
        if attached is not None:
            attached.close()
