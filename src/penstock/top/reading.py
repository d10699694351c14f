"""Asks nodes for their pages; a node that does not answer, or answers nonsense, is down, and nothing worse."""

import http.client
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from penstock.top.places import Place

TIMEOUT_SECONDS = 2.0
PAGE_SIZE_MAX = 16 * 1024 * 1024
AT_ONCE = 16
PREFIX = "penstock_"
TOTAL = "_total"

# A proxy has no business between an operator and a node.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

Counts = dict[str, dict[str, float]]


class Reading(msgspec.Struct, frozen=True):
    """One node at one moment."""

    place: Place
    at_ns: int
    """Of the monotonic clock."""

    fault: str = ""
    """Why there is nothing to see."""

    detail: str = ""
    """What the node says of its health."""

    status: Any = None
    """Its own words, as JSON has them; None where it has none."""

    counters: Counts = {}
    """By name and cause, over all components."""

    def count(self, name: str) -> float:
        return sum(self.counters.get(name, {}).values())


def read_all(places: Sequence[Place]) -> list[Reading]:
    """All nodes at once, in the order given."""
    if not places:
        return []
    with ThreadPoolExecutor(min(AT_ONCE, len(places)), thread_name_prefix="penstock-top") as pool:
        return list(pool.map(read, places))


def read(place: Place) -> Reading:
    if not place.url:
        return Reading(place, time.monotonic_ns(), fault=place.why_unknown)
    try:
        health = _fetch(f"{place.url}/health")
        status = _fetch(f"{place.url}/status")
        metrics = _fetch(f"{place.url}/metrics")
        detail = msgspec.json.decode(health or b"{}", type=dict[str, Any]).get("detail", "")
        return Reading(
            place,
            time.monotonic_ns(),
            detail=str(detail),
            status=None if status is None else msgspec.json.decode(status),
            counters={} if metrics is None else counters_of(metrics.decode()),
        )
    except OSError as error:
        return Reading(place, time.monotonic_ns(), fault=str(getattr(error, "reason", error)) or "no answer")
    except (http.client.HTTPException, msgspec.MsgspecError, ValueError) as error:
        return Reading(place, time.monotonic_ns(), fault=f"no page of ours: {error}")


def _fetch(url: str) -> bytes | None:
    """A page's contents; None where the node has no such page. One that says it is ill (503) still has contents."""
    try:
        with _OPENER.open(url, timeout=TIMEOUT_SECONDS) as answer:
            return _bounded(answer.read(PAGE_SIZE_MAX + 1))
    except urllib.error.HTTPError as error:
        with error:
            if error.code == http.HTTPStatus.SERVICE_UNAVAILABLE:
                return _bounded(error.read(PAGE_SIZE_MAX + 1))
            return None


def _bounded(page: bytes) -> bytes:
    if len(page) > PAGE_SIZE_MAX:
        raise ValueError(f"a page of more than {PAGE_SIZE_MAX} bytes")
    return page


def counters_of(exposition: str) -> Counts:
    """The counters of a Prometheus page, by name and cause."""
    counters: Counts = defaultdict(lambda: defaultdict(float))
    for family in text_string_to_metric_families(exposition):
        if family.type != "counter" or not family.name.startswith(PREFIX):
            continue
        for sample in family.samples:
            if sample.name.endswith(TOTAL):
                counters[family.name.removeprefix(PREFIX)][sample.labels.get("cause", "")] += sample.value
    return {name: dict(causes) for name, causes in counters.items()}
