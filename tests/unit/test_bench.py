"""What the benches report when a part fails, and how they read from nats-server."""

import socket
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from penstock.base.errors import PenstockError
from penstock.bench.brokers import PING, NatsClient
from penstock.bench.frontdoor import bench
from penstock.bench.harness import Result, result, rounds

TOPIC = "app.desk.mid"


def test_a_part_that_fails_is_reported_and_the_next_part_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> Iterator[Result]:
        yield measured("first")
        raise PenstockError("no answer")

    parts = [SimpleNamespace(__name__="bench.one", run=failing), SimpleNamespace(__name__="two", run=lambda: [other])]
    other = measured("second")
    monkeypatch.setattr(bench, "PARTS", parts)
    found = list(bench.run())
    assert [(each.metric, each.missing) for each in found] == [
        ("first", ""), ("one", "the part failed: no answer"), ("second", "")
    ]  # fmt: skip


def measured(metric: str) -> Result:
    return result("b", metric, 1.0, "s", against="", against_value=0.0, conditions="")


def test_there_is_at_least_one_round() -> None:
    assert list(rounds(3, -1.0)) == [0]
    assert list(rounds(3, 1e9)) == [0, 1, 2]


def test_pings_of_nats_between_messages_are_answered() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        client = NatsClient.__new__(NatsClient)
        client._socket, client._buffer = ours, bytearray(1_000)
        client._socket.settimeout(10.0)
        message = b"MSG %s 10000000 4\r\n" % TOPIC.encode()
        payloads = client.payloads(TOPIC, 4)
        stream = b"".join([message + b"aaaa\r\n", PING, message + b"PING\r\n", message + b"cccc\r\n"])
        theirs.sendall(stream[:-3])
        assert [next(payloads) for _ in range(2)] == [b"aaaa", b"PING"]
        theirs.sendall(stream[-3:])
        assert next(payloads) == b"cccc"
        assert theirs.recv(100) == b"PONG\r\n"


def test_other_answers_of_nats_are_errors() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        client = NatsClient.__new__(NatsClient)
        client._socket, client._buffer = ours, bytearray(1_000)
        theirs.sendall(b"-ERR 'Slow Consumer'\r\n")
        with pytest.raises(PenstockError, match="neither messages nor pings"):
            next(client.payloads(TOPIC, 4))
