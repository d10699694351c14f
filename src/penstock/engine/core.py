"""The distribution engine: updates in; to every consumer its events, in its class.

_distribute.pyx is what happens to an update, _consumers.pyx what waits for one consumer alone, _items.pyx what is
known; subscriptions.py knows who wants what.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from typing_extensions import Buffer

from penstock.base.clock import Randomness
from penstock.base.core import Tick, refuse
from penstock.base.counters import Cause, Counters
from penstock.base.errors import LocalProtocolError, PenstockError
from penstock.engine._distribute import Distributor
from penstock.engine._event import TransmissionClass
from penstock.engine.config import EngineConfig
from penstock.engine.control import ClassWish
from penstock.engine.events import (
    Attach,
    Detach,
    EngineEvent,
    EngineInstruction,
    Image,
    Lost,
    Overrun,
    Ready,
    Subscribe,
    Unsubscribe,
    Unwanted,
    Updates,
    UpstreamLive,
    Wanted,
)
from penstock.engine.records import ClassRecord, ConsumerDistributionRecord
from penstock.engine.subscriptions import Subscription, SubscriptionBook, parse_interests
from penstock.model import MessageModel
from penstock.topics import check_topic
from penstock.topics.table import SEED_SIZE
from penstock.wire import MessageBatch, PacketMessage

_CLASSES = {
    "critical": TransmissionClass.CRITICAL,
    "adaptive": TransmissionClass.ADAPTIVE,
    "metered": TransmissionClass.METERED,
}


class Current(NamedTuple):
    """An item as it is now; `record` is None if there is none yet."""

    item: int
    topic: bytes
    model_id: int
    model_version: int
    version: int
    number: int
    record: bytes | None


class DistributionEngine:
    """The core of a ticker plant, a multiplexer and an edge cache; one thread at a time.

    Besides handle(), the data thread may call publish(), distribute() and serve(), and take_ready() for what a Ready
    instruction says. It must know the models of what it distributes: messages of others are nonconflatable.
    """

    def __init__(
        self,
        config: EngineConfig,
        randomness: Randomness,
        counters: Counters | None = None,
        *,
        models: Iterable[MessageModel] = (),
    ) -> None:
        self.config = config
        self.counters = counters or Counters("engine")
        self._models = {model.id: model for model in models}
        self.kernel = Distributor(
            consumers_max=config.consumers_max,
            items_max=config.items_max,
            pairs_max=config.pairs_max,
            seed=randomness.below(2**64),
            history_bytes=config.history_bytes,
            budget_bytes=config.budget_bytes,
            admit=self._admit,
        )
        seed = bytes(randomness.below(256) for _ in range(SEED_SIZE))
        self._book = SubscriptionBook(config, self.kernel, seed)
        self._consumers: dict[int, Attach] = {}

    def handle(self, event: EngineEvent, now_ns: int) -> list[EngineInstruction]:
        answers: list[EngineInstruction] = []
        match event:
            case Updates():
                self._take(event.messages, now_ns)
            case Tick():
                self.kernel.serve(now_ns)
            case Attach():
                self.kernel.attach(event.consumer, event.sinks.ring, event.sinks.buffer)
                self._book.attach(event.consumer)
                self._consumers[event.consumer] = event
            case Detach():
                answers += self._detach(event.consumer)
            case Subscribe():
                answers += self._subscribe(event, now_ns)
            case Unsubscribe():
                answers += self._unsubscribe(event, now_ns)
            case Overrun():
                self.kernel.restart(event.consumer, event.last_number, now_ns)
                self.counters.add("rings_overrun")
            case Image():
                self.kernel.image(
                    event.topic,
                    event.model_id,
                    event.model_version,
                    event.record,
                    event.started_ns,
                    event.version,
                    event.is_repair,
                    now_ns,
                )
            case UpstreamLive():
                self._upstream_live(event.topics, now_ns)
            case Lost():
                self.kernel.lose_upstream(now_ns)
            case _:
                refuse(self, event)
        ready = self.kernel.take_ready()
        return [*answers, Ready(tuple(ready))] if ready else answers

    def next_deadline_ns(self) -> int | None:
        return self.kernel.next_pace_ns()

    # What the data thread calls

    def publish(
        self, topic: bytes, model: MessageModel, record: Buffer, now_ns: int, started_ns: int = 0, version: int = 0
    ) -> bool:
        """Take one update and serve whom it concerns: False if it is of no interest here, or its topic is none.

        `started_ns` is when its processing began, by the wall clock. `version` is the item's at the plant that counts
        it; 0: one more than before.
        """
        return self.kernel.publish(topic, model.id, model.version, record, started_ns, version)

    def distribute(self, batch: MessageBatch, now_ns: int, started_ns: int = 0) -> int:
        """Take all messages of a batch and serve whom they concern; how many were taken."""
        return self.kernel.distribute(batch, started_ns)

    def serve(self, now_ns: int, budget_bytes: int = -1) -> int:
        """Write what waits, at most about `budget_bytes`: after a session took bytes out of its buffer, or in turns
        where the output is limited. Returns how many critical updates still wait."""
        return self.kernel.serve(now_ns, budget_bytes)

    def take_ready(self) -> list[int]:
        """Consumers whose buffers have something to send, each named once until its driver has asked."""
        return self.kernel.take_ready()

    def current(self, topics: Sequence[str]) -> list[Current]:
        """The items that match, as they are now: a static read (TP-1)."""
        items = self.kernel.items
        return [
            Current(item, items.topic(item), *items.model(item), *items.position(item), items.record(item))
            for item in self._book.matching(parse_interests(topics))
        ]

    def record(self, consumer: int) -> ConsumerDistributionRecord:
        """What the operator sees of a consumer."""
        attached = self._consumers.get(consumer)
        if attached is None:
            raise LocalProtocolError(f"there is no consumer {consumer}")
        tally = self.kernel.tally(consumer)
        subscriptions = self._book.of(consumer).values()
        sinks = attached.sinks
        return ConsumerDistributionRecord(
            consumer=consumer,
            name=attached.name,
            destination=attached.destination,
            memory=tuple(name for name, sink in (("ring", sinks.ring), ("buffer", sinks.buffer)) if sink is not None),
            subscriptions=len(subscriptions),
            topics=len({each.text for subscription in subscriptions for each in subscription.interests}),
            items=tally["items"],
            classes={name: ClassRecord(**tally[name]) for name in self.config.classes},
            overruns=tally["overruns"],
            receipts=tally["receipts"],
            waiting=tally["waiting"],
            is_behind=tally["is_behind"],
        )

    def records(self, count_max: int | None = None) -> list[ConsumerDistributionRecord]:
        """Of all consumers, or of those that have been here longest."""
        return [self.record(consumer) for consumer in islice(self._consumers, count_max)]

    @property
    def consumer_count(self) -> int:
        return len(self._consumers)

    # Consumers

    def _subscribe(self, event: Subscribe, now_ns: int) -> list[EngineInstruction]:
        cls = self._class_of(event.cls)
        subscription = self._book.open(event.consumer, event.number, event.topics, cls)
        try:
            for item in self._book.matching(subscription.interests):
                self.kernel.want(event.consumer, item, cls)
                subscription.items.append(item)
        except PenstockError:
            self._drop_items(subscription)
            self._book.close(subscription)
            raise
        wanted = self._book.want(subscription)
        if not subscription.awaits:
            self.kernel.live(event.consumer, event.number)
        self.kernel.attend_to(event.consumer, now_ns)
        return [Wanted(wanted)] if wanted else []

    def _class_of(self, wish: ClassWish) -> TransmissionClass:
        name = self.config.default_class if wish == "auto" else wish
        if name not in self.config.classes:
            raise LocalProtocolError(
                f"this node does not serve the {name} class", hint=" or ".join(self.config.classes)
            )
        return _CLASSES[name]

    def _unsubscribe(self, event: Unsubscribe, now_ns: int) -> list[EngineInstruction]:
        subscription = self._book.of(event.consumer).get(event.number)
        if subscription is None:
            raise LocalProtocolError(f"consumer {event.consumer} has no subscription {event.number}")
        self._drop_items(subscription)
        self._book.close(subscription)
        self.kernel.attend_to(event.consumer, now_ns)
        unwanted = self._book.unwant([subscription])
        return [Unwanted(unwanted)] if unwanted else []

    def _drop_items(self, subscription: Subscription) -> None:
        for item in subscription.items:
            self.kernel.unwant(subscription.consumer, item, True)
            self._forget(item)

    def _detach(self, consumer: int) -> list[EngineInstruction]:
        if self._consumers.pop(consumer, None) is None:
            return []
        gone = self._book.detach(consumer)
        self.kernel.detach(consumer)
        for subscription in gone:
            for item in subscription.items:
                self._forget(item)
        unwanted = self._book.unwant(gone)
        return [Unwanted(unwanted)] if unwanted else []

    # Items

    def _admit(self, topic: bytes, model_id: int, model_version: int) -> int | None:
        """A new item, with those that want it; None if it is not one for this node."""
        try:
            text = topic.decode()
            check_topic(text)
        except (UnicodeDecodeError, PenstockError):
            self.counters.add("messages_dropped", cause=Cause.TEXT)
            return None
        wanting = self._book.wanting(text)
        if not wanting and self.config.keeps == "wanted":
            self.counters.add("messages_unwanted")
            return None
        try:
            item = self.kernel.items.add(topic, model_id, model_version, self._is_nonconflatable(model_id))
        except PenstockError:
            self.counters.add("messages_dropped", cause=Cause.STATE_LIMIT)
            return None
        for subscription in wanting:
            self.kernel.want(subscription.consumer, item, subscription.cls)
            subscription.items.append(item)
        return item

    def _is_nonconflatable(self, model_id: int) -> bool:
        model = self._models.get(model_id)
        return model is None or not model.conflate or any(field.conflate == "never" for field in model.fields)

    def _forget(self, item: int) -> None:
        """A node that keeps only what is wanted lets go of an item that no longer is."""
        items = self.kernel.items
        if self.config.keeps == "wanted" and items.is_known(item) and not items.interest_count(item):
            items.remove(item)

    def _take(self, messages: MessageBatch | Sequence[PacketMessage], now_ns: int) -> None:
        if isinstance(messages, MessageBatch):
            self.kernel.distribute(messages, now_ns)
            return
        for message in messages:
            self.kernel.publish(
                message.topic.encode(), message.model_id, message.model_version, message.payload, now_ns
            )

    # The node above

    def _upstream_live(self, topics: Sequence[str], now_ns: int) -> None:
        for subscription in self._book.live_above(topics):
            self.kernel.live(subscription.consumer, subscription.number)
            self.kernel.attend_to(subscription.consumer, now_ns)
