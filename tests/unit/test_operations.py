"""Counters, metrics, logs and the status page: one vocabulary, no secrets."""

import gc
import http.client
import io
import itertools
import json
import socket
import struct
import sys
import threading
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from penstock.base import log
from penstock.base.counters import CATALOGUE, Cause, Counters
from penstock.base.errors import ConfigurationError, LocalProtocolError
from penstock.base.metrics import Metrics
from penstock.base.status_page import Health, StatusPage
from waiting import wait_until


def test_counters_sum_over_causes() -> None:
    counters = Counters("receiver", node="a")
    counters.add("packets_dropped", cause=Cause.CHECKSUM)
    counters.add("packets_dropped", 2, cause=Cause.DUPLICATE)
    assert counters["packets_dropped"] == 3
    assert counters.by_cause("packets_dropped") == {"checksum": 1, "duplicate": 2}
    assert counters["packets_sent"] == 0


def test_a_counter_outside_the_catalogue_is_a_mistake() -> None:
    with pytest.raises(LocalProtocolError, match="CATALOGUE"):
        Counters("receiver").add("made_up")
    with pytest.raises(LocalProtocolError, match="CATALOGUE"):
        Counters("receiver").watch("made_up", int)


def test_derived_counters_are_computed_when_read() -> None:
    counters, seen = Counters("receiver"), [0, 0]
    counters.watch("packets_received", lambda: seen[0])
    counters.watch("packets_received", lambda: seen[1])
    assert list(counters) == []  # no count yet
    seen[:] = [3, 4]
    counters.add("packets_received", 10)
    counters.add("packets_received", 100, cause=Cause.DUPLICATE)
    assert counters["packets_received"] == 117
    assert counters.by_cause("packets_received") == {"": 17, "duplicate": 100}


@pytest.mark.spec("OPS-1")
def test_the_page_shows_every_counter_with_its_cause_and_the_health() -> None:
    counters = Counters("receiver", node="a")
    for name in CATALOGUE:
        counters.add(name, cause=Cause.CHECKSUM)
    metrics = Metrics()
    metrics.register(counters)
    metrics.register(Counters("publisher", group="239.1.1.1"))
    health = Health(True)
    with StatusPage(metrics, lambda: health) as endpoint:
        text = fetch(f"{endpoint.url}/metrics")[1]
        for name in CATALOGUE:
            assert f'penstock_{name}_total{{cause="checksum",component="receiver",group="",node="a"}} 1.0' in text
        assert fetch(f"{endpoint.url}/health") == (200, '{"is_healthy":true,"detail":""}')
        health = Health(False, "the feed is silent")
        assert fetch(f"{endpoint.url}/health") == (503, '{"is_healthy":false,"detail":"the feed is silent"}')
        assert fetch(f"{endpoint.url}/nothing")[0] == 404
        with pytest.raises(ConfigurationError, match="cannot listen"):
            StatusPage(metrics, lambda: health, port=int(endpoint.url.rsplit(":", 1)[1]))


@pytest.mark.spec("OPS-1")
@pytest.mark.parametrize("request_begin", [b"", b"GET /met", b"GET /status HTTP/1.1\r\n\r\n"])
def test_a_client_of_the_page_that_disconnects_causes_no_traceback(
    request_begin: bytes, lines: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    log.configure(style="json", level="DEBUG", stream=lines)
    shown, is_gone = "", threading.Event()

    def status() -> object:
        assert is_gone.wait(60)
        return "x" * 10_000_000  # more than the socket's buffers hold

    with StatusPage(Metrics(), lambda: Health(True), status=status) as endpoint:
        host, port = endpoint.url.removeprefix("http://").split(":")
        client = socket.create_connection((host, int(port)))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() resets the connection
        client.sendall(request_begin)
        client.close()
        is_gone.set()

        def is_over() -> bool:
            nonlocal shown
            shown += capsys.readouterr().err
            return "client_disconnected" in lines.getvalue() or "Traceback" in shown

        wait_until(is_over, "the end of the request")
        assert fetch(f"{endpoint.url}/health")[0] == 200
    assert shown == ""


def test_an_error_of_a_node_in_a_page_request_is_logged_with_its_place(lines: io.StringIO) -> None:
    log.configure(style="json", stream=lines)

    def fail() -> Health:
        raise ValueError("the node's own mistake")

    with StatusPage(Metrics(), fail) as endpoint:
        with pytest.raises(http.client.RemoteDisconnected):
            fetch(f"{endpoint.url}/health")
        wait_until(lambda: "request_failed" in lines.getvalue(), "a line in the log")
    line = next(each for each in map(json.loads, lines.getvalue().splitlines()) if each["event"] == "request_failed")
    assert line["level"] == "error"
    assert "the node's own mistake" in line["error"]
    assert "in fail" in line["traceback"]


def fetch(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_metrics_forget_unregistered_counters() -> None:
    counters, metrics = Counters("receiver"), Metrics()
    counters.add("packets_sent")
    metrics.register(counters)
    assert b"penstock_packets_sent_total" in metrics.render()
    metrics.unregister(counters)
    assert b"penstock_packets_sent_total" not in metrics.render()


def test_metrics_are_rendered_while_another_thread_counts() -> None:
    """Without a copy, rendering fails when a first count enlarges the dictionary.

    Short thread switch intervals provoke the failure, and so does a garbage collection with a callback that lets
    another thread run.
    """
    counters, metrics, stopped = Counters("receiver"), Metrics(), threading.Event()
    metrics.register(counters)

    def count() -> None:
        for number in itertools.count():
            if stopped.is_set():
                return
            counters.add("packets_dropped", cause=str(number % 3_000))
            if number % 3_000 == 0:
                counters._values.clear()

    def let_others_run(phase: str, info: dict[str, int]) -> None:
        sum(range(50))

    thread = threading.Thread(target=count)
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(20)
    gc.callbacks.append(let_others_run)
    thread.start()
    try:
        for _ in range(50):
            metrics.render()
            assert counters["packets_dropped"] >= 0
            assert len(counters.by_cause("packets_dropped")) <= 3_000
    finally:
        stopped.set()
        thread.join()
        gc.callbacks.remove(let_others_run)
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)


@pytest.mark.spec("OPS-1")
def test_logs_are_structured_and_hide_secrets(lines: io.StringIO) -> None:
    log.configure(style="json", stream=lines)
    log.logger("middleware.receiver").warning("id_collision", publisher_id=7, shared_secret="s3cret", source=("h", 1))
    line = json.loads(lines.getvalue())
    assert line["component"] == "middleware.receiver"
    assert (line["level"], line["event"], line["publisher_id"]) == ("warning", "id_collision", 7)
    assert line["source"] == ["h", 1]
    assert "s3cret" not in lines.getvalue()
    time = datetime.fromisoformat(line["time"])
    assert time.utcoffset() == timedelta(0)
    assert line["time"] == time.astimezone(UTC).isoformat(timespec="milliseconds")


class Login(msgspec.Struct):
    user: str
    passwd: str


@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.parametrize(
    "fields",
    [
        *(
            {key: "s3cret"}
            for key in ("passwd", "db_pwd", "api_key", "apikey", "Authorization", "cookie", "session_id")
        ),
        {"private_key": b"s3cret"},
        {"headers": {"X-Api-Key": "s3cret", "host": "h"}},
        {"peers": [{"name": "a", "options": ({"token": "s3cret"},)}]},
        {"login": Login("me", "s3cret")},
    ],
)
def test_secrets_are_hidden_by_any_name_and_at_any_depth(
    lines: io.StringIO, style: Any, fields: dict[str, Any]
) -> None:
    log.configure(style=style, stream=lines)
    log.logger("sim").info("seen", **fields)
    assert "(hidden)" in lines.getvalue()
    assert "s3cret" not in lines.getvalue()


def test_deep_nesting_is_truncated(lines: io.StringIO) -> None:
    endless: list[Any] = []
    endless.append(endless)
    log.configure(style="json", stream=lines)
    log.logger("sim").info("seen", value=endless)
    assert '"..."' in lines.getvalue()


@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.parametrize("value", ["a\n12:00:00 ERROR   sim forged", "a\r\x1b[2J", "a\u2028b", "\udc80"])
def test_values_cannot_forge_log_lines(lines: io.StringIO, style: Any, value: str) -> None:
    log.configure(style=style, stream=lines)
    log.logger("sim").info("seen", symbol=value, **{value: 1})
    assert len(lines.getvalue().splitlines()) == 1 or style == "json"
    assert lines.getvalue().count("\n") == 1
    assert "\x1b" not in lines.getvalue()


def test_logs_in_text_format_have_levels(lines: io.StringIO) -> None:
    log.configure(style="text", level="INFO", stream=lines)
    log.logger("sim").debug("unseen", n=1)
    log.logger("sim").info("seen", n=2, password="hunter2", url="http://h:1/", why="a b", forged="a x=1")
    expected = "INFO    sim seen n=2 password=(hidden) url=http://h:1/ why='a b' forged='a x=1'\n"
    assert lines.getvalue().endswith(expected)
    assert "unseen" not in lines.getvalue()
