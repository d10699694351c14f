"""How a message router is, as its operator sees it."""

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from penstock.assured.config import Role
from penstock.assured.control import EndpointInfo
from penstock.base.metrics import Row


class Happening(msgspec.Struct, frozen=True):
    """Something that its core noted for people."""

    time_ns: int
    what: str
    values: Mapping[str, str | int]


class RouterStatus(msgspec.Struct, frozen=True):
    name: str
    kind: Literal["router"]
    role: Role
    epoch: int
    control_port: int
    pair: str
    clients: int
    is_storing: bool
    """Whether the disk takes what comes."""
    is_in_touch: bool
    """Whether the administration server answers; true where there is none."""
    endpoints: list[EndpointInfo]
    happenings: list[Happening]
    """The newest, oldest first."""


def gauges_of(status: RouterStatus) -> dict[str, float]:
    return {
        "router_active": status.role == "active",
        "router_epoch": status.epoch,
        "router_clients": status.clients,
        "router_storing": status.is_storing,
        "router_endpoints": len(status.endpoints),
        "router_messages": sum(each.messages for each in status.endpoints),
    }


def rows_of(status: RouterStatus) -> Iterator[Row]:
    for each in status.endpoints:
        labels = {"node": status.name, "endpoint": each.endpoint.name}
        yield Row("endpoint_messages", labels, each.messages)
        yield Row("endpoint_bytes", labels, each.bytes)
        yield Row("endpoint_unsettled", labels, each.unsettled)
        yield Row("endpoint_flows", labels, each.flows)
