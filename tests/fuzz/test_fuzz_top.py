"""Random pages of a node: `penstock top` refuses or shows them, and never fails."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.errors import RemoteProtocolError
from penstock.filter.core.status import FilterStatus
from penstock.plant.core.status import NodeStatus
from penstock.top.core.picture import Picture
from penstock.top.core.places import Place
from penstock.top.core.reading import Pages, parse_answer, read_metrics, understand
from penstock.top.core.shown import VIEWS
from penstock.top.core.watch import Watch

PLACE = Place("127.0.0.1:1", "127.0.0.1", 1)

CLASS = {"sent": 1, "bytes": 1, "conflated": 0, "congested": 0}
CONSUMER: dict[str, Any] = {
    "consumer": 1, "name": "a", "destination": "", "memory": ["ring"], "subscriptions": 1, "topics": 1, "items": 1,
    "classes": {"critical": CLASS}, "overruns": 0, "receipts": 0, "waiting": 0, "pending": 0, "is_behind": False,
}  # fmt: skip
NODE = msgspec.to_builtins(NodeStatus("n", "plant", 1, 1, True, True, 1, 1, 1, [], {"p50": 1.0}))
FILTER = msgspec.to_builtins(FilterStatus("f", 1, "", "", True, 600.0, "", 1, 1, 1, 1, 1, []))
HEALTH = {"is_healthy": True, "detail": "fine"}

VALUES = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20) | st.just([CONSUMER])
)
COUNTER = b'penstock_packets_lost_total{cause="gone",component="receiver"} 3.0\n'


@st.composite
def changed(draw: st.DrawFn, document: dict[str, Any]) -> bytes:
    """A page with some values replaced, some left out, and some bytes damaged."""
    for name in draw(st.lists(st.sampled_from(sorted(document)), max_size=3)):
        document = {**document, name: draw(VALUES)}
    for name in draw(st.lists(st.sampled_from(sorted(document)), max_size=1)):
        document = {key: value for key, value in document.items() if key != name}
    page = bytearray(msgspec.json.encode(document))
    for _ in range(draw(st.integers(0, 2))):
        page[draw(st.integers(0, len(page) - 1))] = draw(st.integers(0, 255))
    return bytes(page)


def show(watch: Watch, pages: Pages, at_ns: int) -> Picture | None:
    try:
        reading = understand(PLACE, pages, at_ns)
    except RemoteProtocolError:
        return None
    picture = watch.take([reading], at_ns)
    for view in VIEWS:
        view.table(picture, order=len(view.columns) - 1, wanted="a")
    return msgspec.json.decode(msgspec.json.encode(picture), type=Picture)


@given(st.lists(st.tuples(changed(HEALTH), changed(NODE) | changed(FILTER), st.binary()), min_size=1, max_size=3))
def test_changed_pages_do_no_harm(answers: list[tuple[bytes, bytes, bytes]]) -> None:
    watch = Watch()
    assert show(watch, Pages(*map(msgspec.json.encode, (HEALTH, NODE)), COUNTER), 1) is not None
    for number, (health, status, metrics) in enumerate(answers, start=2):
        show(watch, Pages(health, status, COUNTER + metrics), number * 10**9)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_answer_or_refused(data: bytes) -> None:
    for each in (data, b"HTTP/1.0 200 OK\r\n" + data, b"HTTP/1.0 200 OK\r\n\r\n" + data):
        try:
            parse_answer(each)
        except RemoteProtocolError:
            continue


@given(st.binary(max_size=200), st.integers(0, len(COUNTER)))
def test_metrics_lines_are_read_or_refused_for_any_bytes(data: bytes, size: int) -> None:
    _, counters, garbled = read_metrics(COUNTER[:size] + data + b"\n" + COUNTER)
    assert garbled >= 0
    assert all(0 <= value < 2**65 for value in counters.values())
    assert [key for key in counters if key.name == "packets_lost"]
