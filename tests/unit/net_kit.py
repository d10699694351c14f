"""Helpers that drive sessions by hand and run coroutines with a time limit."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

import msgspec
import uvloop

from penstock.base.counters import Counters
from penstock.net.config import ControlConfig
from penstock.net.core.control import NONCE_SIZE, ControlProtocol, Version
from penstock.net.core.control_session import ControlSession, Side
from penstock.net.core.events import BytesReceived, Connected, Disconnect, SendBytes
from penstock.net.secret import Secret

MS = 1_000_000
SECRET = Secret(b"sixteen bytes or more")

T = TypeVar("T")


class Say(msgspec.Struct, tag="say", frozen=True):
    text: str


class Number(msgspec.Struct, tag="number", frozen=True):
    value: int
    note: str = ""


class Later(msgspec.Struct, tag="later", frozen=True):
    """A message that was added in minor version 3."""

    text: str


ECHO = ControlProtocol("echo", Version(1, 2), Say | Number)
NEWER = ControlProtocol("echo", Version(1, 3), Say | Number | Later)


class HandClock:
    """A clock that moves only when the test sets it."""

    def __init__(self, wall_ns: int = 1_000) -> None:
        self.wall = wall_ns

    def now_ns(self) -> int:
        return 0

    def wall_ns(self) -> int:
        return self.wall


def session(side: Side, protocol: ControlProtocol[Any] = ECHO, **options: Any) -> ControlSession[Any]:
    given: dict[str, Any] = {
        "node": f"the-{side}",
        "nonce": (b"c" if side == "client" else b"s") * NONCE_SIZE,
        "secret": None,
        "clock": HandClock(),
        "config": ControlConfig(),
        "counters": Counters("control"),
    }
    return ControlSession(protocol, side, **{**given, **options})


def of(kind: type[T], answers: Iterable[Any]) -> list[T]:
    return [answer for answer in answers if isinstance(answer, kind)]


def sent(answers: Iterable[Any]) -> bytes:
    return b"".join(answer.data for answer in of(SendBytes, answers))


def ended(answers: Iterable[Any]) -> Disconnect:
    (end,) = of(Disconnect, answers)
    return end


def converse(client: Any, server: Any, now_ns: int = 0) -> tuple[list[Any], list[Any]]:
    """Connect two sessions and carry bytes until neither sends more; returns the events of each."""
    client_said, server_said = client.handle(Connected(), now_ns), server.handle(Connected(), now_ns)
    exchange(client, server, client_said, server_said, now_ns)
    return client_said, server_said


def exchange(client: Any, server: Any, client_said: list[Any], server_said: list[Any], now_ns: int = 0) -> None:
    """Carry bytes both ways until both sessions are silent; appends their events to the lists."""
    to_server, to_client = sent(client_said), sent(server_said)
    while to_server or to_client:
        from_server = server.handle(BytesReceived(to_server), now_ns) if to_server else []
        from_client = client.handle(BytesReceived(to_client), now_ns) if to_client else []
        server_said += from_server
        client_said += from_client
        to_server, to_client = sent(from_client), sent(from_server)


def run(coroutine: Coroutine[Any, Any, T], *, seconds: float = 120) -> T:
    """Run a coroutine on uvloop, as in production."""

    async def bounded() -> T:
        async with asyncio.timeout(seconds):
            return await coroutine

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(bounded())


async def until(condition: Callable[[], Any]) -> None:
    """Wait for a condition that other tasks make true; run() limits the time."""
    while not condition():
        await asyncio.sleep(0.002)


async def echo(connection: Any) -> None:
    """A service that echoes every message."""
    async for message in connection:
        await connection.send(message)


Serve = Callable[[Any], Awaitable[None]]
