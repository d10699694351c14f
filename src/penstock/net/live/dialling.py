"""Outgoing links: connected on request of a core, numbered, and closed.

The core numbers its attempts; each link has a number too. `user` is notified of attempts and links in the thread of
the loop. The core decides on the back-off between attempts. For a connection without a core, Redialling repeats
attempts.
"""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Protocol, Self

from penstock.base.backoff import Backoff
from penstock.base.counters import Counters
from penstock.base.errors import PenstockError
from penstock.base.log import logger
from penstock.net.config import ControlConfig
from penstock.net.core.control import ControlProtocol
from penstock.net.core.control_session import Peer
from penstock.net.guard import Guard
from penstock.net.live.link import Link, connect_link, end_links
from penstock.net.place import parse_place

log = logger("net.dialling")


class DiallingUser(Protocol):
    def link_opened(self, attempt: int, link: Link, peer: Peer) -> None: ...

    def link_failed(self, attempt: int, error: PenstockError) -> None: ...

    def link_received(self, link: Link, data: bytes) -> None: ...

    def link_closed(self, number: int, why: str) -> None: ...


class Dialling:
    """`links` are the links with a complete handshake. `next_number` returns the number of a new link, if the user
    also has other links; `on_writable` is called when a link accepts more bytes."""

    def __init__(
        self,
        protocol: ControlProtocol[Any],
        user: DiallingUser,
        *,
        node: str,
        guard: Guard,
        config: ControlConfig,
        counters: Counters,
        next_number: Callable[[], int] | None = None,
        on_writable: Callable[[Link], None] | None = None,
    ) -> None:
        self.links: dict[int, Link] = {}
        self._protocol = protocol
        self._user = user
        self._node = node
        self._guard = guard
        self._config = config
        self._counters = counters
        self._made: set[Link] = set()
        self._attempts: dict[int, int] = {}  # by link
        self._tasks: set[asyncio.Task[None]] = set()
        self._unreachable: dict[str, str] = {}  # by address: the reason that was logged last
        self._last_number = 0
        self._next_number = next_number or self._count
        self._on_writable = on_writable

    def dial(self, attempt: int, place: str) -> None:
        task = asyncio.get_running_loop().create_task(self._dial(attempt, place))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def write(self, number: int, data: bytes) -> None:
        """Write to a link if it still exists."""
        if (link := self.links.get(number)) is not None:
            link.write(data)

    def end(self, number: int) -> None:
        if (link := self.links.get(number)) is not None:
            link.close()

    async def stop(self) -> None:
        """Cancel attempts in progress; links stay open."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        await self.stop()
        await end_links(self.made, self._config.linger_ms)

    @property
    def made(self) -> set[Link]:
        """The connected links, including those with an incomplete handshake."""
        return set(self._made)

    def _count(self) -> int:
        self._last_number += 1
        return self._last_number

    async def _dial(self, attempt: int, place: str) -> None:
        number = self._next_number()
        self._attempts[number] = attempt
        try:
            host, port = parse_place(place)
            link = await connect_link(
                self._protocol,
                host,
                port,
                self,
                node=self._node,
                secret=self._guard.secret,
                tls=self._guard.tls_for(host),
                config=self._config,
                counters=self._counters,
                number=number,
            )
        except PenstockError as error:
            self._attempts.pop(number, None)
            is_news = self._unreachable.get(place) != str(error)
            self._unreachable[place] = str(error)
            (log.info if is_news else log.debug)("unreachable", place=place, error=str(error))
            self._user.link_failed(attempt, error)
        else:
            self._unreachable.pop(place, None)
            if not link.is_over:
                self._made.add(link)

    # Events of links

    def opened(self, link: Link, peer: Peer) -> None:
        self.links[link.number] = link
        self._user.link_opened(self._attempts.pop(link.number), link, peer)

    def received(self, link: Link, data: bytes) -> None:
        self._user.link_received(link, data)

    def writable(self, link: Link) -> None:
        """Without `on_writable`, the user bounds its writes with its own windows."""
        if self._on_writable is not None:
            self._on_writable(link)

    def lost(self, link: Link, error: PenstockError) -> None:
        self._made.discard(link)
        self.links.pop(link.number, None)
        attempt = self._attempts.pop(link.number, None)
        if attempt is not None:
            log.info("refused", address=link.address, code=error.code, error=str(error))
            self._user.link_failed(attempt, error)
        else:
            say = log.debug if link.is_closing else log.info
            say("link_lost", address=link.address, code=error.code, error=str(error))
            self._user.link_closed(link.number, str(error))


class Redialling:
    """Attempts to connect, one after the other, with pauses:

        async for attempt in Redialling(backoff, report):
            with attempt:
                async with await connect_control(...) as connection:
                    attempt.succeeded()
                    ...

    A PenstockError ends the attempt. `report` gets the error, and True if it is not the error of the attempt before; an
    error that `report` raises ends the attempts.
    """

    def __init__(self, backoff: Backoff, report: Callable[[PenstockError, bool], None]) -> None:
        self._backoff = backoff
        self._report = report
        self._known = ""
        self._failure: PenstockError | None = None
        self._is_first = True

    def succeeded(self) -> None:
        """The connection is in use: reset the back-off."""
        self._backoff.succeeded()
        self._known = ""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Self:
        if not self._is_first:
            await asyncio.sleep(self._backoff.next_seconds(self._failure))
        self._is_first = False
        self._failure = None
        return self

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        if isinstance(error, PenstockError):
            known, self._known = self._known, error.code
            self._failure = error
            self._report(error, error.code != known)
            return True
        self._known = ""
        return False


async def redial(
    connect: Callable[[], Awaitable[bool]], backoff: Backoff, report: Callable[[PenstockError, bool], None]
) -> None:
    """Connect repeatedly until the task is cancelled. `connect` returns when its connection has ended: True if the
    connection was in use. `report` is that of Redialling."""
    async for attempt in Redialling(backoff, report):
        with attempt:
            if await connect():
                attempt.succeeded()
