"""The status of an agent, for its operator."""

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
    """Messages after this sequence are in memory."""
    duplicates: int


class LinkStatus(msgspec.Struct, frozen=True):
    """A neighbour: parent, peer or child."""

    link: int
    name: str
    role: str
    """"parent", or as what it logged in."""
    place: str
    home: str
    """The agent that moved it here temporarily."""
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
    """True if the administration server answers, or if there is none."""
    is_storing: bool
    """True if the disk accepts data, or if the agent stores nothing."""
    load_percent: int
    """CPU load of the agent's process, in percent of one core."""
    streams: list[StreamStatus]
    links: list[LinkStatus]
    """If there are very many links, those that have existed longest."""
    child_count: int
    happenings: list[Happening]
    """The newest messages of the infostream, oldest first."""
    is_degraded: bool = False
    """For a root with synchronous replication: True if it acknowledges messages that no standby has."""
    why_alone: str = ""
    """For an agent without a parent: where it looked last, and why that agent did not become the parent."""


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
