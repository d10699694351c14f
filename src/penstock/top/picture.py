"""What there is to see at one moment, row by row: what `penstock top --once --json` gives to scripts.

A rate is None where there is none: at the first look, after a node was started anew, and while it does not answer.
`age_s` is None for what a node has just said; else these are its last words, so many seconds old.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec


class State(StrEnum):
    UP = "up"
    DEGRADED = "degraded"
    """It works, but lacks something: its feed, its synchronisation, the administration server."""

    FAILED = "failed"
    """It answers, and says that it does not do its work."""

    FAILING = "failing"
    """It dies again and again, and its supervisor restarts it with growing pauses."""

    UNREACHABLE = "unreachable"
    """It does not answer: dead, hung, or the network between."""

    GARBLED = "garbled"
    """Something answers that is not understood."""

    UNKNOWN = "unknown"
    """Nobody knows where to ask."""

    PAGELESS = "no page"
    """Nodes of its kind never show themselves."""


WELL = (State.UP, State.PAGELESS)


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    role: str
    state: State
    detail: str
    """What it says of itself; or why nothing is known."""

    age_s: float | None = None
    """Since it last answered, if it does no longer."""

    uptime_s: float | None = None
    in_per_s: float | None = None
    """Messages taken, each once."""

    out_per_s: float | None = None
    """Messages given on; one that several get counts for each. None where it does not tell of all who get some."""

    latency_us: Mapping[str, float] = {}
    """By percentile, over all its life, where it measures one: from taking a message to having given it on."""

    lost: int | None = None
    """Messages known to be lost, since it was started."""

    consumers: int | None = None
    restarts: int = 0
    """Seen while watching."""

    garbled: int = 0
    """Answers and lines that were not understood, while watching."""


class StreamRow(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    stream: str
    state: str
    position: int
    """Messages so far, or the last one's number."""

    per_s: float | None = None
    age_s: float | None = None


class LossRow(msgspec.Struct, frozen=True, kw_only=True):
    """A counter of what was lost, dropped, refused or not understood."""

    node: str
    component: str
    what: str
    cause: str
    count: int
    per_s: float | None = None
    age_s: float | None = None


class ClassRow(msgspec.Struct, frozen=True, kw_only=True):
    """One transmission class of a consumer."""

    share: float | None
    """Of the bytes sent since the last look, or ever if there were none; all shares together are 1."""

    sent: int
    bytes: int
    conflated: int
    congested: int
    sent_per_s: float | None = None
    conflated_per_s: float | None = None
    congested_per_s: float | None = None


class ConsumerRow(msgspec.Struct, frozen=True, kw_only=True):
    """Who is served by a node: of an engine, with its consumer distribution record."""

    node: str
    consumer: str
    number: int
    destination: str
    memory: str = ""
    classes: Mapping[str, ClassRow] = {}
    sent: int
    """Events of an engine, packets of a filter module, messages of an adapter."""

    sent_per_s: float | None = None
    bytes_per_s: float | None = None
    conflated: int = 0
    """Updates that went into a later event."""

    conflated_per_s: float | None = None
    congested: int = 0
    """Times that there was no room."""

    congested_per_s: float | None = None
    overruns: int = 0
    receipts: int = 0
    """It was told of what it did not get."""

    waiting: int = 0
    """Refreshes that it is to get."""

    pending: int = 0
    """Items of the adaptive class that it is owed."""

    is_behind: bool = False
    subscriptions: int = 0
    topics: int = 0
    """Different ones among its subscriptions."""

    items: int = 0
    age_s: float | None = None


class EndpointRow(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of a message router."""

    node: str
    endpoint: str
    consumers: str
    """shared or exclusive."""

    messages: int
    bytes: int
    unsettled: int
    """Of the messages: delivered, and not settled."""

    flows: int
    """Consumers that are here."""

    accepted: int
    delivered: int
    settled: int
    given_up: int
    """To the dead-message queue, or discarded; all four since the router was started."""

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
