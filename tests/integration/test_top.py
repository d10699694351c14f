"""`penstock top` before real nodes."""

import asyncio
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.widgets import DataTable, Static

from integration.command_kit import running
from integration.filter_kit import Application, filter_here
from penstock.net.udp import free_ports
from penstock.top.app import TopApp
from penstock.top.picture import Picture, picture_of
from penstock.top.places import Place, places_given
from penstock.top.reading import PAGE_SIZE_MAX, read, read_all
from penstock.top.shown import word
from waiting import PATIENCE_SECONDS

QUICK_SECONDS = 0.1


def run_top(*arguments: str) -> tuple[int, str]:
    """Its exit status and what it shows."""
    with running("top", *arguments) as command:
        status = command.end()
        return status, command.out or command.err


def cells(app: TopApp, name: str) -> list[list[str]]:
    table: DataTable[Any] = app.query_one(name, DataTable)
    return [[cell.plain for cell in table.get_row_at(row)] for row in range(table.row_count)]


async def shown(app: TopApp, name: str, count: int) -> list[list[str]]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(rows := cells(app, name)) != count:
            await asyncio.sleep(0.02)
    return rows


@contextmanager
def page(contents: bytes) -> Iterator[str]:
    """A server that answers everything with this."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(contents)

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def test_a_filter_and_its_applications_are_seen_once_for_scripts() -> None:
    with filter_here() as module, Application(module.port, "reader"):
        address = module.module.endpoint_url.removeprefix("http://")
        (down,) = free_ports(1)
        status, text = run_top(address, f"127.0.0.1:{down}", "--once", "--json", "--interval", str(QUICK_SECONDS))
        picture = msgspec.json.decode(text, type=Picture)
        assert status == 1  # a node is down
        well, ill = picture.nodes
        assert (well.kind, well.is_well, well.consumers) == ("filter", True, 1)
        assert (well.in_per_s, well.out_per_s) == (0.0, 0.0)
        assert not ill.is_well
        assert "refused" in ill.state
        assert [row.consumer for row in picture.consumers] == ["reader"]
        status, text = run_top(address, "--once", "--interval", str(QUICK_SECONDS))
        assert status == 0
        assert "reader" in text


def test_the_terminal_shows_what_changes_and_obeys_keys() -> None:
    async def main(url: str, port: int) -> None:
        app = TopApp("a test", places_given([url]), QUICK_SECONDS)
        async with app.run_test(size=(160, 40)) as pilot:
            (node,) = await shown(app, "#nodes", 1)
            assert node[1] == "filter"
            application = await asyncio.to_thread(Application, port, "reader")
            (row,) = await shown(app, "#consumers", 1)
            assert row[:2] == [node[0], "reader"]
            await pilot.press("s")
            await pilot.press("p")
            await pilot.pause()
            heading = str(app.query_one("#heading", Static).render())
            assert "paused" in heading
            assert "conflated/s" in heading
            await asyncio.to_thread(application.close)
            await pilot.press("p")
            await shown(app, "#consumers", 0)
            await pilot.press("q")

    with filter_here() as module:
        asyncio.run(main(module.module.endpoint_url, module.port))


@pytest.mark.parametrize(
    "contents", [b"", b"\xff\xfe", b"[]", b"{" * 1_000, b'{"detail": 3}', b"x" * (PAGE_SIZE_MAX + 1)], ids=len
)
def test_a_page_of_somebody_else_is_a_node_that_is_down(contents: bytes) -> None:
    with page(contents) as address:
        (place,) = places_given([address])
        reading = read(place)
        assert reading.fault.startswith("no page of ours")
        assert not picture_of([reading]).nodes[0].is_well


def test_a_status_that_only_looks_like_ours_is_not_believed() -> None:
    status = dict.fromkeys(("name", "control_port", "address", "repair", "is_in_touch", "groups", "interests"), 1)
    status |= dict.fromkeys(("messages", "unwanted", "passed", "applications"), 1)
    place = Place("other", "http://127.0.0.1:1")
    reading = msgspec.structs.replace(read(place), fault="", status=status)
    (row,) = picture_of([reading]).nodes
    assert not row.is_well
    assert "not understood" in row.state


def test_what_cannot_be_watched_is_refused() -> None:
    for arguments in (["127.0.0.1:0"], ["a.toml", "b:1"], ["127.0.0.1:1", "--json"], ["127.0.0.1:1"]):
        status, text = run_top(*arguments)
        assert status == 1
        assert "error [" in text


def test_what_a_node_says_is_neither_markup_nor_an_order_to_the_terminal() -> None:
    assert word("[red]x[/red]\x1b[2J").plain == "[red]x[/red]\N{REPLACEMENT CHARACTER}[2J"


def test_a_plants_nodes_are_found_by_its_document(tmp_path: Path) -> None:
    document = tmp_path / "plant.toml"
    document.write_text('name = "tiny"\n[[filter]]\nname = "beside"\nchannels = ["239.255.74.1:7401"]\n')
    status, text = run_top(str(document), "--once", "--json", "--interval", str(QUICK_SECONDS))
    assert status == 1
    assert "has not been started here" in msgspec.json.decode(text, type=Picture).nodes[0].state
    with filter_here() as module:
        pages = tmp_path / "state" / "pages"
        pages.mkdir(parents=True)
        (pages / "beside.page").write_text(module.module.endpoint_url + "\n")
        status, text = run_top(str(document), "--once", "--json", "--interval", str(QUICK_SECONDS))
        assert status == 0
        assert msgspec.json.decode(text, type=Picture).nodes[0].node == "beside"


def test_nothing_to_watch_is_nothing() -> None:
    assert read_all([]) == []
    assert picture_of([]).nodes == []
