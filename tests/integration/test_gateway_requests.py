"""Valid and invalid requests of browsers to the gateway."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from integration.console_kit import RunningConsole, Talk, close_code, running_console
from penstock.node.console_config import ConsoleLimits


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    limits = ConsoleLimits(subscriptions_max=3, topics_max=4, requests_per_s=100, client_sessions_max=200)
    with running_console(tmp_path_factory.mktemp("gateway"), limits=limits) as made:
        yield made


SUBSCRIBE = {"op": "subscribe", "id": 1, "topics": ["md.us.eq.>"]}


def test_a_browser_is_welcomed_with_its_limits(console: RunningConsole) -> None:
    talk = Talk(console.browser("alice").socket("/ws/stream", "penstock.json.1"))
    welcome = talk.hear()
    assert (welcome["kind"], welcome["client"]) == ("welcome", "alice")
    assert welcome["limits"]["subscriptions_max"] == 3
    assert talk.ask({"op": "ping", "id": 3}) == {"kind": "pong", "id": 3}


@pytest.mark.parametrize("subprotocol", [None, "penstock.json.9", "chat"])
def test_a_socket_that_speaks_something_else_is_not_opened(console: RunningConsole, subprotocol: str | None) -> None:
    with pytest.raises(InvalidStatus) as refused:
        console.browser("alice").socket("/ws/stream", subprotocol)
    assert refused.value.response.status_code == 403


def test_without_a_session_there_is_nothing(console: RunningConsole) -> None:
    assert close_code(console.browser().socket("/ws/stream", "penstock.json.1")) == 4401


@pytest.mark.parametrize(
    "frame", ["", "garbage", "[]", "7", "null", '"subscribe"', "{", "[" * 60_000, b"\x01\x00", '{"op": "ping"}' * 2]
)
@pytest.mark.spec("TREE-9")
def test_garbage_ends_the_connection_with_a_reason(console: RunningConsole, frame: str | bytes) -> None:
    talk = console.stream()
    talk.say(frame)
    over = talk.hear_kind("over")
    assert (over["code"], over["close_code"]) == ("request", 4400)
    assert over["what"]
    assert close_code(talk.socket) == 4400


def test_a_frame_that_is_too_large(console: RunningConsole) -> None:
    talk = console.stream()
    talk.say("x" * 70_000)
    assert close_code(talk.socket) == 1009


def test_bytes_that_are_no_text(console: RunningConsole) -> None:
    socket = console.stream().socket
    with socket.protocol_mutex:  # type: ignore[attr-defined]
        socket.protocol.send_text(b"\xff\xfe")
        socket.send_data()  # type: ignore[attr-defined]
    assert close_code(socket) == 1007


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ({}, "request"),
        ({"op": "launch", "id": 1}, "request"),
        ({"op": "subscribe"}, "request"),
        ({**SUBSCRIBE, "id": 0}, "request"),
        ({**SUBSCRIBE, "id": 2**31}, "request"),
        ({**SUBSCRIBE, "id": "1"}, "request"),
        ({**SUBSCRIBE, "id": 1.5}, "request"),
        ({**SUBSCRIBE, "topics": []}, "request"),
        ({**SUBSCRIBE, "topics": "md.>"}, "request"),
        ({**SUBSCRIBE, "topics": [7]}, "request"),
        ({**SUBSCRIBE, "topics": ["x" * 1_025]}, "request"),
        ({**SUBSCRIBE, "topics": ["md.>"] * 5}, "limit"),
        ({**SUBSCRIBE, "topics": ["md..x"]}, "topic"),
        ({**SUBSCRIBE, "topics": ["md.>.x"]}, "topic"),
        ({**SUBSCRIBE, "where": "x" * 4_097}, "request"),
        ({**SUBSCRIBE, "where": 7}, "request"),
        ({**SUBSCRIBE, "class": "best"}, "request"),
        ({**SUBSCRIBE, "since": -1}, "request"),
        ({**SUBSCRIBE, "since": "yesterday"}, "request"),
        ({**SUBSCRIBE, "since": {"ago_s": -1}}, "request"),
        ({**SUBSCRIBE, "since": {"ago_s": 1e300}}, "request"),
        ({**SUBSCRIBE, "since": {"ago": 1}}, "request"),
        ({**SUBSCRIBE, "more": True}, "request"),
        ({"op": "unsubscribe", "id": 9}, "request"),
        ({"op": "publish", "id": 1, "topic": "", "model": "quote", "fields": {}}, "request"),
        ({"op": "publish", "id": 1, "topic": "app.notes.x", "model": "nothing", "fields": {}}, "not-found"),
        ({"op": "publish", "id": 1, "topic": "app.notes.x", "model": "quote", "fields": []}, "request"),
        ({"op": "publish", "id": 1, "topic": "app.notes.x", "model": "quote", "fields": {"nothing": 1}}, "model"),
        ({"op": "publish", "id": 1, "topic": "app.notes.x", "model": "quote", "fields": {"symbol": 1}}, "model"),
        ({"op": "publish", "id": 1, "topic": "app.notes.x", "model": "quote", "fields": {"bid_size": 2**70}}, "model"),
        ({"op": "publish", "id": 1, "topic": "app.notes.x", "model": "quote", "fields": {"symbol": "x" * 99}}, "model"),
    ],
)
@pytest.mark.spec("TREE-9")
def test_a_bad_request_is_refused_and_nothing_else_happens(
    console: RunningConsole, request_: dict[str, Any], code: str
) -> None:
    talk = console.stream()
    refused = talk.ask(request_)
    assert (refused["kind"], refused["code"]) == ("refused", code)
    assert refused["what"]
    number = request_.get("id")
    assert refused["id"] == (number if isinstance(number, int) and 0 < number < 2**31 else 0)
    assert talk.ask({"op": "ping", "id": 3}) == {"kind": "pong", "id": 3}


def test_there_are_only_so_many_subscriptions_and_each_has_its_id(console: RunningConsole) -> None:
    talk = console.stream()
    for number in (1, 2, 3):
        assert talk.ask({**SUBSCRIBE, "id": number})["kind"] == "subscribed"
    assert talk.ask({**SUBSCRIBE, "id": 4})["code"] == "limit"
    assert talk.ask({**SUBSCRIBE, "id": 3})["code"] == "request"
    assert talk.ask({"op": "unsubscribe", "id": 3}) == {"kind": "unsubscribed", "id": 3}
    assert talk.ask({**SUBSCRIBE, "id": 4})["kind"] == "subscribed"


@pytest.mark.spec("TREE-9")
def test_who_may_not_receive_is_refused(console: RunningConsole) -> None:
    refused = console.stream("clerk").ask(SUBSCRIBE)
    assert (refused["kind"], refused["op"], refused["code"]) == ("refused", "subscribe", "not-entitled")


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x02\x00\x00\x00",
        struct.pack("<IIHHH", 7, 1, 1, 1, 0),
        struct.pack("<IIHHH", 2, 0, 1, 1, 0),
        struct.pack("<IIHHH", 2, 1, 1, 1, 9) + b"short",
        struct.pack("<IIHHH", 2, 1, 1, 1, 2) + b"\xff\xfe",
    ],
)
def test_binary_frames_that_are_no_publications(console: RunningConsole, frame: bytes) -> None:
    talk = console.stream(subprotocol="penstock.binary.1")
    talk.say(frame)
    assert close_code(talk.socket) == 4400


@pytest.mark.parametrize(("model_id", "version", "payload"), [(65_000, 1, b""), (3, 0, b""), (3, 1, b"short")])
def test_binary_publications_of_no_model(console: RunningConsole, model_id: int, version: int, payload: bytes) -> None:
    talk = console.stream(subprotocol="penstock.binary.1")
    head = struct.pack("<IIHHH", 2, 5, model_id, version, 11)
    refused = talk.ask(head + b"app.notes.x" + payload)
    assert (refused["kind"], refused["op"], refused["id"]) == ("refused", "publish", 5)


def test_models_are_told(console: RunningConsole) -> None:
    told = console.stream().ask({"op": "models"})
    quote = next(model for model in told["models"] if model["name"] == "quote")
    assert {"name": "symbol", "type": "text", "values": [], "flags": []} in quote["fields"]


def test_haste_is_refused_then_ended(tmp_path: Path) -> None:
    with running_console(tmp_path, limits=ConsoleLimits(requests_per_s=1)) as console:
        talk = console.stream()
        for _ in range(10):
            talk.say({"op": "ping", "id": 1})
        refused = talk.hear_kind("refused")
        assert refused["code"] == "rate-limited"
        for _ in range(200):
            try:
                talk.say(json.dumps({"op": "ping", "id": 1}))
            except (OSError, ConnectionClosed):
                break
        assert close_code(talk.socket) == 4429
