"""A control connection as a core without I/O: handshake, versions, authentication, heartbeat, end.

    client                          server
      │ Hello ───────────────────────► │      names, versions, nonces, whether a proof is required
      │ ◄─────────────────────── Hello │      without secrets both sides are open now
      │ Proof ───────────────────────► │      the client first: a server proves nothing to strangers
      │ ◄─────────────────────── Proof │      open
      │ ◄── messages, Ping, Pong ────► │
      │ Goodbye ─────────────────────► │      or Error, from either side, at any time

The proofs cover both Hello frames as they were sent, so an attacker in between cannot change a version or name
unnoticed.
"""

from enum import Enum
from typing import Generic, Literal, TypeAlias

import msgspec

from penstock.base.clock import NS_PER_MS, Clock
from penstock.base.core import Tick, refuse
from penstock.base.counters import Cause, Counters
from penstock.base.errors import (
    AuthenticationError,
    ConnectionLostError,
    FrameError,
    LocalProtocolError,
    PenstockError,
    RefusedError,
    RemoteProtocolError,
    VersionError,
)
from penstock.net.config import ControlConfig
from penstock.net.core.control import (
    HANDSHAKE_SIZE_MAX,
    NONCE_SIZE,
    ControlProtocol,
    ErrorMessage,
    Goodbye,
    Hello,
    M,
    Ping,
    Pong,
    Proof,
    SessionMessage,
    UnknownMessageError,
    Version,
    decode_session,
    encode_session,
)
from penstock.net.core.events import (
    BytesReceived,
    ClockSample,
    ClockSampled,
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
from penstock.net.core.framing import FrameDecoder, encode_frame
from penstock.net.core.heartbeat import Heartbeat
from penstock.net.secret import Secret

Side: TypeAlias = Literal["client", "server"]


class Peer(msgspec.Struct, frozen=True):
    """The peer of a control connection: its node name, and the version used by both sides."""

    node: str
    version: Version
    is_authenticated: bool


class _State(Enum):
    NEW = "waits for Connected"
    HELLO = "waits for the peer's Hello"
    PROOF = "waits for the peer's Proof"
    OPEN = "both sides may send messages"
    OVER = "Disconnect has been said"


class ControlSession(Generic[M]):
    """One side of one control connection; `nonce` is 32 random bytes that were never used before."""

    def __init__(
        self,
        protocol: ControlProtocol[M],
        side: Side,
        *,
        node: str,
        nonce: bytes,
        secret: Secret | None,
        clock: Clock,
        config: ControlConfig,
        counters: Counters,
    ) -> None:
        if len(nonce) != NONCE_SIZE:
            raise LocalProtocolError(f"the nonce has {len(nonce)} bytes, expected {NONCE_SIZE}")
        self._protocol = protocol
        self._side = side
        self._secret = secret
        self._clock = clock
        self._config = config
        self._counters = counters
        version = protocol.version
        self._hello = Hello(protocol.name, version.major, version.minor, node, nonce, secret is not None)
        self._peer_hello: Hello | None = None
        self._statement = b""
        self._state = _State.NEW
        # a server's peer is not authenticated yet; a client may get Hello and long messages in one read
        self._decoder = FrameDecoder(HANDSHAKE_SIZE_MAX if side == "server" else config.message_size_max)
        self._handshake_due_ns = 0
        self._heartbeat: Heartbeat | None = None
        self._pinged: Ping | None = None
        self._out: list[SessionInstruction] = []

    def handle(self, event: SessionEvent, now_ns: int) -> list[SessionInstruction]:
        if self._state is _State.OVER:
            return []
        match event:
            case BytesReceived():
                if self._heartbeat is not None:
                    self._heartbeat.heard(now_ns)
                self._take_bytes(event.data, now_ns)
            case Send():
                self._send_message(event.message)
            case Tick():
                self._tick(now_ns)
            case Connected():
                self._start(now_ns)
            case EndOfStream():
                where = "in the middle of a frame" if self._decoder.kept_size else "without a goodbye"
                self._end(Cause.CUT, ConnectionLostError(f"the peer ended the connection {where}"))
            case ReadingPaused():
                if self._heartbeat is not None:
                    self._heartbeat.pause()
            case ReadingResumed():
                if self._heartbeat is not None:
                    self._heartbeat.heard(now_ns)
            case Close():
                if self._state is _State.OPEN:
                    self._send(Goodbye(event.reason[:256]))
                self._end(Cause.CLOSED, None)
            case _:
                refuse(self, event)
        out, self._out = self._out, []
        return out

    def next_deadline_ns(self) -> int | None:
        if self._state in (_State.NEW, _State.OVER):
            return None
        return self._handshake_due_ns if self._heartbeat is None else self._heartbeat.next_deadline_ns()

    def _start(self, now_ns: int) -> None:
        if self._state is not _State.NEW:
            raise LocalProtocolError("the session was connected before")
        self._state = _State.HELLO
        self._handshake_due_ns = now_ns + self._config.handshake_ms * NS_PER_MS
        if self._side == "client":
            self._send(self._hello)

    def _tick(self, now_ns: int) -> None:
        if self._heartbeat is None:
            if self._state is not _State.NEW and now_ns >= self._handshake_due_ns:
                what = f"the handshake was not complete within {self._config.handshake_ms} ms"
                self._fail(Cause.SILENT, ConnectionLostError(what))
        elif self._heartbeat.is_silent(now_ns):
            what = f"the peer was silent for {self._config.silence_ms} ms"
            self._fail(Cause.SILENT, ConnectionLostError(what))
        elif self._heartbeat.take_ping(now_ns):
            self._pinged = Ping(self._clock.wall_ns())
            self._send(self._pinged)

    # Messages of the peer

    def _take_bytes(self, data: bytes, now_ns: int) -> None:
        try:
            frames, failure = self._decoder.feed(data), None
        except FrameError as error:
            frames, failure = error.frames, error
        for frame in frames:
            if self._is_over():
                return
            try:
                self._take_frame(frame, now_ns)
            except VersionError as error:
                self._fail(Cause.VERSION, error)
            except AuthenticationError as error:
                self._fail(Cause.AUTHENTICATION, error)
            except RemoteProtocolError as error:
                self._fail(Cause.MESSAGE, error)
        if failure is not None and not self._is_over():
            self._fail(Cause.LENGTH, failure)

    def _take_frame(self, frame: bytes, now_ns: int) -> None:
        if self._state is not _State.OPEN:
            self._take_handshake(decode_session(frame), frame, now_ns)
            return
        try:
            message = self._protocol.decode(frame)
        except UnknownMessageError:
            assert self._peer_hello is not None
            if self._peer_hello.minor <= self._protocol.version.minor:
                raise
            self._counters.add("messages_skipped", cause=Cause.KIND)
            return
        match message:
            case Ping():
                wall_ns = self._clock.wall_ns()
                self._send(Pong(message.t1, wall_ns, wall_ns))
            case Pong():
                self._take_pong(message)
            case ErrorMessage():
                self._take_error(message)
            case Goodbye():
                self._end(Cause.GOODBYE, None)
            case Hello() | Proof():
                raise RemoteProtocolError(f"a second {type(message).__name__}")
            case _:
                self._out.append(Received(message))

    def _take_handshake(self, message: SessionMessage, frame: bytes, now_ns: int) -> None:
        match message:
            case Hello() if self._state is _State.HELLO:
                self._take_hello(message, frame, now_ns)
            case Proof() if self._state is _State.PROOF:
                self._take_proof(message, now_ns)
            case ErrorMessage():
                self._take_error(message)
            case Goodbye():
                self._end(Cause.GOODBYE, ConnectionLostError("the peer closed the connection during the handshake"))
            case _:
                raise RemoteProtocolError(f"a {type(message).__name__} when {self._state.value}")

    def _take_hello(self, hello: Hello, frame: bytes, now_ns: int) -> None:
        ours = self._protocol
        theirs = f"{hello.protocol} {hello.major}.{hello.minor}"
        if self._side == "server":
            self._send(self._hello)  # sent even to a refused peer, which then knows this side's version
        if hello.protocol != ours.name or hello.major != ours.version.major:
            raise VersionError(
                f"the {self._side} speaks {ours}, the {self._other_side} {theirs}",
                hint="both sides need the same protocol and major version",
            )
        if hello.wants_proof != self._hello.wants_proof:
            owner = self._other_side if hello.wants_proof else self._side
            raise AuthenticationError(f"only the {owner} has a secret", hint="give both sides the same secret file")
        self._peer_hello = hello
        own, other = encode_frame(encode_session(self._hello)), encode_frame(frame)
        self._statement = own + other if self._side == "client" else other + own
        if self._secret is None:
            self._open(now_ns)
        else:
            self._state = _State.PROOF
            if self._side == "client":
                self._send_proof(self._secret)

    @property
    def _other_side(self) -> Side:
        return "server" if self._side == "client" else "client"

    def _take_proof(self, message: Proof, now_ns: int) -> None:
        assert self._secret is not None
        if not self._secret.is_proof(message.proof, _label(self._other_side) + self._statement):
            raise AuthenticationError("the two sides do not have the same secret")
        if self._side == "server":
            self._send_proof(self._secret)
        self._open(now_ns)

    def _send_proof(self, secret: Secret) -> None:
        self._send(Proof(secret.prove(_label(self._side) + self._statement)))

    def _open(self, now_ns: int) -> None:
        assert self._peer_hello is not None
        ours = self._protocol.version
        self._state = _State.OPEN
        self._decoder.size_max = self._config.message_size_max
        version = Version(ours.major, min(ours.minor, self._peer_hello.minor))
        self._out.append(Opened(Peer(self._peer_hello.node, version, self._secret is not None)))
        self._heartbeat = Heartbeat.of(self._config, now_ns)

    def _take_pong(self, pong: Pong) -> None:
        if self._pinged is None or pong.t1 != self._pinged.t1:
            self._counters.add("messages_skipped", cause=Cause.UNEXPECTED)
            return
        self._pinged = None
        self._out.append(ClockSampled(ClockSample(pong.t1, pong.t2, pong.t3, self._clock.wall_ns())))

    def _take_error(self, message: ErrorMessage) -> None:
        code, what, hint = (_printable(text) for text in (message.code, message.what, message.hint))
        self._end(Cause.REFUSED, RefusedError(f"the peer ended the connection: {what}", peer_code=code, hint=hint))

    # Messages of this side

    def _send_message(self, message: M) -> None:
        if self._state is not _State.OPEN:
            raise LocalProtocolError("the handshake is not complete", hint="wait for Opened")
        self._out.append(SendBytes(encode_frame(self._protocol.encode(message, self._config.message_size_max))))

    def _send(self, message: SessionMessage) -> None:
        self._out.append(SendBytes(encode_frame(encode_session(message))))

    def _fail(self, cause: Cause, error: PenstockError) -> None:
        self._send(ErrorMessage(error.code, error.what[:256], error.hint[:256]))
        self._end(cause, error)

    def _end(self, cause: Cause, error: PenstockError | None) -> None:
        self._state = _State.OVER
        self._out.append(Disconnect(cause, error))

    def _is_over(self) -> bool:
        return self._state is _State.OVER


def _label(side: Side) -> bytes:
    return b"penstock control " + side.encode()


def _printable(text: str) -> str:
    """Replace unprintable characters: the peer's text may be shown on a terminal."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
