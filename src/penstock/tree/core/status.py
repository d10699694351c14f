"""How an agent is, as its operator sees it."""

from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec

from penstock.base.metrics import Row
from penstock.runtime.happening import Happening

State: TypeAlias = Literal["root", "standby", "agent", "fenced"]


class StreamStatus(msgspec.Struct, frozen=True):
    number: int
    name: str
    topics: tuple[str, ...]
    term: int
    last: int
    """The sequence of the newest message."""
    kept_after: int
    """What came after this sequence is in memory."""
    duplicates: int


class LinkStatus(msgspec.Struct, frozen=True):
    """A neighbour: parent, peer or child."""

    link: int
    name: str
    role: str
    """"parent", or as what it logged in."""
    place: str
    home: str
    """The agent that sent it here for the time being."""
    waiting_bytes: int
    packets_out: int
    bytes_out: int
    packets_in: int
    bytes_in: int
    conflated: int
    legs: int
    is_lagging: bool


class AgentStatus(msgspec.Struct, frozen=True):
    name: str
    kind: Literal["agent"]
    tree: str
    state: State
    is_rooted: bool
    term: int
    parent: str
    path: tuple[str, ...]
    """From the root to this agent."""
    control_port: int
    is_in_touch: bool
    """Whether the administration server answers; true where there is none."""
    is_storing: bool
    """Whether the disk takes what comes; true where nothing is kept."""
    load_percent: int
    """How busy its process is, of one core."""
    streams: list[StreamStatus]
    links: list[LinkStatus]
    """Those that have been here longest, where there are very many."""
    child_count: int
    happenings: list[Happening]
    """The newest of the infostream, oldest first."""
    is_degraded: bool = False
    """Of a root with synchronous replication: whether it acknowledges messages that no standby has."""
    why_alone: str = ""
    """Of an agent without a parent: where it looked last, and why it did not come to be below that one."""


def gauges_of(status: AgentStatus) -> dict[str, float]:
    return {
        "agent_children": status.child_count,
        "agent_rooted": status.is_rooted,
        "agent_term": status.term,
        "agent_depth": len(status.path),
        "agent_in_touch": status.is_in_touch,
        "agent_storing": status.is_storing,
        "agent_replication_degraded": status.is_degraded,
        "agent_load_percent": status.load_percent,
        "agent_messages": sum(each.last for each in status.streams),
    }


def rows_of(status: AgentStatus) -> Iterator[Row]:
    for stream in status.streams:
        labels = {"node": status.name, "stream": stream.name}
        yield Row("stream_last", labels, stream.last)
        yield Row("stream_duplicates", labels, stream.duplicates)
    for link in status.links:
        labels = {"node": status.name, "party": link.name, "role": link.role}
        yield Row("link_waiting_bytes", labels, link.waiting_bytes)
        yield Row("link_packets_out", labels, link.packets_out)
        yield Row("link_bytes_out", labels, link.bytes_out)
        yield Row("link_packets_in", labels, link.packets_in)
        yield Row("link_conflated", labels, link.conflated)
        yield Row("link_lagging", labels, link.is_lagging)
