"""Events of consumers around the end of a session: after the end, no consumer receives a value of the session."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.clock import NS_PER_SECOND
from penstock.engine import DistributionEngine, Event, EventKind, MeteringLimits, SessionBuffer, read_events
from penstock.engine.core.events import EngineEvent, Overrun, SessionChanged, Subscribe, Tick, Updates
from penstock.engine.core.session_events import decode_session
from penstock.middleware import SessionEvent
from penstock.plant.core.incoming import Incoming, Updated
from penstock.shm import RingReader
from penstock.wire.term import session_tag
from unit.engine_kit import NOW, buffer_consumer, drain, engine, ring_consumer
from unit.test_engine_classes import RecordsConsumer, records_consumer
from unit.test_engine_sessions import quote

CLASSES = ("critical", "adaptive", "metered")
TOPICS = tuple(f"md.{name}" for name in "abcd")
STREAMS = (1, 2)
SMALL = 34_000

Handle: TypeAlias = Callable[[EngineEvent], None]

publishing = st.tuples(st.just("publish"), st.sampled_from(TOPICS))
ending = st.tuples(st.sampled_from(["begin", "end"]), st.sampled_from(STREAMS))
others = st.tuples(st.sampled_from(["drain", "tick", "overrun", "pause", "flood"]), st.integers(0, 9))
histories = st.lists(st.one_of(publishing, publishing, publishing, ending, others), min_size=1, max_size=60)


class Viewer:
    """A consumer's view, derived from its events: values by topic, and the ended sessions of streams."""

    def __init__(self, market: "Market") -> None:
        self.values: dict[str, int] = {}
        self.over: set[tuple[int, str]] = set()
        self._market = market
        self._topics: dict[int, str] = {}
        self._versions: dict[str, int] = {}

    def take(self, events: list[Event]) -> None:
        for event in events:
            if event.kind == EventKind.DEFINE:
                self._topics[event.item] = event.topic.decode()
            elif event.kind == EventKind.SESSION:
                said = decode_session(event.session)
                before = self._market.sessions_before(said)
                self.over |= {(said.stream_id, name) for name in before}
            elif event.kind in (EventKind.REFRESH, EventKind.UPDATE, EventKind.WITHDRAW):
                self._change(self._topics[event.item], event)

    def _change(self, topic: str, event: Event) -> None:
        if event.kind != EventKind.REFRESH and event.version <= self._versions.get(topic, 0):
            return  # applications skip versions that they already have
        self._versions[topic] = event.version
        if event.kind == EventKind.WITHDRAW:
            self.values.pop(topic, None)
            return
        value = int.from_bytes(event.body[:8], "little")
        assert self._market.origins[value] not in self.over, f"{topic} has {value} of {self._market.origins[value]}"
        self.values[topic] = value


class Market:
    def __init__(self) -> None:
        self.number = 0
        self.days = dict.fromkeys(STREAMS, 1)
        self.origins: dict[int, tuple[int, str]] = {}
        self.is_open = dict.fromkeys(STREAMS, True)

    def stream(self, topic: str) -> int:
        return STREAMS[TOPICS.index(topic) % len(STREAMS)]

    def session(self, stream: int) -> str:
        return f"day {self.days[stream]}"

    def sessions_before(self, event: SessionEvent) -> list[str]:
        day = int(event.session.split()[1]) + (event.kind == "end")
        return [f"day {each}" for each in range(1, day)]

    def publish(self, handle: Handle, topic: str) -> None:
        stream = self.stream(topic)
        if not self.is_open[stream]:
            self.change(handle, "begin", stream)
        self.number += 1
        self.origins[self.number] = stream, self.session(stream)
        handle(Updates([quote(topic, self.number, self.session(stream), stream)], "feed"))

    def change(self, handle: Handle, kind: Any, stream: int) -> None:
        if kind == "begin":
            self.days[stream] += 1
        elif not self.is_open[stream]:
            return
        self.is_open[stream] = kind == "begin"
        name = self.session(stream)
        handle(SessionChanged(SessionEvent(kind, stream, name, "", session_tag(name), "feed")))


class Below:
    """A multiplexer whose updates come from a plant."""

    def __init__(self, plant: DistributionEngine) -> None:
        self.core = engine(2, keeps="wanted", has_upstream=True, classes=CLASSES, limits=MeteringLimits())
        self._buffer, _ = buffer_consumer(plant, 9, "md.>", capacity=SMALL)
        self._incoming = Incoming(lambda _: ["md.>"])
        self._incoming.begin(is_again=False)

    def pass_on(self) -> None:
        while data := self._buffer.take():
            for event in self._incoming.read(data):
                if isinstance(event, Updated):
                    self.core.kernel.publish(*event[:-2], NOW, event.merged, None, event.session_id)
                else:
                    self.core.handle(event, NOW)


class Case:
    """A plant and a multiplexer, each with a buffer consumer of every class, and one consumer with a ring and
    regions."""

    def __init__(self, stack: ExitStack) -> None:
        self.market = Market()
        self.plant = engine(classes=CLASSES, limits=MeteringLimits(), history_bytes=65_536)
        self.below = Below(self.plant)
        self.now_ns = NOW
        self.is_paused = False
        self.buffers: list[tuple[DistributionEngine, SessionBuffer, Viewer]] = []
        for core in (self.plant, self.below.core):
            for number, cls in enumerate(CLASSES):
                buffer, _ = buffer_consumer(core, number, capacity=SMALL)
                core.handle(Subscribe(number, 1, ["md.>"], cls, per_second=10), NOW)  # type: ignore[arg-type]
                self.buffers.append((core, buffer, Viewer(self.market)))
        self.ring: RingReader = stack.enter_context(ring_consumer(self.plant, 5, "md.>"))
        self.ring_viewer = Viewer(self.market)
        self.last_number = 0
        self.records: RecordsConsumer = stack.enter_context(records_consumer(self.plant, 6))
        self.records.subscribe(1, "md.>")

    def handle(self, event: EngineEvent) -> None:
        self.records.carry_out(self.plant.handle(event, self.now_ns))

    def step(self, name: str, value: Any) -> None:
        match name:
            case "publish":
                self.market.publish(self.handle, value)
            case "begin" | "end":
                self.market.change(self.handle, name, value)
            case "flood":
                for _ in range(40):
                    self.market.publish(self.handle, TOPICS[value % len(TOPICS)])
            case "pause":
                self.is_paused = value % 2 == 0
            case "drain":
                self.drain()
            case "tick":
                self.now_ns += value * NS_PER_SECOND // 20
                self.tick()
            case "overrun":
                drain(self.ring)
                self.plant.handle(Overrun(5, self.last_number), self.now_ns)
                self.ring.restart()
        if not self.is_paused:
            self.below.pass_on()
        self.records.carry_out(self.plant.take())

    def tick(self) -> None:
        for core in (self.plant, self.below.core):
            self.records.carry_out(core.handle(Tick(), self.now_ns))
            core.serve(self.now_ns)

    def drain(self) -> None:
        for core, buffer, viewer in self.buffers:
            viewer.take(read_events(buffer.take()))
            core.serve(self.now_ns)
        events = drain(self.ring)
        self.ring_viewer.take(events)
        of_log = (EventKind.UPDATE, EventKind.WITHDRAW, EventKind.SESSION)
        self.last_number = max([self.last_number, *(each.number for each in events if each.kind in of_log)])

    def settle(self) -> None:
        self.is_paused = False
        for _ in range(12):
            self.now_ns += NS_PER_SECOND
            self.below.pass_on()
            self.tick()
            self.drain()

    def current(self) -> dict[str, int]:
        found = self.plant.current([">"])
        return {each.topic.decode(): int.from_bytes(each.record[:8], "little") for each in found if each.record}

    def in_regions(self) -> dict[str, int]:
        values = {}
        for item, topic in enumerate(each.topic.decode() for each in self.plant.current([">"])):
            for reader in self.records.readers.values():
                record = reader.read(item)
                if record is not None and not record.is_withdrawn:
                    values[topic] = int.from_bytes(record.payload[:8], "little")
        return values


@pytest.mark.spec("DAY-3", "CRIT-1", "ADPT-1", "METR-4", "MUX-1")
@settings(max_examples=100)
@given(history=histories)
def test_no_consumer_has_a_value_of_a_session_that_it_knows_to_be_over(history: list[tuple[str, Any]]) -> None:
    with ExitStack() as stack:
        case = Case(stack)
        for name, value in history:
            case.step(name, value)
        case.settle()
        current = case.current()
        assert all(case.market.is_open[case.market.origins[value][0]] for value in current.values())
        for at, (_, _, viewer) in enumerate(case.buffers):
            assert viewer.values == current, f"consumer {at}"
        assert case.ring_viewer.values == current
        assert case.in_regions() == current
