"""The state of a plant at one moment, row by row: the output of `penstock top --once --json`.

A rate is None if unknown: at the first poll, after a restart of the node, and while the node does not answer. `age_s`
is None for a current answer; otherwise the row shows the last answer, which is this many seconds old.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec


class State(StrEnum):
    UP = "up"
    DEGRADED = "degraded"
    """The node works, but lacks something: its feed, its synchronisation, the administration server."""

    FAILED = "failed"
    """The node reports that it is not working."""

    FAILING = "failing"
    """The node fails repeatedly, and its supervisor restarts it with growing pauses."""

    UNREACHABLE = "unreachable"
    """The node does not answer: it is dead or hung, or the network is interrupted."""

    GARBLED = "garbled"
    """An answer could not be parsed."""

    UNKNOWN = "unknown"
    """The address of the node is unknown."""

    PAGELESS = "no page"
    """Nodes of this kind have no page."""


WELL = (State.UP, State.PAGELESS)


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    role: str
    state: State
    detail: str
    """The node's own description, or why its state is unknown."""

    age_s: float | None = None
    """Age of the last answer, if the node no longer answers."""

    uptime_s: float | None = None
    in_per_s: float | None = None
    """Messages received, each counted once."""

    out_per_s: float | None = None
    """Messages sent, counted once per receiver. None if the node does not report all receivers."""

    latency_us: Mapping[str, float] = {}
    """By percentile, since the node's start, if measured: from receiving a message to sending it."""

    lost: int | None = None
    """Messages known to be lost since the node's start."""

    consumers: int | None = None
    restarts: int = 0
    """Restarts by the supervisor of the plant; without one, restarts seen while watching."""

    garbled: int = 0
    """Answers and lines that could not be parsed while watching."""


class StreamRow(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    stream: str
    state: str
    position: int
    """Number of messages so far, or number of the last one."""

    per_s: float | None = None
    age_s: float | None = None


class LossRow(msgspec.Struct, frozen=True, kw_only=True):
    """A counter of messages lost, dropped, refused or malformed."""

    is_harmless: bool = False
    """True if nothing is missing anywhere because of what was counted: copies, packets of ended streams, goodbyes."""

    node: str
    component: str
    what: str
    cause: str
    count: int
    per_s: float | None = None
    age_s: float | None = None


class ClassRow(msgspec.Struct, frozen=True, kw_only=True):
    """One delivery class of a consumer."""

    share: float | None
    """Share of the bytes sent since the last poll, or since the start if there were none; all shares add up to 1."""

    sent: int
    bytes: int
    conflated: int
    congested: int
    sent_per_s: float | None = None
    conflated_per_s: float | None = None
    congested_per_s: float | None = None


class ConsumerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A receiver served by a node; for a distribution node, with its consumer distribution record."""

    node: str
    consumer: str
    number: int
    destination: str
    memory: str = ""
    classes: Mapping[str, ClassRow] = {}
    sent: int
    """Events of a distribution node, packets of a filter module, messages of an adapter."""

    sent_per_s: float | None = None
    bytes_per_s: float | None = None
    conflated: int = 0
    """Updates conflated into a later event."""

    conflated_per_s: float | None = None
    congested: int = 0
    """Number of times without room."""

    congested_per_s: float | None = None
    overruns: int = 0
    receipts: int = 0
    """Loss receipts sent to the consumer."""

    waiting: int = 0
    """Refreshes waiting to be sent."""

    pending: int = 0
    """Waiting items of the adaptive class."""

    is_behind: bool = False
    subscriptions: int = 0
    topics: int = 0
    """Distinct topics of its subscriptions."""

    items: int = 0
    age_s: float | None = None


class EndpointRow(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint of a message router."""

    node: str
    endpoint: str
    consumers: str
    """shared or exclusive."""

    messages: int
    bytes: int
    unsettled: int
    """Messages delivered and not settled."""

    flows: int
    """Connected consumers."""

    accepted: int
    delivered: int
    settled: int
    given_up: int
    """Messages dead-lettered or discarded; all four counters are since the router's start."""

    accepted_per_s: float | None = None
    delivered_per_s: float | None = None
    settled_per_s: float | None = None
    age_s: float | None = None


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    nodes: list[NodeRow]
    streams: list[StreamRow]
    losses: list[LossRow]
    consumers: list[ConsumerRow]
    endpoints: list[EndpointRow]

    @property
    def is_well(self) -> bool:
        return all(node.state in WELL for node in self.nodes)
