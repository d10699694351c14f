"""`penstock top` with real nodes, and with servers that are not nodes."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

from admin_kit import policy_text
from certificates import make_certificate
from integration.command_kit import running
from integration.distribution_kit import Consumer, NodeHere, mux_config, node_here, packed, plant_config, quote
from integration.filter_kit import Application, filter_here
from penstock.admin.config import AdminConfig
from penstock.admin.live.driver import AdminServer
from penstock.demo.layout import write_layout
from penstock.demo.reports import DemoOptions
from penstock.net.udp import free_ports
from penstock.node.plant import Plant
from penstock.node.running import RunningPlant
from penstock.security.live.client import AdminClient
from penstock.top.core.picture import NodeRow, Picture, State
from penstock.top.core.places import Place, place_given, places_of_plant
from penstock.top.core.reading import Reading
from penstock.top.core.shown import VIEWS
from penstock.top.live.app import TopApp
from penstock.top.live.fetching import ANSWER_SIZE_MAX, fetch, fetch_all
from waiting import PATIENCE_SECONDS, wait_until

QUICK_SECONDS = 0.1


def run_top(*arguments: str) -> tuple[int, str]:
    """The exit status of the command, and its output."""
    with running("top", *arguments, "--interval", "0.3") as command:
        status = command.end()
        return status, command.out or command.err


def picture_of(*arguments: str) -> tuple[int, Picture]:
    status, text = run_top(*arguments, "--once", "--json")
    return status, msgspec.json.decode(text, type=Picture)


def read(place: Place, timeout_s: float = PATIENCE_SECONDS) -> Reading:
    return asyncio.run(fetch(place, timeout_s))


# A plant of real processes


@contextlib.contextmanager
def small_plant(directory: Path) -> Iterator[tuple[RunningPlant, str]]:
    """Administration, two adapters, a filter, and below these a ticker plant, a multiplexer and an edge cache; and a
    subscriber's token."""
    layout = write_layout(directory, DemoOptions(rate=1_000, subscribers=1, symbols=20, tree=False, router=False))
    with RunningPlant(Plant.load(layout.plant), log_level="WARNING") as plant:
        assert plant.start(), plant.faults
        with AdminClient.connect(layout.url, layout.credentials[0]) as admin:
            token = admin.subscribe(["md.us.eq.>"]).token
        yield plant, token
        plant.stop()


def rows_by_name(picture: Picture) -> dict[str, NodeRow]:
    return {row.node: row for row in picture.nodes}


@pytest.mark.spec("MDE-2", "OPS-1")
def test_every_node_of_a_plant_is_seen_and_one_that_is_killed_is_missed(tmp_path: Path) -> None:
    with small_plant(tmp_path) as (plant, token):
        document = str(plant.plant.path)
        port = plant.nodes["mux"].where.rpartition(":")[2]
        with Consumer(int(port), "reader", token=token).attached() as consumer:
            consumer.subscribe("md.us.eq.>")
            wait_until(lambda: len(consumer.events) > 100 or consumer.receive(), "updates")
            status, picture = picture_of(document)
            nodes = rows_by_name(picture)
            roles = {row.node: row.role for row in picture.nodes}
            assert roles == {
                "admin": "administration", "adapter-a": "adapter", "adapter-b": "adapter", "filter": "filter",
                "ticker-plant": "plant", "mux": "mux", "edge": "edge", "exchange": "player",
            }  # fmt: skip
            assert {row.state for row in picture.nodes} <= {State.UP, State.DEGRADED, State.PAGELESS}, nodes
            assert status == (0 if picture.is_well else 1)
            for name in set(nodes) - {"exchange"}:
                assert nodes[name].uptime_s is not None, name
            assert any(nodes[name].latency_us.get("p99", 0) > 0 for name in ("adapter-a", "adapter-b"))
            assert all(nodes[name].latency_us["p50"] > 0 for name in ("ticker-plant", "mux"))
            assert (nodes["ticker-plant"].in_per_s or 0) > 0
            assert (nodes["mux"].out_per_s or 0) > 0
            (reader,) = [row for row in picture.consumers if row.consumer == "reader"]
            assert (reader.node, reader.topics) == ("mux", 1)
            assert "ring" in reader.memory
            assert (reader.sent_per_s or 0) > 0
            assert reader.classes["critical"].share == 1
            assert any(row.stream == "totalview" and row.per_s for row in picture.streams)
            assert "mux" in [row.consumer for row in picture.consumers]  # a consumer of the plant's
        plant.stop_node("filter")
        status, picture = picture_of(document)
        assert status == 1
        assert rows_by_name(picture)["filter"].state == State.UNREACHABLE
        assert "refused" in rows_by_name(picture)["filter"].detail
        plant.stop()
        assert not any(plant.plant.pages.find(name) for name in nodes)


def test_nodes_that_were_never_started_are_unknown(tmp_path: Path) -> None:
    document = tmp_path / "plant.toml"
    document.write_text('name = "tiny"\n[[filter]]\nname = "beside"\nchannels = ["239.255.74.1:7401"]\n')
    status, picture = picture_of(str(document))
    (row,) = picture.nodes
    assert (status, row.state) == (1, State.UNKNOWN)
    assert "metrics_port is 0" in row.detail
    plant = Plant.load(document)
    with filter_here() as module:
        plant.pages.note("beside", module.module.node.url)
        assert picture_of(str(document))[1].nodes[0].state == State.UP
    with filter_here(name="another") as module:  # has the port of a node that has ended
        plant.pages.note("beside", module.module.node.url)
        (row,) = picture_of(str(document))[1].nodes
        assert row.state == State.GARBLED
        assert "another node answers here: 'another'" in row.detail


def test_tables_are_printed_for_people() -> None:
    with filter_here() as module, Application(module.port, "reader"):
        status, text = run_top("--node", module.module.node.url, "--once")
        assert status == 0
        assert {"nodes", "streams", "consumers", "reader", "filter"} <= set(text.split())


def test_what_cannot_be_watched_is_refused() -> None:
    for arguments in ([], ["--node", "127.0.0.1:0"], ["--node", "127.0.0.1:1", "--json"], ["--node", "127.0.0.1:1"]):
        status, text = run_top(*arguments)
        assert status == 1
        assert "error [config]" in text


def test_an_administration_server_is_watched_over_tls_with_its_own_certificate_only(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    (other := tmp_path / "other").mkdir()
    stranger, _ = make_certificate(other)
    (tmp_path / "policy.toml").write_text(policy_text())
    (port,) = free_ports(1)
    document = tmp_path / "plant.toml"
    document.write_text(
        'name = "tls"\n[[administration]]\npolicy = "policy.toml"\n'
        f'port = {port}\ncertificate = "{certificate.name}"\nprivate_key = "{key.name}"\n'
    )
    plant = Plant.load(document)
    config = plant.node("admin")
    assert isinstance(config, AdminConfig)
    with AdminServer(config.beside(tmp_path)):
        (place,) = places_of_plant(plant)
        found = read(place)
        assert (found.outcome, found.role, found.detail) == ("answered", "administration", "primary"), found.why
        assert found.uptime_s is not None
        assert read(msgspec.structs.replace(place, certificate=str(stranger))).outcome == "unreachable"


# Servers that only look like a node


@contextlib.contextmanager
def server(handle: Callable[[socket.socket], None]) -> Iterator[Place]:
    """Handle each connection in a thread, then close it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threads: list[threading.Thread] = []

        def serve(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                handle(connection)

        def run() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    threads.append(threading.Thread(target=serve, args=(connection,)))
                    threads[-1].start()

        accepting = threading.Thread(target=run)
        accepting.start()
        try:
            yield place_given(f"127.0.0.1:{listening.getsockname()[1]}")
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            for thread in (accepting, *threads):
                thread.join(PATIENCE_SECONDS)


def answering(data: bytes) -> Callable[[socket.socket], None]:
    def handle(connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.sendall(data)

    return handle


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 100,
        b"HTTP/1.0 404 Not Found\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n[]",
        b"HTTP/1.0 200 OK\r\nContent-Length: 100\r\n\r\n{}",
        b'HTTP/1.0 200 OK\r\n\r\n{"is_healthy":true}',  # /status must not answer the same
        b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * (ANSWER_SIZE_MAX + 1),
    ],
    ids=range(7),
)
def test_pages_of_something_else_are_garbled_and_nothing_worse(data: bytes) -> None:
    with server(answering(data)) as place:
        found = read(place)
        if data.endswith(b"true}"):  # healthy, but without its name and role
            assert (found.outcome, found.status, found.role) == ("answered", None, "")
        else:
            assert found.outcome == "garbled", found.why
            assert (len(data) > ANSWER_SIZE_MAX) == ("the answer exceeds the limit" in found.why)


def test_an_answer_that_never_ends_is_bounded_in_time_and_delays_no_other() -> None:
    stopped = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
        for _ in range(2_000):  # takes 20 s, and would then be garbled
            if stopped.wait(0.01):
                return
            connection.sendall(b"x")

    with filter_here() as module, server(drip) as slow:
        places = [slow, place_given(module.module.node.url), slow]
        try:
            found = asyncio.run(fetch_all(places, timeout_s=1.0))
        finally:
            stopped.set()
        assert [each.outcome for each in found] == ["unreachable", "answered", "unreachable"]
        assert "no answer to /health within 1 s" in found[0].why


def test_a_port_where_nobody_listens_is_unreachable() -> None:
    (port,) = free_ports(1)
    assert read(place_given(f"127.0.0.1:{port}")).outcome == "unreachable"
    assert read(Place("x", "a" * 100 + ".invalid", 1)).outcome == "unreachable"


# The terminal


def cells(app: TopApp) -> list[list[str]]:
    table: DataTable[Any] = app.query_one("#table", DataTable)
    return [[cell.plain for cell in table.get_row_at(row)] for row in range(table.row_count)]


def titles(app: TopApp) -> list[str]:
    table: DataTable[Any] = app.query_one("#table", DataTable)
    return [str(column.label) for column in table.ordered_columns]


def heading(app: TopApp) -> str:
    return str(app.query_one("#heading", Static).render())


async def until(pilot: Pilot[None], condition: Callable[[], object], what: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await pilot.pause(0.02)
    assert condition(), what


def on_terminal(test: Callable[[TopApp, Pilot[None]], Any], *addresses: str, width: int = 220) -> None:
    async def main() -> None:
        app = TopApp("a test", lambda: [place_given(each) for each in addresses], QUICK_SECONDS)
        async with app.run_test(size=(width, 40)) as pilot:
            await until(pilot, lambda: cells(app), "a first look")
            await test(app, pilot)
            await pilot.press("q")

    asyncio.run(main())


@contextlib.contextmanager
def busy_plant() -> Iterator[NodeHere]:
    """A ticker plant that updates one item all the time, and its consumers "fast" and "second"."""
    with node_here(plant_config()) as node:
        stopped = threading.Event()

        def publish() -> None:
            number = 0
            while not stopped.wait(0.005):
                number += 1
                node.publish(packed("md.a.quote", quote("A", number)))

        publishing = threading.Thread(target=publish)
        publishing.start()
        try:
            with Consumer(node.port, "fast").attached() as fast, Consumer(node.port, "second").attached():
                fast.subscribe("md.>")
                yield node
        finally:
            stopped.set()
            publishing.join()


def test_keys_choose_the_view_and_its_rates_are_live() -> None:
    async def test(app: TopApp, pilot: Pilot[None]) -> None:
        assert titles(app)[:3] == ["node", "role", "state"]
        await until(pilot, lambda: cells(app)[0][titles(app).index("in/s")] not in ("-", "0"), "a rate of updates")
        for key, title in (("2", "stream"), ("3", "what"), ("4", "consumer"), ("1", "role")):
            await pilot.press(key)
            assert titles(app)[1] == title
        await pilot.press("tab")
        assert titles(app)[1] == "stream"
        assert "1 items" in cells(app)[0][1]
        await pilot.press("4")
        await until(pilot, lambda: "fast" in [row[1] for row in cells(app)], "its consumers")
        at = titles(app).index("sent/s")
        fast = next(index for index, row in enumerate(cells(app)) if row[1] == "fast")
        await until(pilot, lambda: float(cells(app)[fast][at].replace(",", "").replace("-", "0")) > 0, "its rate")

    with busy_plant() as node:
        on_terminal(test, node.node.node.url)


def test_nothing_is_cut_at_120_columns_and_columns_that_do_not_fit_are_named() -> None:
    async def test(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: cells(app)[0][titles(app).index("in/s")] not in ("-", "0"), "a rate of updates")
        await pilot.press("p")  # a picture that no longer changes
        for number, view in enumerate(VIEWS, start=1):
            await pilot.press(str(number))
            await pilot.pause()
            table: DataTable[Any] = app.query_one("#table", DataTable)
            assert table.virtual_size.width <= table.size.width <= 120, view.name
            wanted = [column.title for column in view.columns]
            assert titles(app) == wanted[: len(titles(app))]
            left_out = wanted[len(titles(app)) :]
            assert (f"too wide: {', '.join(left_out)}" in heading(app)) == bool(left_out)
        await pilot.press("1")
        first = ["node", "role", "state", "lost", "restarts", "in/s", "out/s", "p50 µs", "p99 µs"]
        assert titles(app)[: len(first)] == first

    with busy_plant() as node:
        on_terminal(test, node.node.node.url, width=120)


def test_nodes_that_are_not_well_come_first_with_the_reason_in_words() -> None:
    (closed,) = free_ports(1)

    async def test(app: TopApp, pilot: Pilot[None]) -> None:
        def is_told() -> bool:
            """False while a node answers late, and is unreachable, too."""
            reasons = str(app.query_one("#reasons", Static).render())
            return (
                [row[2] for row in cells(app)] == ["failed", "unreachable", "up"]
                and reasons.count("no data from the upstream node") == reasons.count(" is failed: ") == 1
                and f"127.0.0.1:{closed} is unreachable: " in reasons
            )

        await until(pilot, is_told, "all nodes, and why two of them are not well")

    with node_here(plant_config()) as plant, node_here(mux_config(closed, access="open")) as mux:
        urls = (plant.node.node.url, mux.node.node.url, f"127.0.0.1:{closed}")
        on_terminal(test, *urls, width=120)


def test_rows_are_sorted_reversed_and_filtered_by_keys() -> None:
    async def test(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("4")
        await until(pilot, lambda: len(cells(app)) == 2, "two consumers")
        await pilot.press("s", "s")
        assert "by consumer, descending" in heading(app)
        assert [row[1] for row in cells(app)] == ["second", "fast"]
        await pilot.press("r")
        assert [row[1] for row in cells(app)] == ["fast", "second"]
        await pilot.press("slash", *"seco", "enter")
        assert [row[1] for row in cells(app)] == ["second"]
        assert "with 'seco'" in heading(app)
        await until(pilot, lambda: not app.query_one("#filter", Input).display, "the table again")
        await pilot.press("escape")
        assert len(cells(app)) == 2

    with busy_plant() as node:
        on_terminal(test, node.node.node.url)


def test_what_is_paused_says_how_old_it_is_and_asks_nobody() -> None:
    finds: list[Place] = []

    async def main(address: str) -> None:
        def find() -> list[Place]:
            finds.append(place_given(address))
            return finds[-1:]

        app = TopApp("a test", find, QUICK_SECONDS)
        async with app.run_test(size=(220, 40)) as pilot:
            await until(pilot, lambda: cells(app), "a first look")
            await pilot.press("p")
            picture, count, now = app.picture, len(finds), time.monotonic()
            await until(pilot, lambda: time.monotonic() > now + 5 * QUICK_SECONDS, "several intervals")
            assert (app.picture, len(finds)) == (picture, count)
            assert "PAUSED" in heading(app)
            await pilot.press("p")
            await until(pilot, lambda: app.picture is not picture, "another look")
            assert "PAUSED" not in heading(app)

    with busy_plant() as node:
        asyncio.run(main(node.node.node.url))


def test_an_answer_that_comes_while_the_application_ends_is_drawn_nowhere() -> None:
    async def test(app: TopApp, pilot: Pilot[None]) -> None:
        picture = app.picture
        await app.query("#heading, #table").remove()
        await until(pilot, lambda: app.picture is not picture, "another look")

    with filter_here() as module:
        on_terminal(test, module.module.node.url)


def test_an_answer_that_comes_during_the_pause_changes_nothing() -> None:
    asked, released = threading.Event(), threading.Event()

    def hesitate(connection: socket.socket) -> None:
        asked.set()
        released.wait(PATIENCE_SECONDS)
        answering(b"nonsense")(connection)

    async def main(place: Place) -> None:
        app = TopApp("a test", lambda: [place], QUICK_SECONDS)
        async with app.run_test(size=(220, 40)) as pilot:
            await until(pilot, asked.is_set, "it asks")
            await pilot.press("p")
            released.set()
            await until(pilot, lambda: not app._is_looking, "the answer")
            assert app.picture.nodes == []
            await pilot.press("p")
            await until(pilot, lambda: app.picture.nodes, "another look")

    with server(hesitate) as place:
        asyncio.run(main(place))


def test_a_node_that_ends_is_stale_on_the_terminal_and_one_that_talks_nonsense_stays_there() -> None:
    with contextlib.ExitStack() as ending, server(answering(b"nonsense")) as odd:
        module = ending.enter_context(filter_here())

        async def test(app: TopApp, pilot: Pilot[None]) -> None:
            await until(pilot, lambda: [row[2] for row in cells(app)] == ["garbled", "up"], "both answer")
            at = titles(app).index("garbled")
            await until(pilot, lambda: int(cells(app)[0][at]) > 1, "garbled answers are counted")
            await asyncio.to_thread(ending.close)
            await until(pilot, lambda: cells(app)[0][2] == "unreachable", "it ended")
            row = dict(zip(titles(app), cells(app)[0], strict=True))
            assert (row["role"], row["in/s"], row["up for"]) == ("filter", "-", "-")
            assert row["age"].endswith(" s")
            assert "1 unreachable" in heading(app)

        on_terminal(test, module.module.node.url, odd.name)
