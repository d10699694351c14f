"""The status of a message router or a witness, for its operator."""

from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec

from penstock.assured.config import Role
from penstock.assured.wire.control import EndpointInfo
from penstock.base.metrics import Row
from penstock.base.words import counted
from penstock.runtime.happening import Happening

Copying: TypeAlias = Literal["in step", "catching up", "degraded", "apart"]
"""In step: the standby has everything. Catching up: it is receiving missing messages. Degraded: the active router
acknowledges synchronous messages without it. Apart: there is no link, or neither router is active."""


class Voting(msgspec.Struct, frozen=True):
    """State of a router whose pair switches automatically."""

    witness: str
    in_touch: list[str]
    """The other voters that are connected."""

    is_storing: bool
    """True if the disk accepts the promises that this router makes as a voter."""

    clocks_apart_ms: int = 0
    """Minimum difference to another voter's wall clock: messages expire by that of the active router."""


class Replication(msgspec.Struct, frozen=True):
    """State of a router and its peer."""

    other: str
    state: Copying
    since_ns: int
    """Begin of the current state, by the wall clock."""

    is_linked: bool
    is_ordered: bool
    """True if degraded by an operator's order."""

    backlog: int
    """For the active router: messages and other events that the standby has not got yet."""

    differences: tuple[str, ...] = ()
    """Settings that differ at the other router, although they should be equal."""

    lacking: tuple[str, ...] = ()
    """Endpoints that only the active router has: their messages are on one disk."""

    is_other_storing: bool = True
    """True if the other router's disk accepts data, as far as is known."""

    voting: Voting | None = None
    """None: operators decide which router is active."""


class RouterStatus(msgspec.Struct, frozen=True):
    name: str
    kind: Literal["router"]
    role: Role
    epoch: int
    control_port: int
    clients: int
    is_storing: bool
    """True if the disk accepts data."""
    is_in_touch: bool
    """True if the administration server answers, or if there is none."""
    endpoints: list[EndpointInfo]
    happenings: list[Happening]
    """The newest happenings, oldest first."""

    replication: Replication | None = None
    """For a router in a pair."""


def detail_of(status: RouterStatus) -> str:
    """A one-line summary for health checks."""
    queued = sum(each.messages for each in status.endpoints)
    replication = status.replication
    copies = "" if replication is None else f", {replication.state}"
    clients, messages = counted(status.clients, "client"), counted(queued, "message")
    detail = f"{status.role}, epoch {status.epoch}{copies}, {clients}, {messages} queued"
    if not status.is_in_touch:
        detail += "; the administration server does not answer"
    if not status.is_storing:
        detail += "; the disk accepts no data"
    if replication is not None and not replication.is_other_storing:
        detail += f"; the disk of {replication.other} accepts no data"
    return detail


def gauges_of(status: RouterStatus) -> dict[str, float]:
    gauges: dict[str, float] = {
        "router_active": status.role == "active",
        "router_epoch": status.epoch,
        "router_clients": status.clients,
        "router_storing": status.is_storing,
        "router_endpoints": len(status.endpoints),
        "router_messages": sum(each.messages for each in status.endpoints),
    }
    if (replication := status.replication) is not None:
        gauges["router_replication_linked"] = replication.is_linked
        gauges["router_replication_in_step"] = replication.state == "in step"
        gauges["router_replication_degraded"] = replication.state == "degraded"
        gauges["router_replication_backlog"] = replication.backlog
        gauges["router_replication_lacking"] = len(replication.lacking)
        gauges["router_replication_other_storing"] = replication.is_other_storing
        if replication.voting is not None:
            gauges["router_voters"] = len(replication.voting.in_touch)
    return gauges


def rows_of(status: RouterStatus) -> Iterator[Row]:
    for each in status.endpoints:
        labels = {"node": status.name, "endpoint": each.endpoint.name}
        yield Row("endpoint_messages", labels, each.messages)
        yield Row("endpoint_bytes", labels, each.bytes)
        yield Row("endpoint_unsettled", labels, each.unsettled)
        yield Row("endpoint_flows", labels, each.flows)


class WitnessStatus(msgspec.Struct, frozen=True):
    name: str
    kind: Literal["witness"]
    epoch: int
    """The newest epoch that it has granted."""

    holder: str
    """The router with that grant; empty: none yet."""

    bound_to: str
    """The router that has its vote now."""

    alone: str
    """The router with messages that the other one lacks: no automatic switch while there is one (REPL-8)."""

    routers: tuple[str, str]
    in_touch: list[str]
    """The routers that are connected."""

    control_port: int
    is_storing: bool
    """True if its disk accepts its promises."""
