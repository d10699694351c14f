"""WebSocket sessions from both ends, without a socket: the library's protocol, and our limits and causes."""

from typing import Any

import pytest

from penstock.base.core import Tick
from penstock.base.counters import Cause
from penstock.base.errors import ConnectionLostError, LocalProtocolError, RefusedError, RemoteProtocolError
from penstock.net.config import WebSocketConfig
from penstock.net.core.events import (
    BytesReceived,
    Close,
    Connected,
    EndOfStream,
    Opened,
    ReadingPaused,
    ReadingResumed,
    Received,
    Send,
)
from penstock.net.core.websocket import WebSocketClientSession, WebSocketPeer, WebSocketServerSession, WebSocketSession
from unit.net_kit import MS, converse, ended, exchange, of, sent

URI = "ws://127.0.0.1:1/ticks?x=1"
CONFIG = WebSocketConfig(message_size_max=1_000, fragments_max=3, handshake_size_max=2_000, headers_max=20)
REQUEST = (
    b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
)


def server(config: WebSocketConfig = CONFIG, **options: Any) -> WebSocketServerSession:
    return WebSocketServerSession(config, **{"origins": [None], **options})


def client(config: WebSocketConfig = CONFIG, **options: Any) -> WebSocketClientSession:
    return WebSocketClientSession(URI, config, **options)


def pair(config: WebSocketConfig = CONFIG) -> tuple[WebSocketSession, WebSocketSession]:
    sides = client(config), server(config)
    converse(*sides)
    return sides


def requested(request: bytes, **options: Any) -> list[Any]:
    session = server(**options)
    session.handle(Connected(), 0)
    return session.handle(BytesReceived(request), 0)


def frame(opcode: int, payload: bytes, *, fin: bool = True) -> bytes:
    """A frame as a client sends it, with a mask of zeros; written from the RFC."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    return bytes([(0x80 if fin else 0) | opcode]) + length + bytes(4) + payload


def test_the_handshake_names_the_client_and_the_resource() -> None:
    client_said, server_said = converse(
        client(origin="https://a.example", subprotocols=["ticks"], headers={"X-Asked": "yes", "X-Other": "no"}),
        server(origins=["https://a.example"], subprotocols=["other", "ticks"], headers=["origin", "x-asked"]),
    )
    headers = {"origin": "https://a.example", "x-asked": "yes"}
    assert of(Opened, server_said) == [Opened(WebSocketPeer("/ticks?x=1", headers, "ticks"))]
    assert of(Opened, client_said) == [Opened(WebSocketPeer("/ticks?x=1", {}, "ticks"))]


@pytest.mark.parametrize("message", ["", "text", "grüße", b"", b"\0\1\xff", b"x" * 1_000])
def test_messages_are_delivered_both_ways(message: str | bytes) -> None:
    a, b = pair()
    assert b.handle(BytesReceived(sent(a.handle(Send(message), 0))), 0) == [Received(message)]
    assert a.handle(BytesReceived(sent(b.handle(Send(message), 0))), 0) == [Received(message)]


def test_byte_by_byte() -> None:
    a, b = client(), server()
    b.handle(Connected(), 0)
    request = sent(a.handle(Connected(), 0))
    said = [each for at in range(len(request)) for each in b.handle(BytesReceived(request[at : at + 1]), 0)]
    response = sent(said)
    said = [each for at in range(len(response)) for each in a.handle(BytesReceived(response[at : at + 1]), 0)]
    assert of(Opened, said)
    data = sent(a.handle(Send("one"), 0)) + sent(a.handle(Send(b"two"), 0))
    said = [each for at in range(len(data)) for each in b.handle(BytesReceived(data[at : at + 1]), 0)]
    assert said == [Received("one"), Received(b"two")]


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST" + REQUEST[3:] + b"\r\n", b""),
        (REQUEST.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n", b""),
        (REQUEST.replace(b"Upgrade: websocket", b"Upgrade: teapot") + b"\r\n", b"426"),
        (REQUEST.replace(b"AAAAAAAA", b"A") + b"\r\n", b"400"),
        (REQUEST.replace(b"13\r\n", b"12\r\n") + b"\r\n", b"400"),
        (REQUEST + b"Origin: https://evil.example\r\n\r\n", b"403"),
        (REQUEST + b"".join(b"X-%d: y\r\n" % n for n in range(30)) + b"\r\n", b"431"),
        (REQUEST + b"".join(b"X-%d: y\r\n" % n for n in range(150)) + b"\r\n", b"431"),
        (REQUEST + b"X: " + b"y" * 3_000 + b"\r\n\r\n", b"431"),
        (b"\x16\x03\x01\x02\0 a TLS hello\r\n\r\n", b""),
        (b"\0" * 1_999 + b"\n", b""),
    ],
)
def test_an_invalid_handshake_is_answered_if_it_is_http_and_always_ends_the_connection(
    request_bytes: bytes, status: bytes
) -> None:
    said = requested(request_bytes)
    assert not of(Opened, said)
    assert ended(said).cause == Cause.HANDSHAKE
    assert isinstance(ended(said).error, RemoteProtocolError)
    if status:
        assert sent(said).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("early", [b"rubbish", frame(8, b"")])
@pytest.mark.parametrize("request_bytes", [REQUEST, REQUEST.replace(b"13", b"12")])
def test_a_client_that_does_not_wait_for_the_answer_is_refused(request_bytes: bytes, early: bytes) -> None:
    said = requested(request_bytes + b"\r\n" + early)
    assert not of(Opened, said)
    assert ended(said).cause == Cause.HANDSHAKE


def test_a_message_sent_with_an_invalid_handshake_is_ignored() -> None:
    said = requested(REQUEST.replace(b"13", b"12") + b"\r\n" + frame(1, b"early"))
    assert not of(Opened, said)
    assert not of(Received, said)


def test_an_endless_handshake_is_ended() -> None:
    session = server()
    session.handle(Connected(), 0)
    said: list[Any] = []
    for count in range(1, 100):
        said = session.handle(BytesReceived(b"GET / HTTP/1.1\r\n" if count == 1 else b"X: " + b"y" * 95 + b"\r\n"), 0)
        if said:
            break
    assert count == 21
    assert sent(said).startswith(b"HTTP/1.1 431")


def test_a_missing_subprotocol_is_refused() -> None:
    client_said, server_said = converse(client(subprotocols=["a"]), server(subprotocols=["b"]))
    assert ended(server_said).cause == Cause.HANDSHAKE
    error = ended(client_said).error
    assert isinstance(error, RefusedError)
    assert error.peer_code == "400"


@pytest.mark.parametrize("make", [client, server])
def test_a_handshake_has_a_timeout(make: Any) -> None:
    session = make(WebSocketConfig(handshake_ms=50))
    session.handle(Connected(), 0)
    assert session.next_deadline_ns() == 50 * MS
    assert session.handle(Tick(), 49 * MS) == []
    assert ended(session.handle(Tick(), 50 * MS)).cause == Cause.SILENT
    assert session.next_deadline_ns() is None


def test_a_peer_that_answers_no_ping_times_out() -> None:
    a, b = pair(WebSocketConfig(ping_ms=100, silence_ms=250))
    assert sent(a.handle(Tick(), 0))
    exchange(a, b, a.handle(Tick(), 100 * MS), [], 120 * MS)  # the pong is read at 120
    assert a.next_deadline_ns() == 200 * MS
    a.handle(Tick(), 200 * MS)
    a.handle(Tick(), 300 * MS)
    assert a.next_deadline_ns() == 370 * MS
    end = ended(a.handle(Tick(), 370 * MS))
    assert (end.cause, type(end.error)) == (Cause.SILENT, ConnectionLostError)


def test_silence_is_not_counted_while_we_do_not_read() -> None:
    a, _ = pair(WebSocketConfig(ping_ms=100, silence_ms=250))
    a.handle(ReadingPaused(), 0)
    assert sent(a.handle(Tick(), 9_000 * MS))
    a.handle(ReadingResumed(), 9_050 * MS)  # from here on we read
    assert sent(a.handle(Tick(), 9_100 * MS))
    assert sent(a.handle(Tick(), 9_200 * MS))
    assert a.next_deadline_ns() == 9_300 * MS
    assert ended(a.handle(Tick(), 9_300 * MS)).cause == Cause.SILENT


def test_fragments_form_one_message_within_their_limits() -> None:
    _, b = pair()
    data = frame(1, b"gr\xc3", fin=False) + frame(9, b"ping") + frame(0, b"\xbc", fin=False) + frame(0, b"n")
    assert of(Received, b.handle(BytesReceived(data), 0)) == [Received("grün")]
    many = frame(2, b"", fin=False) + frame(0, b"", fin=False) * 3
    assert ended(b.handle(BytesReceived(many), 0)).cause == Cause.LENGTH


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (frame(2, b"x" * 1_001), Cause.LENGTH),
        (frame(2, b"x" * 600, fin=False) + frame(0, b"x" * 401), Cause.LENGTH),
        (b"\x82\xff" + (2**62).to_bytes(8, "big"), Cause.LENGTH),
        (frame(1, b"\xff\xfe"), Cause.MESSAGE),
        (frame(3, b""), Cause.MESSAGE),
        (frame(0, b"x"), Cause.MESSAGE),
        (b"\x82\x01x", Cause.MESSAGE),  # not masked
        (b"\xf2\x80\0\0\0\0", Cause.MESSAGE),  # reserved bits
        (frame(9, b"x" * 126), Cause.MESSAGE),
        (frame(8, b"\x03"), Cause.MESSAGE),
        (b"complete rubbish", Cause.MESSAGE),
    ],
)
def test_invalid_messages_end_the_connection(data: bytes, cause: Cause) -> None:
    _, b = pair()
    said = b.handle(BytesReceived(frame(1, b"good") + data), 0)
    assert of(Received, said) == [Received("good")]
    assert ended(said).cause == cause
    assert said[-1] is ended(said)
    assert sent(said).startswith(b"\x88")  # a close frame


def test_closing_waits_a_bounded_time_for_the_answer() -> None:
    a, b = pair(WebSocketConfig(linger_ms=30))
    said = a.handle(Close("done"), 0)
    answer = b.handle(BytesReceived(sent(said)), 0)
    assert (ended(answer).cause, ended(answer).error) == (Cause.GOODBYE, None)
    assert (ended(a.handle(BytesReceived(sent(answer)), 0)).cause) == Cause.CLOSED
    for event, now_ns in ((Tick(), 30 * MS), (EndOfStream(), 1)):
        a, _ = pair(WebSocketConfig(linger_ms=30))
        a.handle(Close("x" * 200 + "ü" * 200), 0)
        assert a.next_deadline_ns() == 30 * MS
        end = ended(a.handle(event, now_ns))
        assert (end.cause, end.error) == (Cause.CLOSED, None)


def test_a_close_code_of_the_peer_that_signals_an_error_is_an_error() -> None:
    _, b = pair()
    end = ended(b.handle(BytesReceived(frame(8, (1008).to_bytes(2, "big") + b"go away")), 0))
    assert end.cause == Cause.REFUSED
    assert isinstance(end.error, RefusedError)
    assert end.error.peer_code == "1008"


def test_the_end_of_the_stream_is_a_connection_loss() -> None:
    a, _ = pair()
    assert ended(a.handle(EndOfStream(), 0)).cause == Cause.CUT
    assert a.handle(BytesReceived(b"x"), 0) == []
    fresh = server()
    fresh.handle(Connected(), 0)
    fresh.handle(BytesReceived(REQUEST), 0)
    assert ended(fresh.handle(EndOfStream(), 0)).cause == Cause.CUT


def test_mistakes_of_the_caller_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match="not open"):
        client().handle(Send("x"), 0)
    a, _ = pair()
    with pytest.raises(LocalProtocolError, match="limit is 1000"):
        a.handle(Send("x" * 1_001), 0)
    assert sent(a.handle(Send("still open"), 0))
