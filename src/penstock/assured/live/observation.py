"""The status of a router's core for its operator; may be read in any thread."""

from penstock.assured.config import Role
from penstock.assured.core.pair.pair import Pair
from penstock.assured.core.router.endpoints import Endpoint
from penstock.assured.core.router.router import MessageRouter
from penstock.assured.core.status import Copying
from penstock.assured.wire.control import EndpointInfo
from penstock.base.errors import PenstockError


def role_of(core: MessageRouter) -> Role:
    return "active" if core.is_active else "standby"


def copying_of(pair: Pair) -> Copying:
    if pair.is_active and pair.degradation.state != "synchronous":
        return "degraded"
    if pair.link.peer is None or not (pair.is_active or pair.link.peer.role == "active"):
        return "apart"
    if not pair.is_active and pair.link.peer.is_degraded:
        return "degraded"
    side = pair.sending if pair.is_active else pair.receiving
    return "in step" if side is not None and side.is_whole else "catching up"


def lacking_of(pair: Pair) -> tuple[str, ...]:
    """Endpoints that only the active router has."""
    if pair.is_active:
        return tuple(pair.sending.absent) if pair.sending is not None else ()
    return tuple(sorted(pair.receiving.lacking.values())) if pair.receiving is not None else ()


FORCE = "--force does not ask the other router"
LOSE = "--force --lose gives up all messages that only the other router has"
RENEWS = "the other router is active and answers: with a witness, an order here does not end its lease"


def objection(pair: Pair, is_forced: bool, may_lose: bool) -> tuple[str, str]:
    """Return the reason why this router cannot become active now, and the next step. The reason is empty if nothing
    prevents a switch, or if the router is active."""
    if not is_forced:
        return _objection(pair) or _asking(pair), FORCE
    if pair.keeper is not None and not pair.is_active and not (_objection(pair) or _asking(pair)):
        return RENEWS, "switch without --force: this router has everything"
    is_empty = pair.epoch == 0 and pair.link.peer is None and not pair.is_active
    if is_empty and not may_lose:
        return "this router never had any messages, and the other router does not answer", LOSE
    return _objection(pair), ""


def _objection(pair: Pair) -> str:
    """The reason that prevents a switch even with force."""
    if pair.is_active:
        return ""
    if pair.link.peer is not None and pair.link.peer.role == "standby" and pair.link.peer.epoch > pair.epoch:
        return "the other router has messages that this one lacks: switch there"
    if pair.router.trouble:
        return "this router's disk accepts no data"
    return ""


def _asking(pair: Pair) -> str:
    """The reason why the other router cannot be asked to stop."""
    if pair.is_active:
        return ""
    if pair.link.peer is None:
        return "the other router does not answer"
    if pair.link.peer.role != "active":
        return "the other router is not active, either"
    return "" if pair.receiving is not None and pair.receiving.is_whole else "this router is still catching up"


def endpoints_of(core: MessageRouter, name: str = "") -> list[EndpointInfo]:
    """All endpoints, or the one of this name."""
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
        # a standby's messages are in no queue, and in flight to no consumer
        unsettled=numbers["messages"] - numbers["queued"] if core.is_active else 0,
        flows=numbers["flows"],
        accepted=numbers["accepted"],
        delivered=numbers["delivered"],
        settled=numbers["settled"],
        given_up=numbers["given_up"],
    )
