"""The distribution engine: takes updates, and sends every consumer its events in its class.

subscriptions.py has the subscriptions, class_selection.py selects the class of a consumer's items; interests.py
applies both to the kernel, whose interface is kernel/_distribute.pyx.
"""

import weakref
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias

import msgspec
from typing_extensions import Buffer

from penstock.base.clock import Randomness
from penstock.base.core import Tick, refuse
from penstock.base.counters import Cause, Counters
from penstock.base.crc32c import crc32c
from penstock.base.errors import LocalProtocolError, PenstockError, RemoteProtocolError
from penstock.engine.config import EngineConfig
from penstock.engine.core.class_selection import ClassSelector
from penstock.engine.core.classes import NUMBERS, ClassMap
from penstock.engine.core.consumer_records import ClassRecord, ConsumerDistributionRecord
from penstock.engine.core.events import (
    Attach,
    ChangeClasses,
    Detach,
    EngineEvent,
    EngineInstruction,
    Image,
    LearnModel,
    Lost,
    Modify,
    Overrun,
    Ready,
    Reconcile,
    RecordWithdrawn,
    RegionOpened,
    Removed,
    SessionChanged,
    SessionTold,
    Signals,
    Subscribe,
    Unsubscribe,
    Unwanted,
    Updates,
    UpstreamLive,
    Wanted,
)
from penstock.engine.core.interests import Interests
from penstock.engine.core.kernel._distribute import Distributor
from penstock.engine.core.kernel._items import Items
from penstock.engine.core.kernel._metering import Metering
from penstock.engine.core.kernel._pairs import Pairs
from penstock.engine.core.metering_limits import MeteringLimits, interval_ns
from penstock.engine.core.region_requests import RegionRequests
from penstock.engine.core.session_events import decode_session, encode_session, session_id
from penstock.engine.core.signals import Relief, SignalThresholds
from penstock.engine.core.subscriptions import Subscription, Subscriptions, parse_interests
from penstock.middleware.core.events import SessionEvent, SessionKind
from penstock.model import MessageModel
from penstock.topics.table import SEED_SIZE
from penstock.wire import MessageBatch, PacketMessage, find_origin
from penstock.wire.term import SESSION_TAG_SHIFT

UpstreamEvent: TypeAlias = (
    SessionChanged
    | Image
    | RecordWithdrawn
    | Removed
    | UpstreamLive
    | Reconcile
    | SessionTold
    | Lost
    | LearnModel
    | ChangeClasses
    | Signals
)
FEEDS_MAX = 65_535
STREAMS_MAX = 65_536
"""Maximum number of source streams whose current session is tracked."""


class CurrentItem(NamedTuple):
    """The current state of an item; `record` is None if it has none."""

    item: int
    topic: bytes
    model_id: int
    model_version: int
    version: int
    number: int
    record: bytes | None


class DistributionEngine:
    """The core of a ticker plant, a multiplexer and an edge cache; one thread at a time.

    Besides handle(), the data thread may call publish(), distribute() and serve(), then take() for the instructions.
    Messages of unknown models are never conflated.
    """

    def __init__(
        self,
        config: EngineConfig,
        randomness: Randomness,
        counters: Counters | None = None,
        *,
        models: Iterable[MessageModel] = (),
        rules: ClassMap | None = None,
        limits: MeteringLimits | None = None,
        signals: SignalThresholds | None = None,
    ) -> None:
        self.config = config
        self.counters = counters or Counters("engine")
        limits = limits or MeteringLimits()
        self._selector = ClassSelector(config, limits, rules or ClassMap(), signals or SignalThresholds(), models)
        is_metered = "metered" in config.classes
        this = weakref.proxy(self)  # the engine's parts must not keep the engine alive
        node_interval_ns = interval_ns(limits.node_per_second)
        seed = randomness.below(2**64)
        pairs = Pairs(config.pairs_max, config.consumers_max, seed)
        self.kernel = Distributor(
            consumers_max=config.consumers_max,
            items=Items(config.items_max, seed),
            pairs=pairs,
            history_bytes=config.history_bytes,
            budget_bytes=config.budget_bytes,
            weights=(config.weights.critical, config.weights.adaptive, config.weights.metered),
            metering=Metering(pairs, config.consumers_max, node_interval_ns) if is_metered else None,
            is_common=config.offsets == "common",
            serves_all_pending=config.serves_all_pending,
            drops=limits.withheld == "drop",
            admit=lambda topic, model_id, model_version: this._interests.admit(topic, model_id, model_version),
        )
        kernel = self.kernel
        self.counters.watch("messages_dropped", lambda: kernel.oversized, cause=Cause.LENGTH)
        self.counters.watch("messages_dropped", lambda: kernel.fragments, cause=Cause.FRAGMENT)
        table_seed = bytes(randomness.below(256) for _ in range(SEED_SIZE))
        self._subscriptions = Subscriptions(config, self.kernel, table_seed)
        self._interests = Interests(config, self.kernel, self._subscriptions, self._selector, self.counters)
        self._regions = RegionRequests(config, self.kernel, self._selector, self.counters)
        self._attached: dict[int, Attach] = {}
        self._feeds: dict[str, int] = {"": 0}  # numbers of feeds in the kernel
        self._sessions: dict[tuple[str, int], SessionEvent] = {}  # by feed and source stream: the last event
        # by consumer: streams whose sessions were not sent yet
        self._unsent_sessions: dict[int, list[tuple[str, int]]] = {}

    def handle(self, event: EngineEvent, now_ns: int) -> list[EngineInstruction]:
        self._interests.now_ns = now_ns
        answers: list[EngineInstruction] = []
        match event:
            case Updates():
                self._take(event.messages, now_ns, self.feed_number(event.feed))
            case Tick():
                self._interests.reselect_some()
                self.kernel.serve(now_ns)
            case Attach():
                self._attach(event)
            case Detach():
                answers += self._detach(event.consumer)
            case Subscribe():
                answers += self._subscribe(event)
            case Modify():
                self._modify(event)
            case Unsubscribe():
                answers += self._unsubscribe(event)
            case RegionOpened():
                self.kernel.open_region(event.consumer, event.model_id, event.sink)
                self._regions.opened(event.consumer, event.model_id)
                self.kernel.serve_consumer(event.consumer, now_ns)
            case Overrun():
                self._restart(event)
            case _:
                self._handle_upstream(event)
        return answers + self.take()

    def _handle_upstream(self, event: UpstreamEvent) -> None:
        """Events of the upstream node, and changes of models, rules and signals."""
        match event:
            case Image():
                self.kernel.image(
                    event.topic,
                    event.model_id,
                    event.model_version,
                    event.record,
                    event.started_ns,
                    event.version,
                    event.is_repair,
                    self._interests.now_ns,
                    event.session_id,
                )
            case SessionChanged():
                self._change_session(event.event)
            case RecordWithdrawn():
                is_gone = self.kernel.withdraw(event.topic, event.model_id, event.version, self._interests.now_ns)
                self.counters.add("records_withdrawn", int(is_gone))
            case SessionTold():
                self._forward_session(event.body)
            case Reconcile():
                items = self.kernel.items
                gone = [
                    item
                    for item in self._subscriptions.matching(parse_interests(event.topics))
                    if (items.topic(item), items.model(item)[0]) not in event.known
                ]
                self.counters.add("records_withdrawn", self.kernel.withdraw_items(gone, self._interests.now_ns))
            case Removed():
                self._interests.remove(event.topic, event.model_id)
            case UpstreamLive():
                for subscription in self._subscriptions.live_above(event.topics):
                    self._live(subscription)
                    self.kernel.serve_consumer(subscription.consumer, self._interests.now_ns)
            case Lost():
                self.kernel.lose_upstream(self._interests.now_ns)
            case LearnModel():
                if self._selector.learn(event.model):
                    self._interests.learned(event.model.id)
            case ChangeClasses():
                self.kernel.serve(self._interests.now_ns)
                self._selector.change(event.rules)
                self._interests.forget_kinds()
                consumer_classes = self._interests.consumer_classes
                consumer_classes.update(
                    {number: self._selector.renewed(classes) for number, classes in consumer_classes.items()}
                )
                self._interests.reselect_all()
            case Signals():
                if self._selector.read(event.readings, self._interests.now_ns):
                    self.kernel.serve(self._interests.now_ns)
                    self._interests.reselect_all()
            case _:
                refuse(self, event)

    def next_deadline_ns(self) -> int | None:
        if self._interests.has_unselected or (self.config.budget_bytes >= 0 and self.kernel.has_backlog):
            return self._interests.now_ns
        metering = self.kernel.metering
        due_ns = None if metering is None else metering.next_due_ns(self._interests.now_ns)
        deadlines = (self.kernel.consumers.next_pace_ns(), due_ns)
        return min((each for each in deadlines if each is not None), default=None)

    @property
    def relief(self) -> Relief:
        """Shows whether the node sends updates that allow conflation as adaptive instead of critical."""
        return self._selector.relief

    # Calls of the data thread

    def publish(
        self,
        topic: bytes,
        model: MessageModel,
        record: Buffer,
        now_ns: int,
        started_ns: int = 0,
        version: int = 0,
        source: tuple[int, int, int] | None = None,
    ) -> bool:
        """Take one update and serve the consumers of its item. False if the item is not kept, or if the topic is
        invalid.

        `started_ns` is the begin of its processing, by the wall clock. `version` is the item's version at the plant
        that counts it; 0: one more than before. `source` has the feed_number(), source stream and session tag of its
        origin.
        """
        self._interests.now_ns = now_ns
        return self.kernel.publish(topic, model.id, model.version, record, started_ns, version, now_ns, 1, source)

    def distribute(self, batch: MessageBatch, now_ns: int, started_ns: int = 0, feed: int = 0) -> int:
        """Take all messages of a batch from a feed (feed_number()), and serve the consumers of their items. Return
        the number of messages taken."""
        self._interests.now_ns = now_ns
        return self.kernel.distribute(batch, now_ns, started_ns, feed)

    def feed_number(self, name: str) -> int:
        """The number of a feed for distribute(). Feeds beyond the maximum share one number."""
        number = self._feeds.get(name)
        if number is None:
            number = self._feeds[name] = min(len(self._feeds), FEEDS_MAX)
            self.kernel.name_feed(number, crc32c(name.encode()))
        return number

    def serve(self, now_ns: int, budget_bytes: int = -1) -> int:
        """Write waiting events, at most about `budget_bytes`: after a session has sent bytes of its buffer, at
        next_deadline_ns(), or in turns if the output is limited. Return the number of bytes that the classes wrote."""
        self._interests.now_ns = now_ns
        return self.kernel.serve(now_ns, budget_bytes)

    def take(self) -> list[EngineInstruction]:
        """Return the instructions that result from the calls above; handle() returns its own."""
        self._resend_sessions()
        ready = self.kernel.consumers.take_ready()
        answers: list[EngineInstruction] = [Ready(tuple(ready))] if ready else []
        return answers + self._regions.take()

    def take_ready(self) -> list[int]:
        """Consumers whose buffers have events to send, each named once until its driver asks again."""
        return self.kernel.consumers.take_ready()

    def current(self, topics: Sequence[str], count_max: int | None = None) -> list[CurrentItem]:
        """The current state of the matching items, or of the first ones: a static read (TP-1)."""
        items = self.kernel.items
        return [
            CurrentItem(item, items.topic(item), *items.model(item), *items.position(item), items.record(item))
            for item in self._subscriptions.matching(parse_interests(topics))[:count_max]
        ]

    def record(self, consumer: int) -> ConsumerDistributionRecord:
        """The state of a consumer, for operators."""
        attached = self._attached.get(consumer)
        if attached is None:
            raise LocalProtocolError(f"unknown consumer {consumer}")
        counts = self.kernel.counts(consumer)
        subscriptions = self._subscriptions.of(consumer).values()
        sinks = {"ring": attached.sinks.ring, "buffer": attached.sinks.buffer, "notices": attached.sinks.notices}
        served = self._interests.consumer_classes[consumer].served
        return ConsumerDistributionRecord(
            consumer=consumer,
            name=attached.name,
            destination=attached.destination,
            memory=(*(name for name, sink in sinks.items() if sink is not None), *self._regions.of(consumer)),
            subscriptions=len(subscriptions),
            topics=len({each.text for subscription in subscriptions for each in subscription.interests}),
            items=counts["items"],
            classes={name: ClassRecord(**counts[name]) for name in self.config.classes if NUMBERS[name] in served},
            overruns=counts["overruns"],
            receipts=counts["receipts"],
            waiting=counts["waiting"],
            pending=counts["pending"],
            is_behind=counts["is_behind"],
        )

    def records(self, count_max: int | None = None) -> list[ConsumerDistributionRecord]:
        """The state of all consumers, or of those that attached first."""
        return [self.record(consumer) for consumer in islice(self._attached, count_max)]

    @property
    def consumer_count(self) -> int:
        return len(self._attached)

    # Consumers

    def _attach(self, event: Attach) -> None:
        classes = self._selector.consumer_classes(event.name, event.destination, event.classes, event.overrides)
        self.kernel.consumers.attach(event.consumer, event.sinks.ring, event.sinks.buffer, event.sinks.notices)
        if self.kernel.metering is not None:
            per_second = self._selector.limits.consumer_per_second
            self.kernel.metering.limit(event.consumer, interval_ns(per_second), self._interests.now_ns)
        self._subscriptions.attach(event.consumer)
        self._attached[event.consumer], self._interests.consumer_classes[event.consumer] = event, classes

    def _detach(self, consumer: int) -> list[EngineInstruction]:
        if self._attached.pop(consumer, None) is None:
            return []
        del self._interests.consumer_classes[consumer]
        gone = self._subscriptions.detach(consumer)
        self.kernel.detach(consumer)
        self._unsent_sessions.pop(consumer, None)
        self._regions.detach(consumer)
        for subscription in gone:
            self._interests.forget_unused(subscription.items)
        unwanted = self._subscriptions.remove_topics(gone)
        return [Unwanted(unwanted)] if unwanted else []

    def _subscribe(self, event: Subscribe) -> list[EngineInstruction]:
        subscription = self._subscriptions.open(event.consumer, event.number, event.topics, event.cls, event.per_second)
        try:
            self._selector.check(self._interests.consumer_classes[event.consumer], event.cls)
            is_replay = event.after > 0 and self.kernel.critical.begin_replay(event.consumer, event.after)
            matching = self._subscriptions.matching(subscription.interests)
            self._interests.subscribe(subscription, matching, event.after if is_replay else None)
            if event.after and not is_replay:
                self.kernel.refresh_withdrawn(event.consumer)
            self._regions.check(event.consumer)
        except PenstockError:
            self._subscriptions.close(subscription)  # first: the selection for other subscriptions must not include it
            self._interests.unsubscribe(subscription)
            raise
        if len(self._subscriptions.of(event.consumer)) == 1 and not is_replay:  # a replay has its own SESSION events
            running = [key for key, session in self._sessions.items() if session.kind != "end"]
            if self._send_sessions(event.consumer, running):  # older SESSION events may wait to be served
                self.kernel.critical.told_sessions(event.consumer)
        wanted = self._subscriptions.add_topics(subscription)
        if not subscription.awaits:
            self._live(subscription)
        self.kernel.serve_consumer(event.consumer, self._interests.now_ns)
        return [Wanted(wanted)] if wanted else []

    def _live(self, subscription: Subscription) -> None:
        """Report the subscription as live when its refreshes are written, and its regions are open."""
        if not self._regions.postpones(subscription.consumer, subscription.number):
            self.kernel.live(subscription.consumer, subscription.number)

    def _modify(self, event: Modify) -> None:
        subscription = self._subscriptions.get(event.consumer, event.number)
        subscription.per_second = event.per_second
        self._interests.select(subscription, subscription.items)
        self.kernel.serve_consumer(event.consumer, self._interests.now_ns)

    def _unsubscribe(self, event: Unsubscribe) -> list[EngineInstruction]:
        subscription = self._subscriptions.get(event.consumer, event.number)
        self._subscriptions.close(subscription)
        self._interests.unsubscribe(subscription, is_told=event.is_told)
        self.kernel.serve_consumer(event.consumer, self._interests.now_ns)
        unwanted = self._subscriptions.remove_topics([subscription])
        return [Unwanted(unwanted)] if unwanted else []

    def _restart(self, event: Overrun) -> None:
        if event.ring == "notices":
            self.kernel.restart_notices(event.consumer)
        else:
            self.kernel.restart(event.consumer, event.last_number, self._interests.now_ns)
            if event.last_number < self.kernel.critical.sessions_after(event.consumer):
                # session events may be among the lost events
                self._unsent_sessions[event.consumer] = list(self._sessions)
        for subscription in self._subscriptions.of(event.consumer).values():
            if not subscription.awaits:  # its mark may be among the lost events
                self._live(subscription)
        self.kernel.serve_consumer(event.consumer, self._interests.now_ns)
        self.counters.add("rings_overrun")

    def _change_session(self, event: SessionEvent) -> None:
        """A feed of this node reports that a session began, ended, or is running."""
        known = self._sessions.get((event.feed, event.stream_id))
        if not self._note_session(event):
            return
        tag = event.tag
        if known is not None and known.tag == tag and known.session and not event.has_name_of(known):
            tag = 0  # two sessions may have the same tag: nothing of the other one has arrived yet
        feed, now_ns = self.feed_number(event.feed), self._interests.now_ns
        count = self.kernel.withdraw_stream(feed, event.stream_id, tag, event.kind != "end", now_ns)
        self.counters.add("records_withdrawn", count)
        self._send_session(event, is_first=known is None)

    def _forward_session(self, body: bytes) -> None:
        """The upstream node reports a session. It withdraws its records itself, but after a restart it has no
        records of an earlier session."""
        try:
            event = decode_session(body)
        except RemoteProtocolError:
            self.counters.add("messages_dropped", cause=Cause.MESSAGE)
            return
        known = self._sessions.get((event.feed, event.stream_id))
        is_new = self._note_session(event)
        running = {session_id(each) for each in self._sessions.values() if each.kind != "end"}
        over = event if event.kind == "end" else known
        ended = {session_id(over)} - running if over is not None else set()
        count = self.kernel.withdraw_sessions(ended, running, self._interests.now_ns)
        self.counters.add("records_withdrawn", count)
        if is_new:
            self._send_session(event, is_first=known is None)

    def _note_session(self, event: SessionEvent) -> bool:
        """True if consumers do not know this state of the session yet."""
        key = event.feed, event.stream_id
        known = self._sessions.get(key)
        if event.repeats(known):
            return False
        if known is None and len(self._sessions) >= STREAMS_MAX:
            self.counters.add("requests_refused", cause=Cause.STATE_LIMIT)
            return False
        self._sessions[key] = event
        return True

    def _send_session(self, event: SessionEvent, *, is_first: bool) -> None:
        if event.kind == "running" and not is_first:  # its begin was missed
            event = msgspec.structs.replace(event, kind="begin")
        self.kernel.send_session(encode_session(event), self._interests.now_ns)

    def _resend_sessions(self) -> None:
        """Send the current sessions to consumers that lost events or had no room for them."""
        for consumer in self.kernel.critical.take_sessions_lost():
            self._unsent_sessions[consumer] = list(self._sessions)
        for consumer, keys in list(self._unsent_sessions.items()):
            self._send_sessions(consumer, keys)

    def _send_sessions(self, consumer: int, keys: list[tuple[str, int]]) -> bool:
        """Send the current sessions of these streams to a consumer that joined late or lost events. False if there was
        no room for all of them; the others are sent later."""
        for at, key in enumerate(keys):
            event = self._sessions[key]
            kind: SessionKind = "end" if event.kind == "end" else "running"
            if not self.kernel.send_session_to(consumer, encode_session(msgspec.structs.replace(event, kind=kind))):
                if consumer not in self._unsent_sessions:
                    self.counters.add("sessions_deferred")
                self._unsent_sessions[consumer] = keys[at:]
                return False
        self._unsent_sessions.pop(consumer, None)
        return True

    def _take(self, messages: MessageBatch | Sequence[PacketMessage], now_ns: int, feed: int) -> None:
        if isinstance(messages, MessageBatch):
            self.kernel.distribute(messages, now_ns, 0, feed)
            return
        for message in messages:
            topic, source = message.topic.encode(), _source_of(message, feed)
            self.kernel.publish(
                topic, message.model_id, message.model_version, message.payload, 0, 0, now_ns, 1, source
            )


def _source_of(message: PacketMessage, feed: int) -> tuple[int, int, int] | None:
    origin = find_origin(message.extensions)
    return None if origin is None else (feed, origin.stream_id, origin.flags >> SESSION_TAG_SHIFT)
