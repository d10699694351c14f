"""Parse nodes' pages. All input is untrusted: an invalid page raises RemoteProtocolError, invalid lines are counted."""

import math
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from penstock.assured.core.status import RouterStatus, WitnessStatus
from penstock.base.decoding import DECODE_ERRORS, json_decoder
from penstock.base.errors import RemoteProtocolError
from penstock.feed.core.status import AdapterStatus
from penstock.filter.core.status import FilterStatus
from penstock.plant.core.status import NodeStatus
from penstock.top.core.places import Place
from penstock.tree.core.status import AgentStatus

NUMBER_MAX = 2.0**64
PREFIX, UPTIME = "penstock_", "penstock_uptime_seconds"

Outcome: TypeAlias = Literal["answered", "unreachable", "garbled", "unknown"]
Status: TypeAlias = AdapterStatus | FilterStatus | NodeStatus | AgentStatus | RouterStatus | WitnessStatus

_STATUSES: dict[str, type[Status]] = {
    "adapter": AdapterStatus,
    "filter": FilterStatus,
    "plant": NodeStatus,
    "mux": NodeStatus,
    "edge": NodeStatus,
    "agent": AgentStatus,
    "router": RouterStatus,
    "witness": WitnessStatus,
}
_COUNTER = re.compile(r"penstock_(\w{1,80})_total\{(.{0,4000})\} (\S{1,40})", re.ASCII)
_LABEL = re.compile(r'(\w{1,40})="((?:[^"\\]|\\.){0,1000})"(?:,|$)', re.ASCII)


class Page(NamedTuple):
    """An HTTP answer to GET."""

    code: int
    body: bytes


class CounterKey(NamedTuple):
    component: str
    name: str
    cause: str


class Pages(NamedTuple):
    """The pages of one node; None for a page that it does not have."""

    health: bytes
    status: bytes | None = None
    metrics: bytes | None = None


class Reading(msgspec.Struct, frozen=True):
    """One node at one moment; without an answer, only `why`."""

    place: Place
    at_ns: int
    """Time of the answers, on the monotonic clock."""

    outcome: Outcome = "answered"
    why: str = ""
    role: str = ""
    is_healthy: bool = True
    detail: str = ""
    uptime_s: float | None = None
    status: Status | None = None
    counters: Mapping[CounterKey, float] = {}
    """Summed over their other labels."""

    garbled_lines: int = 0
    """Invalid lines of its metrics page."""


class _Health(msgspec.Struct, frozen=True):
    is_healthy: bool
    detail: str = ""
    role: str = ""


def parse_answer(data: bytes) -> Page:
    """Parse everything that a server sent before closing the connection."""
    head, separator, body = data.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    matched = re.fullmatch(rb"HTTP/1\.[01] (\d{3})(?: [^\r\n]*)?", first)
    if not separator or matched is None:
        raise RemoteProtocolError("not an HTTP answer")
    for line in lines:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip() != str(len(body)).encode():
            raise RemoteProtocolError("the length of the answer differs from its header")
    return Page(int(matched[1]), body)


def understand(place: Place, pages: Pages, at_ns: int) -> Reading:
    """Parse the pages; raise RemoteProtocolError if they do not belong to such a node."""
    health: _Health = _convert(_json(pages.health, "/health"), _Health, "/health")
    status = None if pages.status is None else _status(_json(pages.status, "/status"), place)
    role = place.role or _role_of(status) or ("administration" if health.role else "")
    uptime_s, counters, garbled = (None, {}, 0) if pages.metrics is None else read_metrics(pages.metrics)
    return Reading(
        place,
        at_ns,
        role=role,
        is_healthy=health.is_healthy,
        detail=health.detail or health.role,
        uptime_s=uptime_s,
        status=status,
        counters=counters,
        garbled_lines=garbled,
    )


def read_metrics(page: bytes) -> tuple[float | None, dict[CounterKey, float], int]:
    """Return the uptime, the counters, and the number of invalid penstock lines."""
    counters: dict[CounterKey, float] = {}
    uptime_s, garbled = None, 0
    for line in page.decode(errors="replace").split("\n"):
        if line.startswith(UPTIME):
            uptime_s = _number(line.removeprefix(UPTIME).strip())
            garbled += uptime_s is None
        elif line.startswith(PREFIX) and "_total" in line.partition("{")[0]:
            entry = _counter(line)
            if entry is None:
                garbled += 1
            else:
                key, value = entry
                counters[key] = counters.get(key, 0.0) + value
    return uptime_s, counters, garbled


def _counter(line: str) -> tuple[CounterKey, float] | None:
    matched = _COUNTER.fullmatch(line)
    value = None if matched is None else _number(matched[3])
    if matched is None or value is None:
        return None
    labels = dict(_LABEL.findall(matched[2]))
    return CounterKey(labels.get("component", ""), matched[1], labels.get("cause", "")), value


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value <= NUMBER_MAX else None


def _status(document: Any, place: Place) -> Status | None:
    role = place.role or _role_said(document)
    if role not in _STATUSES:
        return None
    status: Status = _convert(document, _STATUSES[role], "/status")
    if place.role and status.name != place.name:
        raise RemoteProtocolError(f"another node answers here: {status.name[:80]!r}")
    return status


def _role_said(document: Any) -> str:
    """Return the role, recognised by keys that only its status has."""
    keys: Any = document if isinstance(document, dict) else {}
    if "kind" in keys:
        return str(keys["kind"])
    return "adapter" if "term" in keys else "filter" if "applications" in keys else ""


def _role_of(status: Status | None) -> str:
    match status:
        case AdapterStatus():
            return "adapter"
        case FilterStatus():
            return "filter"
        case NodeStatus() | AgentStatus() | RouterStatus() | WitnessStatus():
            return status.kind
    return ""


def _json(page: bytes, where: str) -> Any:
    try:
        document = msgspec.json.decode(page)
        _check_numbers(document)
    except DECODE_ERRORS as error:
        raise RemoteProtocolError(f"cannot parse the page: {error}", where=where) from None
    return document


def _check_numbers(document: Any) -> None:
    """Refuse numbers that are too large for arithmetic."""
    if isinstance(document, dict):
        for value in document.values():
            _check_numbers(value)
    elif isinstance(document, list):
        for value in document:
            _check_numbers(value)
    elif isinstance(document, int | float) and not -NUMBER_MAX <= document <= NUMBER_MAX:
        raise msgspec.ValidationError("a number is too large")


def _convert(document: Any, kind: Any, where: str) -> Any:
    try:
        json_decoder(kind)  # all its types are known afterwards, in any thread
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(f"cannot parse the page: {error}", where=where) from None
