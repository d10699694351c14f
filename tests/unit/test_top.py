"""`penstock top` with pages of nodes, without nodes."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.assured.config import EndpointConfig
from penstock.assured.core.status import Replication, RouterStatus, Voting, WitnessStatus
from penstock.assured.wire.control import EndpointInfo
from penstock.base.clock import NS_PER_SECOND
from penstock.base.counters import CATALOGUE, Counters
from penstock.base.errors import ConfigurationError, RemoteProtocolError
from penstock.base.metrics import Metrics
from penstock.engine.core.consumer_records import ClassRecord, ConsumerDistributionRecord
from penstock.filter.core.status import ApplicationStatus, FilterStatus
from penstock.plant.core.status import NodeStatus, gauges_of, rows_of
from penstock.top.core.picture import ConsumerRow, NodeRow, Picture, State
from penstock.top.core.places import Place, place_given
from penstock.top.core.reading import CounterKey, Pages, Reading, Status, parse_answer, read_metrics, understand
from penstock.top.core.rows import TROUBLES
from penstock.top.core.shown import CONSUMERS, ENDPOINTS, LOSSES, NODES, STREAMS, VIEWS, duration, word
from penstock.top.core.watch import Watch

PLANT = Place("records", "127.0.0.1", 7001, "plant")
BESIDE = Place("beside", "127.0.0.1", 7002, "filter")
LOST = CounterKey("receiver", "messages_lost", "gone")


def class_record(sent: int = 0, size: int = 0, conflated: int = 0, congested: int = 0) -> ClassRecord:
    return ClassRecord(sent=sent, bytes=size, conflated=conflated, congested=congested)


def record(name: str = "screen", **values: Any) -> ConsumerDistributionRecord:
    standard: dict[str, Any] = {
        "consumer": 1, "name": name, "destination": "desk", "memory": ("ring",), "subscriptions": 2, "topics": 3,
        "items": 4, "classes": {"critical": class_record()}, "overruns": 0, "receipts": 0, "waiting": 0,
        "pending": 0, "is_behind": False,
    }  # fmt: skip
    return ConsumerDistributionRecord(**{**standard, **values})


def plant_status(updates: int = 0, *consumers: ConsumerDistributionRecord, **values: Any) -> NodeStatus:
    standard: dict[str, Any] = {
        "name": "records", "kind": "plant", "control_port": 7410, "epoch": 1, "is_in_touch": True, "is_fed": True,
        "items": 9, "updates": updates, "consumer_count": len(consumers), "consumers": list(consumers),
    }  # fmt: skip
    return NodeStatus(**{**standard, **values})


def filter_status(messages: int, passed: int = 0, *applications: ApplicationStatus) -> FilterStatus:
    return FilterStatus(
        "beside", 7402, "127.0.0.1:9", "module", True, None, "", 2, 5, messages, 1, passed, list(applications)
    )


def reading(at_s: float, status: Status | None, place: Place = PLANT, **values: Any) -> Reading:
    return Reading(place, int(at_s * NS_PER_SECOND), role=place.role, status=status, **{"uptime_s": at_s, **values})


def look(watch: Watch, *readings: Reading, at_s: float | None = None) -> Picture:
    now_ns = max(each.at_ns for each in readings) if at_s is None else int(at_s * NS_PER_SECOND)
    return watch.take(readings, now_ns)


def only_node(picture: Picture) -> NodeRow:
    (row,) = picture.nodes
    return row


def only_consumer(picture: Picture) -> ConsumerRow:
    (row,) = picture.consumers
    return row


# Rates


def test_the_first_sample_has_no_rates_and_the_second_has_those_of_the_interval() -> None:
    watch = Watch()
    first = look(watch, reading(10, plant_status(1_000, record())))
    assert (only_node(first).in_per_s, only_node(first).out_per_s, only_consumer(first).sent_per_s) == (
        None,
        None,
        None,
    )
    sent = record(classes={"critical": class_record(500, 9_000)})
    second = look(watch, reading(12, plant_status(3_000, sent)))
    assert only_node(second).in_per_s == 1_000
    assert only_node(second).out_per_s == 250
    assert only_consumer(second).sent_per_s == 250
    assert only_consumer(second).bytes_per_s == 4_500
    assert second.streams[0].per_s == 1_000


def test_a_failed_sample_lengthens_the_interval_and_does_not_raise_the_rate() -> None:
    watch = Watch()
    look(watch, reading(10, plant_status(0)))
    look(watch, Reading(PLANT, 11 * NS_PER_SECOND, "unreachable", "refused"))
    assert only_node(look(watch, reading(14, plant_status(4_000)))).in_per_s == 1_000


@pytest.mark.parametrize(
    ("epoch", "uptime_s"), [(2, 12.0), (1, 1.0), (1, 40.0)], ids=["another epoch", "less uptime", "up for too short"]
)
def test_a_restarted_node_has_no_rates_and_is_counted(epoch: int, uptime_s: float) -> None:
    watch = Watch()
    look(watch, reading(10, plant_status(0, record())))
    again = reading(60, plant_status(100, record(), epoch=epoch), uptime_s=uptime_s)
    picture = look(watch, again)
    assert (only_node(picture).in_per_s, only_node(picture).restarts) == (None, 1)
    assert only_consumer(picture).sent_per_s is None
    picture = look(watch, reading(61, plant_status(200, record(), epoch=epoch), uptime_s=uptime_s + 1))
    assert (only_node(picture).in_per_s, only_node(picture).restarts) == (100, 1)


def test_a_decreased_counter_has_no_rate() -> None:
    watch = Watch()
    look(watch, reading(10, plant_status(1_000), counters={LOST: 5.0}))
    picture = look(watch, reading(11, plant_status(10), counters={LOST: 2.0}))
    assert only_node(picture).in_per_s is None
    assert [row.per_s for row in picture.losses] == [None]


def test_a_consumer_with_the_number_of_another_one_starts_again() -> None:
    watch = Watch()
    look(watch, reading(10, plant_status(0, record("left"))))
    row = only_consumer(
        look(watch, reading(11, plant_status(0, record("came", classes={"critical": class_record(7)}))))
    )
    assert (row.sent, row.sent_per_s) == (7, None)


def test_an_incomplete_list_of_consumers_has_no_total() -> None:
    watch = Watch()
    look(watch, reading(10, plant_status(0, record(), consumer_count=20_000)))
    row = only_node(look(watch, reading(11, plant_status(0, record(), consumer_count=20_000))))
    assert (row.out_per_s, row.consumers) == (None, 20_000)


def test_a_node_too_busy_to_list_its_consumers_is_not_one_without_consumers() -> None:
    node = only_node(look(Watch(), reading(10, plant_status(consumer_count=3))))
    assert (node.state, node.consumers) == (State.DEGRADED, 3)
    assert "too busy" in node.detail


# Consumers and losses


@pytest.mark.spec("MDE-2")
def test_a_distribution_record_of_a_consumer_shows_recent_class_shares() -> None:
    watch = Watch()
    before = {"critical": class_record(10, 9_000), "adaptive": class_record(5, 0, 3, 1)}
    after = {"critical": class_record(20, 10_000), "adaptive": class_record(35, 3_000, 63, 5)}
    look(watch, reading(10, plant_status(0, record(classes=before))))
    values = {
        "overruns": 2,
        "receipts": 3,
        "waiting": 8,
        "pending": 6,
        "is_behind": True,
        "memory": ("ring", "regions"),
    }
    row = only_consumer(look(watch, reading(12, plant_status(0, record(classes=after, **values)))))
    assert {name: each.share for name, each in row.classes.items()} == {"critical": 0.25, "adaptive": 0.75}
    assert (row.conflated, row.conflated_per_s, row.congested, row.congested_per_s) == (63, 30, 5, 2)
    assert (row.classes["adaptive"].congested_per_s, row.classes["critical"].congested_per_s) == (2, 0)
    assert (row.overruns, row.receipts, row.waiting, row.pending, row.is_behind) == (2, 3, 8, 6, True)
    ((cells,), _) = CONSUMERS.table(Picture(nodes=[], streams=[], losses=[], consumers=[row], endpoints=[]))
    texts = [cell.plain for cell in cells]
    assert texts[:7] == ["records", "screen", "desk", "ring, regions", "25%", "75%", "-"]
    assert "behind" in texts


def test_shares_are_total_ones_where_nothing_was_sent_recently() -> None:
    classes = {"critical": class_record(1, 100), "metered": class_record(3, 300)}
    watch = Watch()
    for at_s in (10, 11):
        row = only_consumer(look(watch, reading(at_s, plant_status(0, record(classes=classes)))))
    assert {name: each.share for name, each in row.classes.items()} == {"critical": 0.25, "metered": 0.75}


def test_losses_are_shown_by_cause_with_their_rates() -> None:
    watch, fine = Watch(), CounterKey("receiver", "packets_received", "")
    look(watch, reading(10, plant_status(), counters={LOST: 4.0, fine: 1.0}))
    dropped = CounterKey("receiver", "packets_dropped", "checksum")
    picture = look(watch, reading(12, plant_status(), counters={LOST: 10.0, fine: 9.0, dropped: 8.0}))
    rows = {(row.what, row.cause): (row.count, row.per_s) for row in picture.losses}
    assert rows == {("messages_lost", "gone"): (10, 3), ("packets_dropped", "checksum"): (8, 4)}
    assert only_node(picture).lost == 10


@pytest.mark.spec("MDE-2", "OPS-1")
def test_metrics_have_every_consumer_once_even_if_two_share_a_name() -> None:
    status = plant_status(0, record("screen"), record("screen", consumer=2, pending=7), latency_us={"p99.9": 12.5})
    metrics = Metrics()
    metrics.show_rows(lambda: rows_of(status))
    metrics.show_gauges(lambda: gauges_of(status))
    lines = [line.rsplit(" ", 1) for line in metrics.render().decode().splitlines() if not line.startswith("#")]
    assert len(dict(lines)) == len(lines), "a duplicate series"
    assert dict(lines)['penstock_consumer_pending{consumer="screen",node="records",number="2"}'] == "7.0"
    assert dict(lines)["penstock_node_latency_p99_9_us"] == "12.5"


def test_every_displayed_counter_exists_in_a_node() -> None:
    assert set(TROUBLES) <= set(CATALOGUE)


def test_messages_and_applications_of_a_filter_module_have_rates() -> None:
    watch = Watch()
    application = ApplicationStatus("reader", 3, "ring", "local", 10, 1_000)
    look(watch, reading(10, filter_status(100, 50, application), BESIDE))
    application = msgspec.structs.replace(application, packets=30, bytes=5_000)
    picture = look(watch, reading(11, filter_status(300, 80, application), BESIDE))
    assert (only_node(picture).in_per_s, only_node(picture).out_per_s) == (200, 30)
    assert (only_consumer(picture).sent_per_s, only_consumer(picture).bytes_per_s) == (20, 4_000)


# Unhealthy nodes


def router_status(accepted: int, delivered: int, settled: int, **values: Any) -> RouterStatus:
    info = EndpointInfo(
        EndpointConfig(name="orders"),
        messages=accepted - settled,
        bytes=100 * (accepted - settled),
        unsettled=delivered - settled,
        flows=2,
        accepted=accepted,
        delivered=delivered,
        settled=settled,
    )
    standard: dict[str, Any] = {
        "name": "router", "kind": "router", "role": "active", "epoch": 3, "control_port": 7460,
        "clients": 4,
        "is_storing": True, "is_in_touch": True, "endpoints": [info], "happenings": [],
    }  # fmt: skip
    return RouterStatus(**{**standard, **values})


def test_endpoints_of_a_message_router_have_their_queues_and_rates() -> None:
    place = Place("router", "127.0.0.1", 9, "router")
    watch = Watch()
    first = look(watch, reading(1, router_status(10, 5, 5), place))
    assert [(row.messages, row.accepted_per_s) for row in first.endpoints] == [(5, None)]
    picture = look(watch, reading(3, router_status(110, 65, 55), place))
    (row,) = picture.endpoints
    assert (row.endpoint, row.messages, row.bytes, row.unsettled, row.flows) == ("orders", 55, 5_500, 10, 2)
    assert (row.accepted_per_s, row.delivered_per_s, row.settled_per_s) == (50, 30, 25)
    node = only_node(picture)
    assert (node.role, node.state, node.in_per_s, node.out_per_s, node.consumers) == ("router", State.UP, 50, 30, 4)
    ((cells,), _) = ENDPOINTS.table(picture)
    assert [cell.plain for cell in cells][:8] == ["router", "orders", "shared", "55", "5,500", "10", "2", "50"]
    full = look(watch, reading(5, router_status(110, 65, 55, is_storing=False), place))
    assert (only_node(full).state, "disk" in only_node(full).detail) == (State.DEGRADED, True)
    gone = look(watch, Reading(place, 9 * NS_PER_SECOND, "unreachable", "refused"))
    assert [(row.messages, row.accepted_per_s, row.age_s) for row in gone.endpoints] == [(55, None, 4)]


def test_a_router_shows_the_missing_endpoints_of_its_pair() -> None:
    place = Place("router", "127.0.0.1", 9, "router")

    def shown(state: Any, in_touch: list[str]) -> tuple[State, str]:
        voting = Voting("witness", in_touch, True)
        pair = Replication("other", state, 0, is_linked=True, is_ordered=False, backlog=0, voting=voting)
        node = only_node(look(Watch(), reading(1, router_status(1, 1, 1, replication=pair), place)))
        return node.state, node.detail

    assert shown("in step", ["other", "witness"])[0] == State.UP
    for state, in_touch, what in (("degraded", ["a", "b"], "degraded"), ("in step", ["other"], "voters")):
        found, detail = shown(state, in_touch)
        assert found == State.DEGRADED
        assert what in detail


def test_a_witness_shows_whether_both_routers_are_connected() -> None:
    place = Place("tower", "127.0.0.1", 9, "witness")

    def shown(**values: Any) -> tuple[str, State, int | None]:
        standard: dict[str, Any] = {
            "name": "tower", "kind": "witness", "epoch": 3, "holder": "east", "bound_to": "east", "alone": "",
            "routers": ("east", "west"), "in_touch": ["east", "west"], "control_port": 7470, "is_storing": True,
        }  # fmt: skip
        node = only_node(look(Watch(), reading(1, WitnessStatus(**{**standard, **values}), place)))
        return node.role, node.state, node.consumers

    assert shown() == ("witness", State.UP, 2)
    assert shown(in_touch=["east"]) == ("witness", State.DEGRADED, 1)
    assert shown(is_storing=False)[1] == State.DEGRADED


def test_an_unreachable_node_is_shown_with_its_age_and_without_rates() -> None:
    watch = Watch()
    sent = record(classes={"critical": class_record(9)})
    for at_s in (10, 11):
        look(watch, reading(at_s, plant_status(at_s, sent), counters={LOST: 1.0}))
    gone = Reading(PLANT, 18 * NS_PER_SECOND, "unreachable", "Connection refused")
    picture = look(watch, gone, at_s=18.5)
    node = only_node(picture)
    assert (node.state, node.age_s, node.detail, node.role) == (State.UNREACHABLE, 7.5, "Connection refused", "plant")
    assert (node.in_per_s, node.uptime_s, node.lost, node.consumers) == (None, None, None, None)
    for row in (*picture.streams, *picture.losses, *picture.consumers):
        assert row.age_s == 7.5
    assert [row.per_s for row in (*picture.streams, *picture.losses)] == [None, None]
    assert (only_consumer(picture).sent, only_consumer(picture).sent_per_s) == (9, None)
    for view in VIEWS:
        for cells in view.table(picture)[0]:
            assert "7 s" in [cell.plain for cell in cells]
            assert all("dim" in str(cell.style) for cell in cells)
    assert only_node(look(watch, reading(20, plant_status(20, sent)))).age_s is None


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (reading(10, plant_status()), State.UP),
        (reading(10, plant_status(is_fed=False)), State.DEGRADED),
        (reading(10, plant_status(is_in_touch=False)), State.DEGRADED),
        (reading(10, plant_status(), is_healthy=False), State.FAILED),
        (Reading(PLANT, 10, "unreachable", "no answer"), State.UNREACHABLE),
        (Reading(PLANT, 10, "garbled", "nonsense"), State.GARBLED),
        (Reading(Place("x", why="port 0"), 10, "unknown", "port 0"), State.UNKNOWN),
        (Reading(Place("x", is_expected=False), 10, "unknown", "a player"), State.PAGELESS),
    ],
)
def test_a_failed_node_is_distinguished_from_an_unreachable_one(answer: Reading, state: State) -> None:
    picture = look(Watch(), answer)
    assert only_node(picture).state == state
    assert picture.is_well == (state in (State.UP, State.PAGELESS))


def test_invalid_answers_and_lines_are_counted() -> None:
    watch = Watch()
    look(watch, Reading(PLANT, 1, "garbled", "nonsense"))
    look(watch, Reading(PLANT, 2, "garbled", "nonsense"))
    assert only_node(look(watch, reading(3, plant_status(), garbled_lines=5))).garbled == 7


# Pages


def test_rendered_pages_are_parsed_back() -> None:
    counters, metrics = Counters("receiver", node='a "quoted" \\ name, with={all}'), Metrics()
    counters.add("packets_dropped", 3, cause="checksum")
    metrics.register(counters)
    metrics.show_gauges(lambda: {"node_items": 4.0})
    uptime_s, found, garbled = read_metrics(metrics.render())
    assert uptime_s is not None
    assert found == {CounterKey("receiver", "packets_dropped", "checksum"): 3.0}
    assert garbled == 0


@pytest.mark.parametrize(
    "line",
    [
        "penstock_packets_lost_total",
        'penstock_packets_lost_total{component="a"} NaN',
        'penstock_packets_lost_total{component="a"} 1e300',
        'penstock_packets_lost_total{component="a"} -1',
        'penstock_packets_lost_total{component="a" 1',
        "penstock_packets_lost_total{" + "x" * 100_000 + "} 1",
        "penstock_uptime_seconds inf",
    ],
    ids=range(7),
)
def test_invalid_lines_are_counted_and_the_others_read(line: str) -> None:
    good = 'penstock_packets_lost_total{component="b",cause="gone"} 2.0'
    _, found, garbled = read_metrics(f"{good}\n{line}\n".encode())
    assert (list(found.values()), garbled) == ([2.0], 1)


def answer(body: bytes, head: bytes = b"HTTP/1.0 200 OK\r\nContent-Type: text/plain") -> bytes:
    return head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def test_an_answer_is_accepted_completely_or_not_at_all() -> None:
    whole = answer(b"hello")
    assert parse_answer(whole) == (200, b"hello")
    assert parse_answer(b"HTTP/1.1 503 \r\n\r\nx") == (503, b"x")
    for size in range(len(whole)):
        with pytest.raises(RemoteProtocolError):
            parse_answer(whole[:size])
    with pytest.raises(RemoteProtocolError):
        parse_answer(whole + b"!")
    for bad in (b"", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.0 99999 OK\r\n\r\n", b"\r\n\r\n"):
        with pytest.raises(RemoteProtocolError):
            parse_answer(bad)


HEALTHY = b'{"is_healthy":true,"detail":"fine"}'


def pages(status: Any) -> Pages:
    return Pages(HEALTHY, status if isinstance(status, bytes) else msgspec.json.encode(status), b"")


def test_a_node_reports_its_own_kind() -> None:
    place = place_given("127.0.0.1:7001")
    for status, role in ((plant_status(kind="edge"), "edge"), (filter_status(1), "filter")):
        found = understand(place, pages(status), 5)
        assert (found.role, found.status, found.detail) == (role, status, "fine")
    admin = understand(place, Pages(b'{"is_healthy":true,"role":"standby"}'), 5)
    assert (admin.role, admin.detail, admin.status) == ("administration", "standby", None)


@pytest.mark.parametrize(
    "status",
    [
        b"", b"\xff\xfe", b"[" * 100_000, b"[]", b"3", b'{"kind": "plant"}', b'{"kind": 3, "name": "records"}',
        filter_status(1), {**msgspec.to_builtins(plant_status()), "updates": "many"},
        {**msgspec.to_builtins(plant_status()), "name": "another"},
        msgspec.json.encode(plant_status()).replace(b'"updates":0', b'"updates":1' + b"0" * 400),
    ],
    ids=range(11),
)  # fmt: skip
def test_a_status_of_another_node_is_refused(status: Any) -> None:
    with pytest.raises(RemoteProtocolError):
        understand(PLANT, pages(status), 5)


@pytest.mark.parametrize("health", [b"", b"{}", b'{"is_healthy": 1}', b'{"is_healthy":true,"detail":[1]}'])
def test_invalid_health_is_refused(health: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        understand(PLANT, Pages(health), 5)


@pytest.mark.parametrize("address", ["", "x", "a:0", "a:b", "a:65536", "a:1/status", "u@a:1", ":1", "[::1:1", "a:1?x"])
def test_invalid_addresses_are_refused(address: str) -> None:
    with pytest.raises(ConfigurationError):
        place_given(address)


def test_addresses_are_those_that_nodes_publish() -> None:
    for address in ("127.0.0.1:7001", "http://127.0.0.1:7001", "http://127.0.0.1:7001/"):
        assert place_given(address) == Place("127.0.0.1:7001", "127.0.0.1", 7001)
    assert place_given("[::1]:7001").host == "::1"


# Display


def test_rows_are_sorted_by_any_column_with_empty_cells_last_and_found_by_any_word() -> None:
    nodes = [
        NodeRow(node=name, role="plant", state=State.UP, detail="", in_per_s=rate)
        for name, rate in (("a", 5.0), ("b", None), ("c", 50.0))
    ]
    picture = Picture(nodes=nodes, streams=[], losses=[], consumers=[], endpoints=[])
    at = [column.title for column in NODES.columns].index("in/s")

    def names(**how: Any) -> tuple[list[str], int]:
        table, count = NODES.table(picture, **how)
        return [cells[0].plain for cells in table], count

    assert names(order=at) == (["c", "a", "b"], 3)
    assert names(order=at, is_rising=True) == (["a", "c", "b"], 3)
    assert names(order=at, rows_max=1) == (["c"], 3)
    assert names(wanted="50") == (["c"], 1)
    assert names(wanted="PLANT", rows_max=2) == (["a", "b"], 3)
    for view in VIEWS:
        for order in range(len(view.columns)):
            view.table(picture, order=order)
    assert STREAMS.table(picture) == LOSSES.table(picture) == ([], 0)


def test_text_of_a_node_is_neither_markup_nor_a_terminal_escape() -> None:
    assert word("[red]x[/red]\x1b[2J").plain == "[red]x[/red]\N{REPLACEMENT CHARACTER}[2J"
    assert len(word("x" * 10_000).plain) == 101


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (119, "119 s"), (121, "2 min"), (7_300, "2 h"), (200_000, "2 d")]
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_command_imports_only_its_own_dependencies(project: Path) -> None:
    script = """
import sys
import penstock.node.roles
drivers = {"penstock.admin.live.driver", "penstock.assured.live.driver", "penstock.feed.live.driver"}
drivers.add("penstock.assured.live.witness")
assert not drivers & set(sys.modules)
from penstock.cli.main import COMMANDS, load_command
load_command("model")
assert "penstock.cli.journal.command" not in sys.modules
for name in COMMANDS:
    load_command(name)
assert not [name for name in sys.modules if "textual" in name or "sqlglot" in name]
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=project, timeout=60)
