"""The links that the core of an application asks for: made, kept by their numbers, and ended.

The core counts its attempts; a link has a number of its own. `user` is told in the loop's thread what becomes of each.
"""

import asyncio
from typing import Any, Protocol

from penstock.base.counters import Counters
from penstock.base.errors import PenstockError
from penstock.base.log import logger
from penstock.net.config import ControlConfig
from penstock.net.control import ControlProtocol
from penstock.net.guard import Guard
from penstock.net.link import Link, connect_link, end_links
from penstock.net.place import parse_place
from penstock.net.session import Peer

log = logger("net.dialling")


class DiallingUser(Protocol):
    def link_opened(self, attempt: int, link: Link, peer: Peer) -> None: ...

    def link_failed(self, attempt: int, error: PenstockError) -> None: ...

    def link_received(self, link: Link, data: bytes) -> None: ...

    def link_closed(self, number: int, why: str) -> None: ...


class Dialling:
    """`links` are those whose handshake is done."""

    def __init__(
        self,
        protocol: ControlProtocol[Any],
        user: DiallingUser,
        *,
        node: str,
        guard: Guard,
        config: ControlConfig,
        counters: Counters,
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
        self._unreachable: dict[str, str] = {}  # by place: why, as the log has it
        self._last_number = 0

    def dial(self, attempt: int, place: str) -> None:
        task = asyncio.get_running_loop().create_task(self._dial(attempt, place))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def write(self, number: int, data: bytes) -> None:
        """To a link that may be gone."""
        if (link := self.links.get(number)) is not None:
            link.write(data)

    def end(self, number: int) -> None:
        if (link := self.links.get(number)) is not None:
            link.close()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await end_links(set(self._made), self._config.linger_ms)

    async def _dial(self, attempt: int, place: str) -> None:
        self._last_number += 1
        number = self._last_number
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

    # What links tell

    def opened(self, link: Link, peer: Peer) -> None:
        self.links[link.number] = link
        self._user.link_opened(self._attempts.pop(link.number), link, peer)

    def received(self, link: Link, data: bytes) -> None:
        self._user.link_received(link, data)

    def writable(self, link: Link) -> None:
        """What applications write is bounded by windows of their own."""

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
