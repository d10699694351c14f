"""ClientSessionDriver: runs the core of a client (net/core/client_session.py) on real links, in an asyncio loop.

    core ── Connect, Say, SendData, Close ──► ClientSessionDriver ──► Dialling, Link
         ◄── Connected, ConnectFailed, LinkClosed, Received, data events ──

The user implements the differences between protocols: splitting of frames, data events, and instructions that do not
concern links.
"""

import contextlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar

from penstock.base.core import Core
from penstock.base.counters import Cause, Counters
from penstock.base.errors import (
    AuthenticationError,
    ConfigurationError,
    ConnectionLostError,
    FrameError,
    NoSuchHostError,
    PenstockError,
    RefusedError,
    RemoteProtocolError,
)
from penstock.base.log import Logger
from penstock.net.config import ControlConfig
from penstock.net.core.client_session import (
    Begin,
    Close,
    Connect,
    Connected,
    ConnectFailed,
    LinkClosed,
    Received,
    Say,
    SendData,
)
from penstock.net.core.control import (
    ControlProtocol,
    ErrorMessage,
    Goodbye,
    Hello,
    Ping,
    Pong,
    Proof,
    encode_session,
)
from penstock.net.core.control_session import Peer
from penstock.net.core.framing import encode_frame
from penstock.net.guard import Guard
from penstock.net.live.dialling import Dialling
from penstock.net.live.event_loop import CoreRunner
from penstock.net.live.link import Link


class Splitter(Protocol):
    """Splits the bytes of one link. It may raise for bytes that no valid server sends."""

    @property
    def failure(self) -> str:
        """The reason why splitting has failed; empty if it has not."""
        ...

    def feed(self, data: bytes, /) -> Iterable[tuple[bool, bytes]]:
        """Return the complete pieces, in order: True for data, and the piece; a control message is its payload."""
        ...


S = TypeVar("S", bound=Splitter)
S_co = TypeVar("S_co", bound=Splitter, covariant=True)


class SessionUser(Protocol[S_co]):
    def new_splitter(self) -> S_co: ...

    def data_event(self, link: int, piece: bytes) -> Any:
        """Return the core's event for a piece of data."""
        ...

    def received(self, link: Link) -> None:
        """The core has handled the received data of the link."""
        ...

    def holds(self, instruction: Any) -> bool:
        """True if the user keeps the instruction and passes it to carry_out() later."""
        ...

    def carry_out(self, instruction: Any) -> None:
        """Carry out an instruction that does not concern links."""
        ...


class ClientSessionDriver(Generic[S]):
    """Runs from start() to close(), in the thread of the loop. `server` is the kind of server in logs and errors."""

    def __init__(
        self,
        core: Core[Any, Any],
        protocol: ControlProtocol[Any],
        user: SessionUser[S],
        *,
        server: str,
        node: str,
        guard: Guard,
        config: ControlConfig,
        counters: Counters,
        log: Logger,
        turn: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.runner: CoreRunner[Any, Any] = CoreRunner(core, self._carry_out, turn=turn)
        self._dialling = Dialling(protocol, self, node=node, guard=guard, config=config, counters=counters)
        self._protocol = protocol
        self._user = user
        self._server = server
        self._message_size_max = config.message_size_max
        self._counters = counters
        self._log = log
        self._splitters: dict[int, S] = {}

    @property
    def links(self) -> dict[int, Link]:
        return self._dialling.links

    def splitter(self, link: Link) -> S:
        return self._splitters[link.number]

    def start(self) -> None:
        self.runner.handle(Begin())

    async def close(self) -> None:
        self.runner.stop()
        await self._dialling.close()

    def tell(self, event: Any) -> None:
        """Handle an event whose result no caller needs: `runner.failed` reports a failed core."""
        with contextlib.suppress(PenstockError):
            self.runner.handle(event)

    # Instructions of the core

    def _carry_out(self, instruction: Any) -> None:
        if not self._user.holds(instruction):
            self.carry_out(instruction)

    def carry_out(self, instruction: Any) -> None:
        match instruction:
            case SendData(link, data):
                self._dialling.write(link, data)
            case Say(link, message):
                self._dialling.write(link, encode_frame(self._encoded(message)))
            case Connect(attempt, place):
                self._dialling.dial(attempt, place)
            case Close(link):
                self._dialling.end(link)
            case _:
                self._user.carry_out(instruction)

    def _encoded(self, message: Any) -> bytes:
        if isinstance(message, Ping | Pong):
            return encode_session(message)
        return self._protocol.encode(message, self._message_size_max)

    # Events of links

    def link_opened(self, attempt: int, link: Link, peer: Peer) -> None:
        self._splitters[link.number] = self._user.new_splitter()
        self.runner.handle(Connected(attempt, link.number))

    def link_failed(self, attempt: int, error: PenstockError) -> None:
        code = error.peer_code if isinstance(error, RefusedError) else error.code
        is_hopeless = isinstance(error, NoSuchHostError | ConfigurationError)
        self.tell(ConnectFailed(attempt, str(error), code == AuthenticationError.code, is_hopeless))

    def link_received(self, link: Link, data: bytes) -> None:
        if (splitter := self._splitters.get(link.number)) is not None:
            self.take(link, lambda: splitter.feed(data))
            self._user.received(link)

    def take(self, link: Link, split: Callable[[], Iterable[tuple[bool, bytes]]]) -> None:
        """Pass pieces of a link to the core. Leave a server that violates the protocol."""
        try:
            for is_data, piece in split():
                if is_data:
                    self.runner.handle(self._user.data_event(link.number, piece))
                else:
                    self._take_message(link.number, piece)
            splitter = self._splitters.get(link.number)  # none: the link is lost
            if splitter is not None and splitter.failure:
                raise FrameError(splitter.failure)
        except PenstockError as error:
            self._counters.add("messages_skipped", cause=Cause.MESSAGE)
            self._log.warning(f"{self._server}_misbehaves", address=link.address, code=error.code, error=str(error))
            link.close(error)

    def _take_message(self, number: int, payload: bytes) -> None:
        message = self._protocol.decode(payload)
        if isinstance(message, ErrorMessage | Goodbye):
            raise ConnectionLostError(f"the {self._server} said goodbye")
        if isinstance(message, Hello | Proof):
            raise RemoteProtocolError(f"unexpected {type(message).__name__}")
        self.runner.handle(Received(number, message))

    def link_closed(self, number: int, why: str) -> None:
        self._splitters.pop(number, None)
        self.tell(LinkClosed(number, why))
