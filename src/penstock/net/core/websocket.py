"""A WebSocket connection as a core without I/O, based on the websockets library, which implements RFC 6455.

This module adds the protection that a server on a hostile network needs: limits on the handshake, on messages and on
their number of fragments, a heartbeat, and one clear cause for every end. Compression is off, so that messages cannot
expand. Messages are str (text) and bytes (binary).
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import TypeAlias, cast

import msgspec
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, PayloadTooBig
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Origin, Subprotocol
from websockets.uri import parse_uri

from penstock.base.clock import NS_PER_MS
from penstock.base.core import Tick, refuse
from penstock.base.counters import Cause
from penstock.base.errors import (
    ConnectionLostError,
    LocalProtocolError,
    PenstockError,
    RefusedError,
    RemoteProtocolError,
)
from penstock.net.config import WebSocketConfig
from penstock.net.core.events import (
    BytesReceived,
    Close,
    Connected,
    Disconnect,
    EndOfStream,
    Opened,
    ReadingPaused,
    ReadingResumed,
    Received,
    Send,
    SendBytes,
    SessionEvent,
    SessionInstruction,
)
from penstock.net.core.heartbeat import Heartbeat

WebSocketMessage: TypeAlias = str | bytes

REASON_SIZE_MAX = 120
"""Maximum size of the reason in a close frame; the RFC allows 123 bytes."""

CLEAN_CODES = (CloseCode.NORMAL_CLOSURE, CloseCode.GOING_AWAY, CloseCode.NO_STATUS_RCVD)


class WebSocketPeer(msgspec.Struct, frozen=True):
    """The result of the opening handshake; `headers` are the requested ones, by lower-case name."""

    path: str
    headers: dict[str, str]
    subprotocol: str | None


class WebSocketSession:
    """The common part of WebSocketServerSession and WebSocketClientSession."""

    def __init__(self, protocol: ServerProtocol | ClientProtocol, config: WebSocketConfig) -> None:
        self._protocol = protocol
        self._config = config
        self._handshake_size = 0
        self._due_ns: int | None = None  # deadline of the handshake, later of the closing handshake
        self._heartbeat: Heartbeat | None = None
        self._fragments: list[bytes] = []
        self._is_text = False
        self._is_closing = False
        self._disconnect: Disconnect | None = None
        self._out: list[SessionInstruction] = []

    def handle(self, event: SessionEvent, now_ns: int) -> list[SessionInstruction]:
        if self._disconnect is not None:
            return []
        match event:
            case BytesReceived():
                self._take_bytes(event.data, now_ns)
            case Send():
                self._send_message(event.message)
            case Tick():
                self._tick(now_ns)
            case Connected():
                self._due_ns = now_ns + self._config.handshake_ms * NS_PER_MS
                self._begin()
            case EndOfStream():
                self._protocol.receive_eof()
                if self._is_closing:
                    self._end(Cause.CLOSED, None)
                else:
                    self._end(Cause.CUT, ConnectionLostError("the peer ended the connection without a goodbye"))
            case ReadingPaused():
                if self._heartbeat is not None:
                    self._heartbeat.pause()
            case ReadingResumed():
                if self._heartbeat is not None:
                    self._heartbeat.heard(now_ns)
            case Close():
                self._close(event.reason, now_ns)
            case _:
                refuse(self, event)
        self._settle()
        out, self._out = self._out, []
        return out

    def next_deadline_ns(self) -> int | None:
        if self._disconnect is not None:
            return None
        return self._due_ns if self._heartbeat is None else self._heartbeat.next_deadline_ns()

    def _begin(self) -> None:
        """Send the first message, on the side that begins."""

    def _take_handshake(self, event: Request | Response) -> WebSocketPeer | None:
        """Return the peer if this message completed the handshake."""
        raise NotImplementedError

    def _refuse_handshake(self, status: HTTPStatus, what: str) -> None:
        """Refuse the handshake, with an answer on the server's side."""
        self._end(Cause.HANDSHAKE, RemoteProtocolError(what))

    def _tick(self, now_ns: int) -> None:
        if self._heartbeat is None:
            if self._due_ns is not None and now_ns >= self._due_ns:
                self._on_due()
        elif self._heartbeat.is_silent(now_ns):
            what = f"the peer was silent for {self._config.silence_ms} ms"
            self._protocol.fail(CloseCode.POLICY_VIOLATION, "silent for too long")
            self._end(Cause.SILENT, ConnectionLostError(what))
        elif self._heartbeat.take_ping(now_ns):
            self._protocol.send_ping(b"")

    def _on_due(self) -> None:
        if self._is_closing:
            self._end(Cause.CLOSED, None)
        else:
            what = f"the handshake was not complete within {self._config.handshake_ms} ms"
            self._end(Cause.SILENT, ConnectionLostError(what))

    def _close(self, reason: str, now_ns: int) -> None:
        if self._protocol.state is not State.OPEN:
            self._end(Cause.CLOSED, None)
            return
        text = reason.encode()[:REASON_SIZE_MAX].decode(errors="ignore")
        self._protocol.send_close(CloseCode.NORMAL_CLOSURE, text)
        self._is_closing = True
        self._heartbeat = None
        self._due_ns = now_ns + self._config.linger_ms * NS_PER_MS

    def _send_message(self, message: WebSocketMessage) -> None:
        if self._protocol.state is not State.OPEN:
            raise LocalProtocolError("the connection is not open", hint="wait for Opened")
        data = message.encode() if isinstance(message, str) else message
        if len(data) > self._config.message_size_max:
            raise LocalProtocolError(
                f"the message has {len(data)} bytes", hint=f"the limit is {self._config.message_size_max}"
            )
        if isinstance(message, str):
            self._protocol.send_text(data)
        else:
            self._protocol.send_binary(data)

    # Messages of the peer

    def _take_bytes(self, data: bytes, now_ns: int) -> None:
        if self._protocol.state is State.CONNECTING:
            self._handshake_size += len(data)
            if self._handshake_size > self._config.handshake_size_max:
                what = f"the handshake exceeds {self._config.handshake_size_max} bytes"
                self._refuse_handshake(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, what)
                return
        if self._heartbeat is not None:
            self._heartbeat.heard(now_ns)
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._take_frame(event)
            elif (peer := self._take_handshake(event)) is not None:
                self._heartbeat = Heartbeat.of(self._config, now_ns)
                self._out.append(Opened(peer))

    def _take_frame(self, frame: Frame) -> None:
        is_ours_to_take = self._heartbeat is not None and self._disconnect is None  # open, and not closing
        if not is_ours_to_take or frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        self._fragments.append(bytes(frame.data))
        if len(self._fragments) > self._config.fragments_max:
            self._fail_message(
                CloseCode.MESSAGE_TOO_BIG, f"the message has more than {self._config.fragments_max} fragments"
            )
        elif frame.fin:
            data, self._fragments = b"".join(self._fragments), []
            try:
                self._out.append(Received(data.decode() if self._is_text else data))
            except UnicodeDecodeError:
                self._fail_message(CloseCode.INVALID_DATA, "the text is not UTF-8")

    def _fail_message(self, code: CloseCode, what: str) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.fail(code, what)
        self._end(Cause.LENGTH if code is CloseCode.MESSAGE_TOO_BIG else Cause.MESSAGE, RemoteProtocolError(what))

    # Results

    def _settle(self) -> None:
        """Send the library's output, and return Disconnect when either side has finished."""
        self._out += [SendBytes(data) for data in self._protocol.data_to_send() if data]
        if self._disconnect is None and (end := self._end_of_library()) is not None:
            self._end(*end)
        if self._disconnect is not None:
            self._out.append(self._disconnect)

    def _end_of_library(self) -> tuple[Cause, PenstockError | None] | None:
        protocol = self._protocol
        if (failure := protocol.handshake_exc) is not None:
            return Cause.HANDSHAKE, _handshake_error(failure)
        if (failure := protocol.parser_exc) is not None:
            cause = Cause.LENGTH if isinstance(failure, PayloadTooBig) else Cause.MESSAGE
            return cause, RemoteProtocolError(f"no WebSocket frames: {failure}")
        if protocol.close_rcvd is None:
            return None
        if self._is_closing:
            return Cause.CLOSED, None
        code, reason = protocol.close_rcvd.code, protocol.close_rcvd.reason
        if code in CLEAN_CODES:
            return Cause.GOODBYE, None
        return Cause.REFUSED, RefusedError(f"the peer closed with code {code}: {reason!r}", peer_code=str(code))

    def _end(self, cause: Cause, error: PenstockError | None) -> None:
        self._disconnect = Disconnect(cause, error)


class WebSocketServerSession(WebSocketSession):
    """`origins` are the web sites whose pages may connect, None for programs, which send no origin; with empty
    `subprotocols`, none is required."""

    def __init__(
        self,
        config: WebSocketConfig,
        *,
        origins: Sequence[str | None],
        subprotocols: Sequence[str] = (),
        headers: Sequence[str] = ("host", "origin", "user-agent"),
    ) -> None:
        self._server = ServerProtocol(
            origins=cast("Sequence[Origin | None]", origins),
            subprotocols=[Subprotocol(name) for name in subprotocols],
            max_size=config.message_size_max,
        )
        self._headers = headers
        super().__init__(self._server, config)

    def _take_handshake(self, event: Request | Response) -> WebSocketPeer | None:
        assert isinstance(event, Request)
        if self._server.eof_sent:  # the library has already read on and given up
            self._end(Cause.HANDSHAKE, RemoteProtocolError("the peer sent frames before the handshake was complete"))
            return None
        if len(list(event.headers.raw_items())) > self._config.headers_max:
            self._refuse_handshake(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too many headers")
            return None
        self._server.send_response(self._server.accept(event))
        if self._server.state is not State.OPEN:
            return None
        kept = {name: ", ".join(event.headers.get_all(name)) for name in self._headers if name in event.headers}
        return WebSocketPeer(event.path, kept, self._server.subprotocol)

    def _refuse_handshake(self, status: HTTPStatus, what: str) -> None:
        self._server.send_response(self._server.reject(status, f"{what}\n"))
        super()._refuse_handshake(status, what)


class WebSocketClientSession(WebSocketSession):
    """`uri` is ws:// or wss://. It only determines the request; the driver makes the TLS connection."""

    def __init__(
        self,
        uri: str,
        config: WebSocketConfig,
        *,
        origin: str | None = None,
        subprotocols: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._client = ClientProtocol(
            parse_uri(uri),
            origin=None if origin is None else Origin(origin),
            subprotocols=[Subprotocol(name) for name in subprotocols] or None,
            max_size=config.message_size_max,
        )
        self._headers = headers or {}
        super().__init__(self._client, config)

    def _begin(self) -> None:
        request = self._client.connect()
        request.headers.update(self._headers)
        self._client.send_request(request)

    def _take_handshake(self, event: Request | Response) -> WebSocketPeer | None:
        if self._client.handshake_exc is not None:
            return None
        return WebSocketPeer(self._client.uri.resource_name, {}, self._client.subprotocol)


def _handshake_error(failure: Exception) -> PenstockError:
    if isinstance(failure, InvalidStatus):
        status = failure.response.status_code
        return RefusedError(f"the server answered with HTTP status {status}", peer_code=str(status))
    return RemoteProtocolError(f"no WebSocket handshake: {failure}")
