"""The server side of links (net/live/link.py): a party logs in with its first message, and has a number from then on.

One driver for agents and message routers. Their links carry data frames besides control messages, so a subclass takes
the bytes of a link apart itself (received()); here is what comes before that: the listener, the time limit of the
login, admission, numbers, refusals.
"""

import asyncio
import ssl
import time
from typing import Any, Generic, TypeVar

from penstock.base.counters import Counters
from penstock.base.errors import PenstockError
from penstock.base.log import Logger
from penstock.net.config import ControlConfig
from penstock.net.core.control import ControlProtocol
from penstock.net.core.framing import encode_frame
from penstock.net.core.session import Peer
from penstock.net.live.link import Link, LinkServer
from penstock.net.secret import Secret
from penstock.security.core.access import ControlAccess
from penstock.security.core.access_control import L, LoginAccess, R
from penstock.security.core.refusal import RefusalError, Refusals

LOGIN_SIZE_MAX = 131_072
LOGIN_SECONDS = 5.0
"""For the login, from the end of the handshake."""

M = TypeVar("M")


class _Caller:
    """A peer that has connected and not logged in yet."""

    def __init__(self, peer: Peer, timer: asyncio.TimerHandle) -> None:
        self.peer = peer
        self.timer = timer


class LinkService(Generic[M, L, R]):
    """M are the messages of the protocol, L its login, R the rights of a party. `links` are those whose party has
    logged in, by number. `party` is the name of a party in logs."""

    def __init__(
        self,
        protocol: ControlProtocol[M],
        access: LoginAccess[L, R],
        refusals: Refusals[Any],
        *,
        node: str,
        control: ControlAccess,
        secret: Secret | None,
        tls: ssl.SSLContext | None,
        limits: ControlConfig,
        counters: Counters,
        log: Logger,
        party: str,
    ) -> None:
        self.links: dict[int, Link] = {}
        self.counters = counters
        self.access = access
        self.limits = limits
        self._protocol = protocol
        self._refusals = refusals
        self._log = log
        self._party = party
        self._callers: dict[Link, _Caller] = {}
        self._last_number = 0
        self.server = LinkServer(
            protocol,
            self,
            node=node,
            host=control.host,
            port=control.port,
            secret=secret,
            tls=tls,
            config=limits,
            counters=counters,
        )

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def callers(self) -> set[Link]:
        """The links whose party has not logged in."""
        return set(self._callers)

    def next_number(self) -> int:
        """For a new link."""
        self._last_number += 1
        return self._last_number

    # What links tell

    def opened(self, link: Link, peer: Peer) -> None:
        timer = asyncio.get_running_loop().call_later(LOGIN_SECONDS, self._time_out, link)
        self._callers[link] = _Caller(peer, timer)

    def received(self, link: Link, data: bytes) -> None:
        raise NotImplementedError

    def writable(self, link: Link) -> None:
        raise NotImplementedError

    def lost(self, link: Link, error: PenstockError) -> None:
        raise NotImplementedError

    # For a subclass

    def log_in(self, link: Link, login: L) -> R:
        """Admit the party of a link, which has a number from now on. An error says why the party is refused."""
        caller = self._take_caller(link)
        assert caller is not None, "a link has one login"
        number = self.next_number()
        rights = self.access.log_in(number, login, caller.peer, time.time_ns())
        link.number = number
        self.links[number] = link
        return rights

    def forget(self, link: Link) -> bool:
        """A link is lost. True if its party had logged in."""
        self._take_caller(link)
        if self.links.pop(link.number, None) is None:
            return False
        self.access.leave(link.number)
        return True

    def write_message(self, link: Link, message: M) -> None:
        link.write(self.frame(message))

    def frame(self, message: M) -> bytes:
        return encode_frame(self._protocol.encode(message, self.limits.message_size_max))

    def refuse_error(self, link: Link, error: PenstockError) -> None:
        self.refuse_link(link, self._refusals.of(error))

    def refuse_link(self, link: Link, refusal: Any) -> None:
        """End a link; the refusal is its last message."""
        self._take_caller(link)
        self.note_refusal(link, refusal)
        self.write_message(link, refusal)
        link.close()

    def note_refusal(self, link: Link, refusal: Any) -> None:
        self._log.warning(f"{self._party}_refused", address=link.address, code=refusal.code, reason=refusal.reason)
        self.counters.add("requests_refused", cause=refusal.code)

    def _take_caller(self, link: Link) -> _Caller | None:
        caller = self._callers.pop(link, None)
        if caller is not None:
            caller.timer.cancel()
        return caller

    def _time_out(self, link: Link) -> None:
        self.refuse_error(link, RefusalError("protocol", f"there was no login within {LOGIN_SECONDS:g} s"))
