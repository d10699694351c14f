"""Helpers that drive a distribution engine by hand."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.engine import (
    EVENT_SIZE_MAX,
    ClassMap,
    DistributionEngine,
    EngineConfig,
    Event,
    MeteringLimits,
    SessionBuffer,
    SignalThresholds,
    read_events,
)
from penstock.engine.core.events import Attach, EngineInstruction, Sinks, Subscribe
from penstock.model import MessageModel, shipped
from penstock.shm import RingReader, RingWriter
from penstock.sim.randomness import SeededRandomness

QUOTE = shipped("quote")
TRADE = shipped("trade")
NOW = 1_000_000_000
RING_SIZE = 1 << 20


def record(value: int, model: MessageModel = QUOTE) -> bytes:
    """A record that its number identifies."""
    size = model.record_size
    return value.to_bytes(8, "little") * (size // 8) + bytes(size % 8)


def engine(
    seed: int = 1,
    *,
    rules: ClassMap | None = None,
    limits: MeteringLimits | None = None,
    signals: SignalThresholds | None = None,
    **settings: Any,
) -> DistributionEngine:
    return DistributionEngine(
        EngineConfig(**settings),
        SeededRandomness(seed),
        models=[QUOTE, TRADE],
        rules=rules,
        limits=limits,
        signals=signals,
    )


@contextmanager
def ring_consumer(
    core: DistributionEngine, number: int, *topics: str, capacity: int = RING_SIZE
) -> Iterator[RingReader]:
    """A consumer attached with a ring and subscribed to the topics as its subscription 1."""
    with RingWriter.create(capacity, EVENT_SIZE_MAX) as ring, RingReader(ring.segment) as reader:
        core.handle(Attach(number, f"consumer-{number}", Sinks(ring=ring)), NOW)
        if topics:
            core.handle(Subscribe(number, 1, topics), NOW)
        yield reader


def buffer_consumer(
    core: DistributionEngine, number: int, *topics: str, capacity: int = RING_SIZE
) -> tuple[SessionBuffer, list[EngineInstruction]]:
    buffer = SessionBuffer(capacity)
    answers = core.handle(Attach(number, f"consumer-{number}", Sinks(buffer=buffer)), NOW)
    if topics:
        answers += core.handle(Subscribe(number, 1, topics), NOW)
    return buffer, answers


def drain(reader: RingReader) -> list[Event]:
    """All events in the ring."""
    events = []
    while (payload := reader.read(0)) is not None:
        events += read_events(payload)
    return events


def told(events: list[Event]) -> list[tuple[int, Any]]:
    """The kind of each event and, for records, the value that record() put into them."""
    return [
        (event.kind, int.from_bytes(event.body[:8], "little") if event.kind in (2, 3) else event.body)
        for event in events
    ]
