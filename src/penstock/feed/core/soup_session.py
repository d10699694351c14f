"""SoupBinTCP sessions of clients and servers: cores without I/O for penstock.net.live.stream (net/core/events.py)."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from penstock.base.clock import NS_PER_MS
from penstock.base.core import Tick, refuse
from penstock.base.counters import Cause
from penstock.base.errors import (
    AuthenticationError,
    ConnectionLostError,
    FrameError,
    LocalProtocolError,
    PenstockError,
    RefusedError,
    RemoteProtocolError,
)
from penstock.feed.formats import soup
from penstock.feed.formats._framing import SoupData
from penstock.feed.formats.soup import SoupAccepted, SoupFrames, SoupLogin, encode_soup
from penstock.net.config import StreamConfig
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

SOUP_CONFIG = StreamConfig(ping_ms=1_000, silence_ms=15_000)
"""Heartbeats after one second of silence, dead after fifteen, as in the specification."""

REASONS = {soup.NOT_AUTHORISED: "wrong user or password", soup.NOT_AVAILABLE: "no such session"}


class SoupSession(ABC):
    """The common part of both sides: frames, heartbeats in both directions, the end."""

    heartbeat = b""

    def __init__(self, config: StreamConfig) -> None:
        self._config = config
        self._frames = SoupFrames()
        self._is_over = False
        self._handshake_due_ns: int | None = None
        self._heartbeat: Heartbeat | None = None  # when the session is open

    def handle(self, event: SessionEvent, now_ns: int) -> list[SessionInstruction]:
        if self._is_over:
            return []
        match event:
            case Connected():
                self._handshake_due_ns = now_ns + self._config.handshake_ms * NS_PER_MS
                return self._connected()
            case BytesReceived():
                return self._receive(event.data, now_ns)
            case EndOfStream():
                return self._end(Cause.CUT, ConnectionLostError("the connection was cut"))
            case ReadingPaused():
                if self._heartbeat is not None:
                    self._heartbeat.pause()
                return []
            case ReadingResumed():
                self._heard(now_ns)
                return []
            case Send():
                if self._heartbeat is None:
                    raise LocalProtocolError("cannot send before the login")
                self._heartbeat.postpone_ping(now_ns)
                return [SendBytes(event.message)]
            case Close():
                return [*self._goodbye(), *self._end(Cause.CLOSED, None)]
            case Tick():
                return self._tick(now_ns)
            case _:
                refuse(self, event)

    def next_deadline_ns(self) -> int | None:
        if self._is_over:
            return None
        return self._handshake_due_ns if self._heartbeat is None else self._heartbeat.next_deadline_ns()

    @property
    def _is_open(self) -> bool:
        return self._heartbeat is not None

    def _receive(self, data: bytes, now_ns: int) -> list[SessionInstruction]:
        self._heard(now_ns)
        instructions: list[SessionInstruction] = []
        try:
            for kind, content in self._frames.packets(data):
                instructions += self._take(kind, content, now_ns)
                if self._is_over:
                    break
        except (FrameError, RemoteProtocolError) as error:
            cause = Cause.MESSAGE if self._is_open else Cause.HANDSHAKE
            instructions += self._end(cause, error)
        return instructions

    def _tick(self, now_ns: int) -> list[SessionInstruction]:
        if self._heartbeat is None:
            if self._handshake_due_ns is not None and now_ns >= self._handshake_due_ns:
                return self._end(Cause.HANDSHAKE, ConnectionLostError("no login arrived in time"))
            return []
        if self._heartbeat.is_silent(now_ns):
            what = f"the peer was silent for {self._config.silence_ms} ms"
            return self._end(Cause.SILENT, ConnectionLostError(what))
        if self._heartbeat.take_ping(now_ns):
            return [SendBytes(encode_soup(self.heartbeat))]
        return []

    def _open(self, peer: SoupLogin | SoupAccepted, now_ns: int) -> Opened:
        ping_ns, silence_ns = self._config.ping_ms * NS_PER_MS, self._config.silence_ms * NS_PER_MS
        # sending postpones ticks by more than a ping interval, so an interval without ticks is no suspension
        self._heartbeat = Heartbeat(now_ns, ping_ns=ping_ns, silence_ns=silence_ns, forgives_suspension=False)
        self._heartbeat.postpone_ping(now_ns)
        return Opened(peer)

    def _heard(self, now_ns: int) -> None:
        if self._heartbeat is not None:
            self._heartbeat.heard(now_ns)

    def _end(self, cause: Cause, error: PenstockError | None) -> list[SessionInstruction]:
        self._is_over = True
        return [Disconnect(cause, error)]

    @abstractmethod
    def _connected(self) -> list[SessionInstruction]: ...

    @abstractmethod
    def _take(self, kind: bytes, content: bytes, now_ns: int) -> list[SessionInstruction]: ...

    @abstractmethod
    def _goodbye(self) -> list[SessionInstruction]: ...


class SoupServerSession(SoupSession):
    """Serves one client. `admit(login)` returns an acceptance, or the reason of a rejection.

    Opened has the SoupLogin with the accepted number; sent data are whole packets (soup_data).
    """

    heartbeat = soup.HEARTBEAT

    def __init__(self, admit: Callable[[SoupLogin], SoupAccepted | str], config: StreamConfig = SOUP_CONFIG) -> None:
        super().__init__(config)
        self._admit = admit

    def _connected(self) -> list[SessionInstruction]:
        return []

    def _take(self, kind: bytes, content: bytes, now_ns: int) -> list[SessionInstruction]:
        if not self._is_open:
            return self._log_in(kind, content, now_ns)
        if kind == soup.LOGOUT:
            return self._end(Cause.GOODBYE, None)
        if kind in (soup.CLIENT_HEARTBEAT, soup.UNSEQUENCED, soup.DEBUG):
            return []
        return self._end(Cause.MESSAGE, RemoteProtocolError(f"unexpected packet of type {kind!r} from a client"))

    def _log_in(self, kind: bytes, content: bytes, now_ns: int) -> list[SessionInstruction]:
        if kind != soup.LOGIN:
            return self._end(
                Cause.HANDSHAKE, RemoteProtocolError(f"a packet of type {kind!r} arrived before the login")
            )
        login = soup.decode_login(content)
        admitted = self._admit(login)
        if isinstance(admitted, str):
            error = AuthenticationError(f"{login.user!r}: {REASONS.get(admitted, admitted)}")
            rejected = SendBytes(encode_soup(soup.REJECTED, admitted.encode("ascii")))
            return [rejected, *self._end(Cause.AUTHENTICATION, error)]
        peer = SoupLogin(login.user, "", admitted.session, admitted.sequence)
        return [SendBytes(soup.encode_accepted(admitted)), self._open(peer, now_ns)]

    def _goodbye(self) -> list[SessionInstruction]:
        return [SendBytes(encode_soup(soup.END))] if self._is_open else []


class SoupClientSession(SoupSession):
    """Logs in and receives. Opened has the SoupAccepted; received data are SourceBatches, each a copy."""

    heartbeat = soup.CLIENT_HEARTBEAT

    def __init__(self, login: SoupLogin, config: StreamConfig = SOUP_CONFIG) -> None:
        super().__init__(config)
        self._login = login
        self._rest = b""
        self.next_sequence = login.sequence

    def _connected(self) -> list[SessionInstruction]:
        return [SendBytes(soup.encode_login(self._login))]

    def _receive(self, data: bytes, now_ns: int) -> list[SessionInstruction]:
        """Handle consecutive sequenced data in one batch, not packet by packet."""
        self._heard(now_ns)
        instructions: list[SessionInstruction] = []
        data = self._rest + data if self._rest else data
        at = 0
        while self._is_open and not self._is_over:
            reader = SoupData()
            batch = reader.batch(data, at, self.next_sequence)
            at = reader.end
            if len(batch):
                self.next_sequence += len(batch)
                instructions.append(Received(batch))
            end = _packet_end(data, at)
            if end is None:
                break
            instructions += super()._receive(data[at:end], now_ns)
            at = end
        self._rest = data[at:]
        if not self._is_open and not self._is_over:
            return instructions + self._receive_login(now_ns)
        return instructions

    def _receive_login(self, now_ns: int) -> list[SessionInstruction]:
        end = _packet_end(self._rest, 0)
        if end is None:
            return []
        first, self._rest = self._rest[:end], self._rest[end:]
        instructions = super()._receive(first, now_ns)
        return instructions + (self._receive(b"", now_ns) if self._rest and not self._is_over else [])

    def _take(self, kind: bytes, content: bytes, now_ns: int) -> list[SessionInstruction]:
        if not self._is_open:
            return self._answer(kind, content, now_ns)
        if kind == soup.END:
            return self._end(Cause.GOODBYE, None)
        if kind in (soup.HEARTBEAT, soup.UNSEQUENCED, soup.DEBUG):
            return []
        return self._end(Cause.MESSAGE, RemoteProtocolError(f"unexpected packet of type {kind!r} from a server"))

    def _answer(self, kind: bytes, content: bytes, now_ns: int) -> list[SessionInstruction]:
        if kind == soup.DEBUG:
            return []
        if kind == soup.ACCEPTED:
            accepted = soup.decode_accepted(content)
            self.next_sequence = accepted.sequence
            return [self._open(accepted, now_ns)]
        if kind == soup.REJECTED:
            reason = content.decode("ascii", errors="replace")
            what = f"login refused: {REASONS.get(reason, repr(reason))}"
            return self._end(Cause.AUTHENTICATION, RefusedError(what, peer_code=reason))
        return self._end(Cause.HANDSHAKE, RemoteProtocolError(f"a packet of type {kind!r} is not an answer to a login"))

    def _goodbye(self) -> list[SessionInstruction]:
        return [SendBytes(encode_soup(soup.LOGOUT))]


def _packet_end(data: bytes, at: int) -> int | None:
    """The end of the packet at `at`, if it is complete. A packet without a type ends at once, and is refused."""
    if len(data) - at < 3:
        return None
    end = at + 2 + max(int.from_bytes(data[at : at + 2], "big"), 1)
    return end if end <= len(data) else None
