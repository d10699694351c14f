"""Build one node's rows from its current and previous reading."""

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from penstock.assured.core.lease.protocol import VOTERS
from penstock.assured.core.status import Replication, RouterStatus, WitnessStatus
from penstock.assured.wire.control import EndpointInfo
from penstock.base.clock import NS_PER_SECOND
from penstock.base.counters import Cause
from penstock.engine.core.consumer_records import ClassRecord, ConsumerDistributionRecord
from penstock.feed.core.status import AdapterStatus
from penstock.filter.core.status import FilterStatus
from penstock.plant.core.status import NodeStatus
from penstock.top.core.picture import ClassRow, ConsumerRow, EndpointRow, LossRow, StreamRow
from penstock.top.core.reading import Reading, Status
from penstock.tree.core.status import AgentStatus

LOST = ("messages_lost", "source_messages_lost")
"""Counters whose sum a node's row shows."""

TROUBLES = (
    *LOST,
    "packets_lost", "packets_dropped", "packets_left", "packets_overrun", "packets_unrecorded", "messages_dropped",
    "messages_skipped", "source_messages_malformed", "source_messages_unmatched", "source_resets",
    "source_requests_refused", "lines_silent", "discontinuities", "repairs_unavailable", "datagrams_unsent",
    "datagrams_overflowed", "datagrams_discarded", "disk_failures", "connections_refused", "subscriptions_refused",
    "applications_refused", "consumers_refused", "requests_refused", "handovers_refused", "upstream_lost",
    "rings_overrun", "clock_jumps",
)  # fmt: skip
"""Counters of unwanted events, from base.counters.CATALOGUE."""

HARMLESS = frozenset(
    {
        Cause.DUPLICATE, Cause.BEFORE_JOIN, Cause.STALE_EPOCH, Cause.STALE_TERM, Cause.STALE_REQUEST, Cause.REPLAY,
        Cause.OTHER_PLAN, Cause.FENCED, Cause.GOODBYE, Cause.CLOSED,
    }
)  # fmt: skip
"""Causes of ordinary operation: the data came in another way, or was not for this node."""

IN_TOUCH = "the administration server does not answer"
FED = "no data from the upstream node"
UNROOTED = "no way to the root of the tree"
DISK = "the disk accepts no writes"
ASKED = "not connected to both routers"
VOTES = "not connected to both other voters"
BUSY = "too busy to report its consumers"


class NodeFacts(NamedTuple):
    """Parts of a node's row that come from its status."""

    troubles: list[str]
    in_per_s: float | None = None
    out_per_s: float | None = None
    latency_us: Mapping[str, float] = {}
    consumers: int | None = None


class Rows(NamedTuple):
    node: NodeFacts
    streams: list[StreamRow]
    losses: list[LossRow]
    consumers: list[ConsumerRow]
    endpoints: list[EndpointRow]


class NodeView:
    """One node's current reading and, if from the same run, the previous one; `age_s` if the current one is old."""

    def __init__(self, now: Reading, before: Reading | None, age_s: float | None = None) -> None:
        self._now = now
        self._before = before
        self._name = now.place.name
        self._age_s = age_s
        self._seconds = 0.0 if before is None else (now.at_ns - before.at_ns) / NS_PER_SECOND

    def rows(self) -> Rows:
        node, streams, consumers, endpoints = NodeFacts([]), list[StreamRow](), list[ConsumerRow](), list[EndpointRow]()
        match self._now.status:
            case AdapterStatus() as status:
                node, streams, consumers = self._adapter(status, self._earlier(AdapterStatus))
            case FilterStatus() as status:
                node, streams, consumers = self._filter(status, self._earlier(FilterStatus))
            case NodeStatus() as status:
                node, streams, consumers = self._distributor(status, self._earlier(NodeStatus))
            case AgentStatus() as status:
                node, streams, consumers = self._agent(status, self._earlier(AgentStatus))
            case RouterStatus() as status:
                node, endpoints = self._router(status, self._earlier(RouterStatus))
            case WitnessStatus() as status:
                node = _witness(status)
        return Rows(node, streams, self._losses(), consumers, endpoints)

    def _earlier(self, kind: type[Status]) -> Any:
        """Return the previous status; None if there is none of this kind."""
        status = None if self._before is None else self._before.status
        return status if isinstance(status, kind) else None

    def rate(self, now: float, before: float | None) -> float | None:
        """Return the rate per second; None if the counter was reset."""
        if before is None or self._seconds <= 0 or now < before:
            return None
        return (now - before) / self._seconds

    # Common to all nodes

    def lost(self) -> int:
        return int(sum(value for key, value in self._now.counters.items() if key.name in LOST))

    def _losses(self) -> list[LossRow]:
        before = {} if self._before is None else self._before.counters
        return [
            LossRow(
                node=self._name,
                component=key.component,
                what=key.name,
                cause=key.cause,
                is_harmless=key.cause in HARMLESS and key.name not in LOST,
                count=int(value),
                per_s=self.rate(value, before.get(key, 0.0) if self._before is not None else None),
                age_s=self._age_s,
            )
            for key, value in sorted(self._now.counters.items())
            if value and key.name in TROUBLES
        ]

    def _stream(self, name: str, state: str, position: int, before: int | None) -> StreamRow:
        return StreamRow(
            node=self._name,
            stream=name,
            state=state,
            position=position,
            per_s=self.rate(position, before),
            age_s=self._age_s,
        )

    # Kinds of nodes

    def _adapter(
        self, now: AdapterStatus, before: AdapterStatus | None
    ) -> tuple[NodeFacts, list[StreamRow], list[ConsumerRow]]:
        earlier = {} if before is None else {each.id: each for each in before.streams}
        streams, taken = [], list[float | None]()
        for each in now.streams:
            was = earlier.get(each.id)
            state = "synchronised" if each.is_synchronised or now.role == "active" else "not synchronised"
            last = None if was is None else was.next_message_sequence - 1
            streams.append(self._stream(each.name, state, each.next_message_sequence - 1, last))
            taken.append(self.rate(each.next_source_sequence, None if was is None else was.next_source_sequence))
        troubles = [f"not recording: {now.journal_trouble}"] if now.journal_trouble else []
        troubles += [now.sealing_trouble] if now.sealing_trouble else []
        if now.role != "active" and not now.is_synchronised:
            troubles.append("not synchronised")
        accounts = {} if before is None else {_account(each): each for each in before.subscribers}
        consumers = [
            self._served(
                name=each.client,
                number=number,
                destination=f"tcp, delayed {each.delay_s} s" if each.delay_s else "tcp",
                sent=(each.messages, _of(accounts, _account(each), "messages")),
                size=(each.bytes, _of(accounts, _account(each), "bytes")),
            )
            for number, each in enumerate(now.subscribers, start=1)
        ]
        given = _sum(row.per_s for row in streams)
        return NodeFacts(troubles, _sum(taken), given, now.latency_us, len(now.subscribers)), streams, consumers

    def _filter(
        self, now: FilterStatus, before: FilterStatus | None
    ) -> tuple[NodeFacts, list[StreamRow], list[ConsumerRow]]:
        kinds = (("received", "messages"), ("unwanted", "unwanted"), ("passed on", "passed"))
        streams = [
            self._stream(name, f"{now.groups} groups", getattr(now, key), getattr(before, key, None))
            for name, key in kinds
        ]
        earlier = {} if before is None else {each.application_id: each for each in before.applications}
        consumers = [
            self._served(
                name=each.name,
                number=each.application_id,
                destination=f"{each.delivery} {each.address}",
                sent=(each.packets, _of(earlier, each.application_id, "packets")),
                size=(each.bytes, _of(earlier, each.application_id, "bytes")),
            )
            for each in now.applications
        ]
        troubles = [] if now.is_in_touch else [IN_TOUCH]
        troubles += [now.receiving_trouble] if now.receiving_trouble else []
        received, _, passed = streams
        return NodeFacts(troubles, received.per_s, passed.per_s, {}, len(now.applications)), streams, consumers

    def _served(
        self,
        *,
        name: str,
        number: int,
        destination: str,
        sent: tuple[int, int | None],
        size: tuple[int, int | None],
        conflated: tuple[int, int | None] = (0, None),
    ) -> ConsumerRow:
        """Build the row of a receiver without a consumer distribution record."""
        return ConsumerRow(
            node=self._name,
            consumer=name,
            number=number,
            destination=destination,
            sent=sent[0],
            sent_per_s=self.rate(*sent),
            bytes_per_s=self.rate(*size),
            conflated=conflated[0],
            conflated_per_s=self.rate(*conflated),
            age_s=self._age_s,
        )

    def _distributor(
        self, now: NodeStatus, before: NodeStatus | None
    ) -> tuple[NodeFacts, list[StreamRow], list[ConsumerRow]]:
        """Build the rows of a ticker plant, a multiplexer or an edge cache."""
        earlier = {} if before is None else {(each.consumer, each.name): each for each in before.consumers}
        consumers = [self._consumer(each, earlier.get((each.consumer, each.name))) for each in now.consumers]
        troubles = [what for is_there, what in ((now.is_fed, FED), (now.is_in_touch, IN_TOUCH)) if not is_there]
        if now.consumer_count and not now.consumers:
            troubles.append(BUSY)
        updates = None if before is None else before.updates
        stream = self._stream(f"{now.items:,} items", "fed" if now.is_fed else "not fed", now.updates, updates)
        given = None
        if before is not None and len(now.consumers) == now.consumer_count:
            given = sum(row.sent_per_s or 0.0 for row in consumers)
        return NodeFacts(troubles, stream.per_s, given, now.latency_us, now.consumer_count), [stream], consumers

    def _agent(
        self, now: AgentStatus, before: AgentStatus | None
    ) -> tuple[NodeFacts, list[StreamRow], list[ConsumerRow]]:
        """Build the rows of an agent of a distribution tree; its consumers are its children."""
        was = {} if before is None else {each.number: each.last for each in before.streams}
        streams = [
            self._stream(each.name, f"term {each.term}", each.last, was.get(each.number)) for each in now.streams
        ]
        earlier = {} if before is None else {each.link: each for each in before.links}
        consumers = [
            self._served(
                name=each.name,
                number=each.link,
                destination=f"{each.role} {each.place}".rstrip(),
                sent=(each.packets_out, _of(earlier, each.link, "packets_out")),
                size=(each.bytes_out, _of(earlier, each.link, "bytes_out")),
                conflated=(each.conflated, _of(earlier, each.link, "conflated")),
            )
            for each in now.links
            if each.role != "parent"
        ]
        wrongs = ((now.is_rooted, UNROOTED), (now.is_in_touch, IN_TOUCH), (now.is_storing, DISK))
        troubles = [what for is_well, what in wrongs if not is_well]
        given = _sum(row.sent_per_s for row in consumers)
        taken = _sum(row.per_s for row in streams)
        return NodeFacts(troubles, taken, given, {}, now.child_count), streams, consumers

    def _router(self, now: RouterStatus, before: RouterStatus | None) -> tuple[NodeFacts, list[EndpointRow]]:
        """Build the rows of a message router; they are its endpoints."""
        was = {} if before is None else {each.endpoint.name: each for each in before.endpoints}
        endpoints = [self._endpoint(each, was.get(each.endpoint.name)) for each in now.endpoints]
        wrongs = ((now.is_in_touch, IN_TOUCH), (now.is_storing, DISK))
        troubles = [what for is_well, what in wrongs if not is_well] + _pair_troubles(now.replication)
        taken = _sum(row.accepted_per_s for row in endpoints)
        given = _sum(row.delivered_per_s for row in endpoints)
        return NodeFacts(troubles, taken, given, {}, now.clients), endpoints

    def _endpoint(self, now: EndpointInfo, before: EndpointInfo | None) -> EndpointRow:
        rates = {
            f"{name}_per_s": self.rate(getattr(now, name), getattr(before, name, None))
            for name in ("accepted", "delivered", "settled")
        }
        return EndpointRow(
            node=self._name,
            endpoint=now.endpoint.name,
            consumers=now.endpoint.consumers,
            messages=now.messages,
            bytes=now.bytes,
            unsettled=now.unsettled,
            flows=now.flows,
            accepted=now.accepted,
            delivered=now.delivered,
            settled=now.settled,
            given_up=now.given_up,
            age_s=self._age_s,
            **rates,
        )

    def _consumer(self, now: ConsumerDistributionRecord, before: ConsumerDistributionRecord | None) -> ConsumerRow:
        shares = _shares(now, before)
        classes: dict[str, ClassRow] = {
            name: self._class(each, None if before is None else before.classes.get(name), shares.get(name))
            for name, each in now.classes.items()
        }

        def total(field: str) -> tuple[int, int | None]:
            return _total(now, field), None if before is None else _total(before, field)

        return ConsumerRow(
            node=self._name,
            consumer=now.name,
            number=now.consumer,
            destination=now.destination,
            memory=", ".join(now.memory),
            classes=classes,
            sent=_total(now, "sent"),
            sent_per_s=self.rate(*total("sent")),
            bytes_per_s=self.rate(*total("bytes")),
            conflated=_total(now, "conflated"),
            conflated_per_s=self.rate(*total("conflated")),
            congested=_total(now, "congested"),
            congested_per_s=self.rate(*total("congested")),
            overruns=now.overruns,
            receipts=now.receipts,
            waiting=now.waiting,
            pending=now.pending,
            is_behind=now.is_behind,
            subscriptions=now.subscriptions,
            topics=now.topics,
            items=now.items,
            age_s=self._age_s,
        )

    def _class(self, now: ClassRecord, before: ClassRecord | None, share: float | None) -> ClassRow:
        was: dict[str, int] = {} if before is None else msgspec.structs.asdict(before)
        return ClassRow(
            share=share,
            sent=now.sent,
            bytes=now.bytes,
            conflated=now.conflated,
            congested=now.congested,
            sent_per_s=self.rate(now.sent, was.get("sent")),
            conflated_per_s=self.rate(now.conflated, was.get("conflated")),
            congested_per_s=self.rate(now.congested, was.get("congested")),
        )


def _of(earlier: Mapping[Any, Any], key: Hashable, field: str) -> int | None:
    """Return the previous count."""
    value: int | None = getattr(earlier.get(key), field, None)
    return value


def _pair_troubles(now: Replication | None) -> list[str]:
    """Return the problems of a router's replication and voting."""
    if now is None:
        return []
    troubles = [] if now.state == "in step" else [f"{now.state}: the pair does not have two copies"]
    if now.differences:
        troubles.append(f"configured differently: {', '.join(now.differences)}")
    if now.lacking:
        troubles.append(f"at one router only: {', '.join(now.lacking)}")
    if not now.is_other_storing:
        troubles.append(f"the disk of {now.other} accepts no writes")
    if now.voting is not None and len(now.voting.in_touch) < VOTERS - 1:
        troubles.append(VOTES)
    return troubles


def _witness(now: WitnessStatus) -> NodeFacts:
    """Build the facts of a pair's witness; its clients are the routers."""
    wrongs = ((len(now.in_touch) == len(now.routers), ASKED), (now.is_storing, DISK))
    return NodeFacts([what for is_well, what in wrongs if not is_well], consumers=len(now.in_touch))


def _sum(rates: Iterable[float | None]) -> float | None:
    """Sum the known rates; None if none is known."""
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def _total(record: ConsumerDistributionRecord, field: str) -> int:
    return sum(getattr(each, field) for each in record.classes.values())


def _shares(now: ConsumerDistributionRecord, before: ConsumerDistributionRecord | None) -> dict[str, float]:
    """Return the shares of the classes in the bytes sent since `before`, or since the start."""
    ever: dict[str, int] = {name: each.bytes for name, each in now.classes.items()}
    was: dict[str, int] = {} if before is None else {name: each.bytes for name, each in before.classes.items()}
    lately = {name: max(0, size - was.get(name, 0)) for name, size in ever.items()}
    counted = lately if any(lately.values()) else ever
    total = sum(counted.values())
    return {name: size / total for name, size in counted.items()} if total else {}


def _account(account: Any) -> tuple[str, str, int]:
    return account.client, account.subscription_id, account.opened_ns
