"""The distribution engine against a reference oracle: each consumer's records are correct and complete, in any case.

For each item, a consumer receives a refresh or the item's first update, then every version in order; or a loss receipt
and a refresh. In the end every consumer has the newest record of every item in its interests.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.base.errors import OverrunError, RemoteProtocolError
from penstock.engine import EVENT_SIZE_MAX, Event, EventKind, SessionBuffer, make_event, read_events
from penstock.engine.core.events import Attach, Detach, Overrun, Sinks, Subscribe, Tick, Unsubscribe
from penstock.engine.core.kernel._event import EVENT_HEAD_SIZE
from penstock.shm import RingReader, RingWriter
from unit.engine_kit import NOW, QUOTE, engine, record

TOPICS = [f"md.{letter}.{kind}" for letter in "abc" for kind in "xy"]
INTERESTS = ["md.>", "md.a.*", "md.*.x", "md.b.y", "md.c.x"]
MATCHING = {
    "md.>": set(TOPICS),
    "md.a.*": {"md.a.x", "md.a.y"},
    "md.*.x": {"md.a.x", "md.b.x", "md.c.x"},
    "md.b.y": {"md.b.y"},
    "md.c.x": {"md.c.x"},
}
RING_SIZE = 140_000
CONSUMERS = 4


@dataclass
class Picture:
    """A consumer's state, derived from its events alone."""

    topics: dict[int, str] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)
    last_number: int = 0
    is_lossless: bool = True

    def take(self, event: Event) -> None:
        if event.kind == EventKind.DEFINE:
            self.topics[event.item] = event.topic.decode()
        elif event.kind == EventKind.RECEIPT:
            first, last, _ = event.lost
            assert first <= last
        elif event.kind in (EventKind.REFRESH, EventKind.UPDATE):
            topic = self.topics[event.item]
            if event.kind == EventKind.UPDATE:
                if self.is_lossless and topic in self.versions:
                    assert event.version == self.versions[topic] + 1, "an update is missing or repeated"
                    assert event.merged == 1
                self.last_number = max(self.last_number, event.number)
            else:
                assert event.version >= self.versions.get(topic, 0)
            assert event.version > self.versions.get(topic, 0) or event.kind == EventKind.REFRESH
            self.versions[topic] = event.version
            self.values[topic] = int.from_bytes(event.body[:8], "little")


class Subscriber:
    def __init__(self, number: int, cls: str, ring: RingWriter | None, buffer: SessionBuffer | None) -> None:
        self.number, self.cls, self.ring, self.buffer = number, cls, ring, buffer
        self.reader = RingReader(ring.segment) if ring is not None else None
        self.picture = Picture(is_lossless=cls == "critical")
        self.subscriptions: dict[int, str] = {}

    def wanted(self) -> set[str]:
        return set().union(*(MATCHING[text] for text in self.subscriptions.values()))

    def close(self) -> None:
        if self.reader is not None and self.ring is not None:
            self.reader.close()
            self.ring.close()


class EngineMachine(RuleBasedStateMachine):
    @initialize(history=st.sampled_from([65_536, 1 << 20]), budget=st.sampled_from([-1, 0]))
    def begin(self, history: int, budget: int) -> None:
        self.core = engine(classes=("critical", "adaptive"), history_bytes=history, budget_bytes=budget)
        self.now, self.count, self.numbers = NOW, 0, 0
        self.newest: dict[str, tuple[int, int]] = {}
        self.consumers: dict[int, Subscriber] = {}
        for is_ring in (True, False):
            self.attach(is_ring, "critical")
        self.attach(False, "adaptive")
        self.numbers = CONSUMERS
        for number, consumer in self.consumers.items():
            consumer.subscriptions[number] = "md.>"
            self.core.handle(Subscribe(number, number, ["md.>"], consumer.cls), self.now)  # type: ignore[arg-type]

    @precondition(lambda self: len(self.consumers) < CONSUMERS)
    @rule(is_ring=st.booleans(), cls=st.sampled_from(["critical", "critical", "adaptive"]))
    def attach(self, is_ring: bool, cls: str) -> None:
        number = next(each for each in range(CONSUMERS) if each not in self.consumers)
        ring = RingWriter.create(RING_SIZE, EVENT_SIZE_MAX) if is_ring else None
        buffer = None if is_ring else SessionBuffer(EVENT_SIZE_MAX)
        self.consumers[number] = Subscriber(number, cls, ring, buffer)
        self.core.handle(Attach(number, str(number), Sinks(ring=ring, buffer=buffer)), self.now)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), text=st.sampled_from(INTERESTS))
    def subscribe(self, data: st.DataObject, text: str) -> None:
        consumer = self.consumers[data.draw(st.sampled_from(sorted(self.consumers)))]
        self.numbers += 1
        consumer.subscriptions[self.numbers] = text
        self.core.handle(Subscribe(consumer.number, self.numbers, [text], consumer.cls), self.now)  # type: ignore[arg-type]

    @precondition(lambda self: any(each.subscriptions for each in self.consumers.values()))
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        having = [each for each in self.consumers.values() if each.subscriptions]
        consumer = data.draw(st.sampled_from(having))
        number = data.draw(st.sampled_from(sorted(consumer.subscriptions)))
        self.settle(consumer)
        del consumer.subscriptions[number]
        self.core.handle(Unsubscribe(consumer.number, number), self.now)
        for topic in set(consumer.picture.versions) - consumer.wanted():
            del consumer.picture.versions[topic], consumer.picture.values[topic]

    @rule(topic=st.sampled_from(TOPICS), count=st.sampled_from([1, 3, 40, 700]))
    def publish(self, topic: str, count: int) -> None:
        for _ in range(count):
            self.count += 1
            self.core.publish(topic.encode(), QUOTE, record(self.count), self.now)
            self.newest[topic] = (self.newest.get(topic, (0, 0))[0] + 1, self.count)

    @rule(topics=st.lists(st.sampled_from(TOPICS), min_size=2, max_size=30))
    def publish_several(self, topics: list[str]) -> None:
        for topic in topics:
            self.publish(topic, 1)

    @rule(budget=st.sampled_from([-1, 0, 500, 20_000]))
    def serve(self, budget: int) -> None:
        self.now += 1_000_000
        self.core.serve(self.now, budget)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), count=st.sampled_from([1, 5, 1_000]))
    def read(self, data: st.DataObject, count: int) -> None:
        self.take(self.consumers[data.draw(st.sampled_from(sorted(self.consumers)))], count)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def detach(self, data: st.DataObject) -> None:
        consumer = self.consumers.pop(data.draw(st.sampled_from(sorted(self.consumers))))
        self.core.handle(Detach(consumer.number), self.now)
        consumer.close()
        assert self.core.kernel.pairs.used == sum(
            len(each.wanted() & set(self.newest)) for each in self.consumers.values()
        ) or any(self.core.record(number).waiting for number in self.consumers)

    @invariant()
    def nobody_waits_for_anybody(self) -> None:
        for number in getattr(self, "consumers", {}):
            assert self.core.record(number).pending <= len(TOPICS)

    def take(self, consumer: Subscriber, count: int) -> int:
        """Read some events; after an overrun the consumer asks for a restart of its ring, and continues."""
        if consumer.buffer is not None:
            events = read_events(consumer.buffer.take(count * 300)) if len(consumer.buffer) else []
        else:
            assert consumer.reader is not None
            events = []
            try:
                while len(events) < count and (payload := consumer.reader.read(0)) is not None:
                    events += read_events(payload)
            except OverrunError:
                for event in events:
                    consumer.picture.take(event)
                self.core.handle(Overrun(consumer.number, consumer.picture.last_number), self.now)
                assert consumer.reader.restart()
                consumer.picture.topics.clear()
                return 1
        for event in events:
            consumer.picture.take(event)
        return len(events)

    def settle(self, consumer: Subscriber) -> None:
        """Serve and read until nothing is pending."""
        for _ in range(10_000):
            self.core.serve(self.now)
            if not self.take(consumer, 1_000):
                if self.core.next_deadline_ns() is None:
                    break
                self.now += 20_000_000
                self.core.handle(Tick(), self.now)
        expected = {topic: self.newest[topic] for topic in consumer.wanted() if topic in self.newest}
        picture = consumer.picture
        assert {topic: (picture.versions[topic], picture.values[topic]) for topic in expected} == expected

    def teardown(self) -> None:
        consumers = getattr(self, "consumers", {}).values()
        try:
            for consumer in consumers:
                self.settle(consumer)
        finally:
            for consumer in consumers:
                consumer.close()


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestEngine = pytest.mark.spec("CRIT-4")(pytest.mark.spec("TP-2")(TestEngine))


@given(st.binary(max_size=400), st.integers(0, 400), st.binary(max_size=8))
def test_no_bytes_crash_the_reader_of_events(body: bytes, at: int, noise: bytes) -> None:
    block = make_event(EventKind.UPDATE, item=1, body=body) + make_event(EventKind.LIVE, item=2, body=bytes(8))
    damaged = block[:at] + noise + block[at + len(noise) :]
    try:
        events = read_events(damaged)
    except RemoteProtocolError:
        return
    assert sum(EVENT_HEAD_SIZE + (len(event.body) + 7) // 8 * 8 for event in events) == len(damaged)
