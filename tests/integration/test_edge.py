"""The edge cache: the same events by TCP and WebSocket, and clients that misbehave in every way."""

import itertools
import random
import ssl
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from certificates import make_certificate
from integration.distribution_kit import Consumer, NodeHere, node_here, packed, plant_config, quote, trade
from integration.edge_kit import Bare, Screen, edge_here, text_frame, websocket_port
from penstock.engine import EngineConfig, Event, EventKind, control
from penstock.net.config import TlsConfig
from penstock.plant.core.websocket_codec import BINARY, JSON
from penstock.runtime import control_service
from waiting import wait_until

SITE = "https://screens.example"


@pytest.fixture
def plant() -> Iterator[NodeHere]:
    with node_here(plant_config()) as made:
        yield made


@pytest.fixture
def edge(plant: NodeHere) -> Iterator[NodeHere]:
    with edge_here(plant.port) as made:
        yield made


def publish(plant: NodeHere, first: int, last: int, symbol: str = "A") -> None:
    for number in range(first, last + 1):
        plant.publish(packed(f"md.{symbol}.trade", trade(symbol, number)))


@pytest.mark.spec("EDGE-1", "TP-2", "MUX-1")
@pytest.mark.parametrize("flavour", [BINARY, JSON])
def test_image_then_every_update_by_websocket_while_updates_flow(plant: NodeHere, edge: NodeHere, flavour: str) -> None:
    numbers, is_over = itertools.count(1), threading.Event()

    def flow() -> None:
        while not is_over.wait(0.001):
            publish(plant, number := next(numbers), number)

    flowing = threading.Thread(target=flow)
    flowing.start()
    try:
        with Screen(websocket_port(edge), flavour=flavour) as screen:
            assert screen.answer("welcome")["classes"] == ["critical", "metered"]
            screen.subscribe("md.>", cls="critical")
            versions = screen.versions(300)
    finally:
        is_over.set()
        flowing.join()
    assert versions == list(range(versions[0], versions[0] + len(versions)))


@pytest.mark.spec("EDGE-1", "MUX-3")
def test_the_same_by_tcp(plant: NodeHere, edge: NodeHere) -> None:
    publish(plant, 1, 3)
    with Consumer(edge.port, transport="session") as consumer:
        consumer.attached()
        consumer.wait_live(consumer.subscribe("md.A.trade"))
        publish(plant, 4, 500)
        assert consumer.wait_for("md.A.trade", 500) == list(range(3, 501))


@pytest.mark.spec("EDGE-1")
@pytest.mark.parametrize("flavour", [BINARY, JSON])
def test_tls_takes_another_way_to_the_same(plant: NodeHere, tmp_path: Path, flavour: str) -> None:
    certificate, key = make_certificate(tmp_path)
    tls = TlsConfig(certificate=str(certificate), private_key=str(key), ca_file=str(certificate))
    client = ssl.create_default_context(cafile=str(certificate))
    with (
        edge_here(plant.port, websocket={"tls": tls}) as edge,
        Screen(websocket_port(edge), flavour=flavour, tls=client) as screen,
    ):
        screen.subscribe("md.>", cls="critical")
        publish(plant, 1, 200)
        versions = screen.versions(200)
        assert versions == list(range(versions[0], versions[0] + len(versions)))


def test_several_messages_may_come_at_once_and_a_snapshot_is_a_static_read(plant: NodeHere, edge: NodeHere) -> None:
    publish(plant, 1, 5)
    with Screen(websocket_port(edge), flavour=JSON) as screen:
        screen.say(control.Snapshot(7, ["md.*.trade"]))
        answer = screen.answer("records")
        assert (answer["number"], answer["is_last"]) == (7, True)
        assert [each["topic"] for each in answer["records"]] == ["md.A.trade"]
        assert answer["records"][0]["record"]["trade_id"] == 5


@pytest.mark.spec("MDE-4")
def test_what_is_not_served_is_refused_and_why(edge: NodeHere) -> None:
    with Screen(websocket_port(edge)) as screen, Screen(websocket_port(edge)) as double:
        for number, request, code in (
            (2, control.Subscribe(2, ["md.>"], "adaptive"), "class"),
            (3, control.Subscribe(3, ["md..x"]), "topic"),
            (4, control.Unsubscribe(4, 99), "subscription"),
        ):
            screen.say(request)
            refused = screen.answer("refused")
            assert (refused["number"], refused["code"]) == (number, code)
        assert double.answer("refused")["code"] == "taken"
        with pytest.raises(ConnectionClosed):
            double.take()


@pytest.mark.spec("EDGE-1", "METR-1", "METR-4")
def test_a_metered_screen_gets_few_messages_that_stand_for_all_and_the_last_value(
    plant: NodeHere, edge: NodeHere
) -> None:
    with Screen(websocket_port(edge)) as screen:
        assert screen.subscribe("md.*.quote", cls="metered", per_second=4.0)["per_second"] == 4.0
        for number in range(1, 2_001):
            plant.publish(*(packed(f"md.{symbol}.quote", quote(symbol, number)) for symbol in "ABC"))
        updates: list[Event] = []
        while sum(event.version == 2_000 for event in updates) < 3:  # until the last update of each symbol arrives
            screen.take()
            updates = [event for event in screen.events if event.kind == EventKind.UPDATE]
        assert sum(event.merged for event in updates) == 3 * 2_000
        assert screen.messages < len(updates) < 600  # updates share messages


def test_pages_of_other_sites_and_clients_without_a_flavour_stay_outside(plant: NodeHere) -> None:
    with edge_here(plant.port, websocket={"origins": (SITE,), "takes_programs": False}) as edge:
        port = websocket_port(edge)
        Screen(port, origin=SITE).close()
        for origin in (None, "https://evil.example"):
            with pytest.raises(InvalidStatus, match="403"):
                Screen(port, origin=origin)
        with pytest.raises(InvalidStatus, match="400"):
            Screen(port, flavour="other.protocol", origin=SITE)


@pytest.mark.parametrize(
    "words",
    [b"", b"{}", b"null", b'{"type":"subscribe"}', b'{"type":"login","name":"' + b"x" * 100 + b'"}', b"[" * 50_000],
    ids=lambda words: words[:12].decode(),
)
def test_a_client_that_says_something_else_is_told_and_ended(edge: NodeHere, words: bytes) -> None:
    with Bare(websocket_port(edge), "") as client:
        client.socket.sendall(text_frame(words))
        frames = client.rest()
    assert b'"refused"' in b"".join(payload for _, payload in frames)
    assert frames[-1][0] == 8


def test_garbage_of_any_kind_ends_one_connection_and_nothing_else(plant: NodeHere, edge: NodeHere) -> None:
    chance = random.Random(7)
    for length in (1, 10, 200, 5_000):
        with Bare(websocket_port(edge), "") as client:
            client.socket.sendall(bytes(chance.randrange(256) for _ in range(length)))
    with Bare(websocket_port(edge), "huge") as client:
        client.socket.sendall(b"\x81\xff" + (2**62).to_bytes(8, "big") + bytes(4))
        assert client.rest()[-1][0] == 8
    wait_until(lambda: edge.consumer_names() == [], "all clients to be gone")
    with Screen(websocket_port(edge)) as screen:
        screen.subscribe("md.>", cls="critical")
        publish(plant, 1, 10)
        screen.versions(10)


def test_one_that_never_logs_in_does_not_stay(edge: NodeHere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_service, "LOGIN_SECONDS", 0.2)
    with Bare(websocket_port(edge), "") as client:
        assert b"no login" in b"".join(payload for _, payload in client.rest())


@pytest.mark.spec("EDGE-1")
def test_a_client_that_stops_reading_costs_the_others_nothing_and_is_ended_with_last_words(plant: NodeHere) -> None:
    with edge_here(plant.port, stuck_ms=500) as edge, Bare(websocket_port(edge), "stopped") as stopped:
        stopped.say(control.Subscribe(1, ["md.>"], "critical"))
        with Screen(websocket_port(edge), "quick") as quick:
            quick.subscribe("md.>", cls="critical")
            wait_until(lambda: edge.consumer_names() == ["quick", "stopped"], "both")
            sent = 0
            while "stopped" in edge.consumer_names():
                publish(plant, sent + 1, sent + 2_000)
                sent += 2_000
                assert quick.versions(sent)[-1] == sent
                assert sent < 1_000_000
            assert quick.versions(sent) == list(range(1, sent + 1))
        frames = stopped.rest()
        assert b"accepted no data" in frames[-2][1]
        assert frames[-1][0] == 8  # a clean close


def _wait_of(edge: NodeHere) -> tuple[bool, int]:
    """Whether the only consumer waits for room, and how often it has waited."""
    (record,) = edge.node.status().consumers
    return record.is_behind, record.classes["critical"].congested


def _has_taken(edge: NodeHere, number: int) -> bool:
    return edge.node.status().updates >= number


@pytest.mark.spec("EDGE-1", "CRIT-4")
def test_one_that_was_too_slow_for_the_history_is_told_what_it_missed(plant: NodeHere) -> None:
    engine = EngineConfig(classes=("critical", "metered"), keeps="wanted", has_upstream=True, history_bytes=65_536)
    with (
        edge_here(plant.port, engine=engine, session_bytes=65_536) as edge,
        Screen(websocket_port(edge), "slow") as slow,
    ):
        slow.subscribe("md.>", cls="critical")
        # nothing is read here, so the library's buffers fill up, then the kernel's, then the edge's
        number = 0
        waits: tuple[bool, int] | None = None
        while waits is None or not waits[0] or _wait_of(edge) != waits:  # the history was overwritten all this time
            assert number < 200_000
            waits = _wait_of(edge)
            publish(plant, number + 1, number + 1_000)
            number += 1_000
            wait_until(partial(_has_taken, edge, number), "the edge cache to have received the updates")
        while slow.versions(1)[-1] < number:
            slow.take()
        missed = 0
        before = 0
        for event in slow.events:
            if event.kind == EventKind.UPDATE:
                assert event.version == before + 1
                before = event.version
            elif event.kind == EventKind.REFRESH:
                missed += event.version - before - 1
                before = event.version
        receipts = [event.lost for event in slow.events if event.kind == EventKind.RECEIPT]
        assert missed > 0
        assert receipts


def test_clients_that_vanish_leave_nothing_behind(plant: NodeHere, edge: NodeHere) -> None:
    clients = [Bare(websocket_port(edge), f"client-{number}") for number in range(30)]
    for client in clients:
        client.say(control.Subscribe(1, ["md.>"], "critical"))
    wait_until(lambda: len(edge.consumer_names()) == 30, "all")
    publish(plant, 1, 100)
    for client in clients:
        client.socket.setsockopt(6, 12, 1)
        client.socket.close()
    publish(plant, 101, 200)
    wait_until(lambda: edge.consumer_names() == [], "the disconnect of all consumers")


def test_clients_are_told_when_the_edge_ends(plant: NodeHere) -> None:
    with edge_here(plant.port) as edge:
        screen = Screen(websocket_port(edge))
        screen.subscribe("md.>", cls="critical")
    with pytest.raises(ConnectionClosed) as ended:
        screen.versions(1)
    assert ended.value.rcvd is not None
    assert ended.value.rcvd.code == 1000
    screen.close()
