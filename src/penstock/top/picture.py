"""What there is to see, made of two readings of every node; it does no I/O.

Rates are over the time between the two. A node that was started anew in between has none, and neither has the first
picture.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.base.clock import NS_PER_SECOND
from penstock.engine.records import ConsumerDistributionRecord
from penstock.feed.adapter_status import AdapterStatus
from penstock.filter.status import FilterStatus
from penstock.plant.status import NodeStatus
from penstock.top.reading import Reading

CLASSES = ("critical", "adaptive", "metered")


class NodeRow(msgspec.Struct, frozen=True):
    node: str
    kind: str
    state: str
    is_well: bool
    in_per_s: float | None = None
    """Messages taken, each once."""

    out_per_s: float | None = None
    """Messages given on, one that several get for each of them."""

    latency_us: Mapping[str, float] = {}
    """By percentile, where the node measures one."""

    lost: int = 0
    """Messages known to be lost, since it was started."""

    consumers: int = 0


class StreamRow(msgspec.Struct, frozen=True):
    node: str
    stream: str
    state: str
    position: int
    per_s: float | None = None


class ConsumerRow(msgspec.Struct, frozen=True):
    node: str
    consumer: str
    destination: str
    shares: Mapping[str, float]
    """Of each class in what it was sent lately, or ever if there was nothing lately; together 1."""

    out_per_s: float | None = None
    bytes_per_s: float | None = None
    conflated_per_s: float | None = None
    """Updates that went into a later one."""

    sent: int = 0
    conflated: int = 0
    congested: int = 0
    """Times that there was no room for it."""

    overruns: int = 0
    waiting: int = 0
    subscriptions: int = 0


class Picture(msgspec.Struct, frozen=True):
    seconds: float
    """Over which the rates are."""

    nodes: list[NodeRow]
    streams: list[StreamRow]
    consumers: list[ConsumerRow]


def picture_of(readings: Sequence[Reading], before: Sequence[Reading] = ()) -> Picture:
    earlier = {reading.place: reading for reading in before if not reading.fault}
    nodes: list[NodeRow] = []
    streams: list[StreamRow] = []
    consumers: list[ConsumerRow] = []
    seconds = 0.0
    for reading in readings:
        view = _View(reading, earlier.get(reading.place))
        seconds = max(seconds, view.seconds)
        node, its_streams, its_consumers = view.rows()
        nodes.append(node)
        streams += its_streams
        consumers += its_consumers
    return Picture(seconds, nodes, streams, consumers)


Rows = tuple[NodeRow, list[StreamRow], list[ConsumerRow]]


class _View:
    """One node now and before."""

    def __init__(self, reading: Reading, before: Reading | None) -> None:
        self._now = reading
        self._before = before
        elapsed_ns = reading.at_ns - before.at_ns if before is not None else 0
        self.seconds = max(0.0, elapsed_ns / NS_PER_SECOND)

    def rows(self) -> Rows:
        now = self._now
        if now.fault:
            return NodeRow(now.place.name, "", f"down: {now.fault}", False), [], []
        try:
            if _looks_like(now.status, AdapterStatus):
                return self._adapter(*self._both(AdapterStatus))
            if _looks_like(now.status, FilterStatus):
                return self._filter(*self._both(FilterStatus))
            if _looks_like(now.status, NodeStatus):
                return self._distributor(*self._both(NodeStatus))
        except msgspec.ValidationError as error:
            return NodeRow(now.place.name, "", f"says what is not understood: {error}", False), [], []
        return NodeRow(now.place.name, "", now.detail or "up", True, lost=self._lost()), [], []

    def _both(self, kind: Any) -> tuple[Any, Any]:
        """The status now, and the one before if it is of the same run."""
        status = msgspec.convert(self._now.status, kind)
        if self._before is None or not _looks_like(self._before.status, kind):
            return status, None
        return status, msgspec.convert(self._before.status, kind)

    def _rate(self, now: float, before: float | None) -> float | None:
        if before is None or not self.seconds or now < before:
            return None
        return (now - before) / self.seconds

    def _counted_rate(self, name: str) -> float | None:
        return self._rate(self._now.count(name), None if self._before is None else self._before.count(name))

    def _lost(self) -> int:
        return int(self._now.count("messages_lost") + self._now.count("source_messages_lost"))

    # Kinds of nodes

    def _adapter(self, status: AdapterStatus, before: AdapterStatus | None) -> Rows:
        name = self._now.place.name
        positions = {} if before is None else {each.id: each.next_message_sequence for each in before.streams}
        streams = [
            StreamRow(
                name,
                each.name,
                "synchronised" if each.is_synchronised or status.role == "active" else "not synchronised",
                each.next_message_sequence - 1,
                self._rate(each.next_message_sequence, positions.get(each.id)),
            )
            for each in status.streams
        ]
        accounts = {} if before is None else {_account(each): each for each in before.subscribers}
        consumers = []
        for each in status.subscribers:
            was = accounts.get(_account(each))
            consumers.append(
                ConsumerRow(
                    name,
                    each.client,
                    f"delayed by {each.delay_s} s" if each.delay_s else "tcp",
                    {},
                    self._rate(each.messages, None if was is None else was.messages),
                    self._rate(each.bytes, None if was is None else was.bytes),
                    sent=each.messages,
                )
            )
        rates = [each.per_s for each in streams if each.per_s is not None]
        state = status.role if status.is_online else "off-line"
        node = NodeRow(
            name,
            "adapter",
            state,
            status.is_online,
            self._counted_rate("source_messages"),
            sum(rates) if rates else None,
            status.latency_us,
            self._lost(),
            len(status.subscribers),
        )
        return node, streams, consumers

    def _filter(self, status: FilterStatus, before: FilterStatus | None) -> Rows:
        name = self._now.place.name
        applications = {} if before is None else {each.application_id: each for each in before.applications}
        consumers = []
        for each in status.applications:
            was = applications.get(each.application_id)
            consumers.append(
                ConsumerRow(
                    name,
                    each.name,
                    f"{each.delivery} {each.address}",
                    {},
                    self._rate(each.packets, None if was is None else was.packets),
                    self._rate(each.bytes, None if was is None else was.bytes),
                    sent=each.packets,
                )
            )
        node = NodeRow(
            name,
            "filter",
            "up" if status.is_in_touch else "the administration server does not answer",
            status.is_in_touch,
            self._rate(status.messages, None if before is None else before.messages),
            self._rate(status.passed, None if before is None else before.passed),
            lost=self._lost(),
            consumers=len(status.applications),
        )
        return node, [], consumers

    def _distributor(self, status: NodeStatus, before: NodeStatus | None) -> Rows:
        """A ticker plant, a multiplexer or an edge cache."""
        name = self._now.place.name
        is_same = before is not None and before.epoch == status.epoch
        records = {each.consumer: each for each in before.consumers} if before is not None and is_same else {}
        consumers = []
        for each in status.consumers:
            was = records.get(each.consumer)
            consumers.append(self._consumer(name, each, was if was is not None and was.name == each.name else None))
        rates = [each.out_per_s for each in consumers if each.out_per_s is not None]
        trouble = [
            what
            for is_there, what in (
                (status.is_fed, "nothing comes from above"),
                (status.is_in_touch, "the administration server does not answer"),
            )
            if not is_there
        ]
        node = NodeRow(
            name,
            status.kind,
            "; ".join(trouble) or "up",
            not trouble,
            self._rate(status.updates, before.updates if before is not None and is_same else None),
            sum(rates) if rates or is_same else None,
            lost=self._lost(),
            consumers=status.consumer_count,
        )
        stream = StreamRow(name, f"{status.items:,} items", "fed" if status.is_fed else "not fed", status.updates)
        return node, [msgspec.structs.replace(stream, per_s=node.in_per_s)], consumers

    def _consumer(
        self, node: str, now: ConsumerDistributionRecord, before: ConsumerDistributionRecord | None
    ) -> ConsumerRow:
        sent, conflated = _sum(now, "sent"), _sum(now, "conflated")
        row = ConsumerRow(
            node,
            now.name,
            now.destination,
            _shares(now, before),
            sent=sent,
            conflated=conflated,
            congested=_sum(now, "congested"),
            overruns=now.overruns,
            waiting=now.waiting,
            subscriptions=now.subscriptions,
        )
        if before is None:
            return row
        return msgspec.structs.replace(
            row,
            out_per_s=self._rate(sent, _sum(before, "sent")),
            bytes_per_s=self._rate(_sum(now, "bytes"), _sum(before, "bytes")),
            conflated_per_s=self._rate(conflated, _sum(before, "conflated")),
        )


def _sum(record: ConsumerDistributionRecord, field: str) -> int:
    return sum(getattr(each, field) for each in record.classes.values())


def _shares(now: ConsumerDistributionRecord, before: ConsumerDistributionRecord | None) -> dict[str, float]:
    """Of the classes in the bytes that were sent since `before`, or ever."""
    ever = {name: each.bytes for name, each in now.classes.items()}
    lately = dict(ever)
    if before is not None:
        lately = {name: max(0, size - _bytes(before, name)) for name, size in ever.items()}
    counted = lately if any(lately.values()) else ever
    total = sum(counted.values())
    return {name: size / total for name, size in counted.items()} if total else {}


def _bytes(record: ConsumerDistributionRecord, name: Any) -> int:
    return record.classes[name].bytes if name in record.classes else 0


def _account(account: Any) -> tuple[str, str, int]:
    return account.client, account.subscription_id, account.opened_ns


def _looks_like(status: Any, kind: type[msgspec.Struct]) -> bool:
    """Whether a page has all that a status of this kind has."""
    return isinstance(status, dict) and set(kind.__struct_fields__) <= status.keys()
