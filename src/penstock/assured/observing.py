"""What a router's core shows of itself, as its operator sees it; in any thread."""

from penstock.assured.config import Role
from penstock.assured.control import EndpointInfo
from penstock.assured.core import MessageRouter
from penstock.assured.endpoints import Endpoint
from penstock.base.errors import PenstockError


def role_of(core: MessageRouter) -> Role:
    return "active" if core.is_active else "standby"


def endpoints_of(core: MessageRouter, name: str = "") -> list[EndpointInfo]:
    """All, or the one of this name if there is one."""
    infos = (_info(core, each) for each in list(core.endpoints) if not name or each.name == name)
    return [each for each in infos if each is not None]


def _info(core: MessageRouter, endpoint: Endpoint) -> EndpointInfo | None:
    try:
        numbers = core.tables.endpoint_numbers(endpoint.number)
    except PenstockError:  # it was deleted meanwhile
        return None
    return EndpointInfo(
        endpoint.config,
        messages=numbers["messages"],
        bytes=numbers["bytes"],
        unsettled=numbers["messages"] - numbers["queued"],
        flows=numbers["flows"],
        accepted=numbers["accepted"],
        delivered=numbers["delivered"],
        settled=numbers["settled"],
        given_up=numbers["given_up"],
    )
