"""The server side of links (net/live/link.py): a party logs in with its first message, and has a number from then on.

Agents and message routers share this driver. Their links carry data frames besides control messages, so a subclass
parses the received bytes (received()). This module has the rest: the listener, the time limit of the login, admission,
numbers and refusals.
"""

import time
from typing import Any, Generic, TypeVar

from penstock.base.errors import PenstockError
from penstock.net.core.control import ControlProtocol
from penstock.net.core.control_session import Peer
from penstock.net.core.framing import encode_frame
from penstock.net.live.admission import Admission
from penstock.net.live.link import Link, LinkServer
from penstock.runtime.service_settings import ServiceSettings
from penstock.security.core.access_control import L, LoginAccess, R
from penstock.security.core.refusal import RefusalError, Refusals

LOGIN_SIZE_MAX = 131_072
LOGIN_SECONDS = 5.0
"""Time limit for the login, counted from the end of the handshake."""

M = TypeVar("M")


class LinkService(Generic[M, L, R]):
    """M are the messages of the protocol, L its login message, R the rights of a party. `links` has the links whose
    party has logged in, by number. `party` is the kind of party in logs."""

    def __init__(
        self,
        protocol: ControlProtocol[M],
        access: LoginAccess[L, R],
        refusals: Refusals[Any],
        settings: ServiceSettings,
        *,
        party: str,
    ) -> None:
        self.links: dict[int, Link] = {}
        self.counters = settings.counters
        self.access = access
        self.limits = settings.limits
        self._protocol = protocol
        self._admission: Admission[Link, Any] = Admission(
            refusals,
            self._end,
            lambda what: RefusalError("protocol", what),
            party=party,
            counter="requests_refused",
            counters=settings.counters,
            log=settings.log,
        )
        self._peers: dict[Link, Peer] = {}  # links whose party has not logged in
        self._last_number = 0
        self.server = LinkServer(
            protocol,
            self,
            node=settings.node,
            host=settings.control.host,
            port=settings.control.port,
            secret=settings.secret,
            tls=settings.tls,
            config=settings.limits,
            counters=settings.counters,
        )

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def callers(self) -> set[Link]:
        """The links whose party has not logged in."""
        return self._admission.expected

    def next_number(self) -> int:
        """Return the number of a new link."""
        self._last_number += 1
        return self._last_number

    # Events of links

    def opened(self, link: Link, peer: Peer) -> None:
        self._peers[link] = peer
        self._admission.expect(link, LOGIN_SECONDS, address=link.address)

    def received(self, link: Link, data: bytes) -> None:
        raise NotImplementedError

    def writable(self, link: Link) -> None:
        raise NotImplementedError

    def lost(self, link: Link, error: PenstockError) -> None:
        raise NotImplementedError

    # To be implemented by a subclass

    def log_in(self, link: Link, login: L) -> R:
        """Admit the party of a link and number the link. Raise an error if the party is refused."""
        assert link in self._peers, "a link has one login"
        self._admission.arrived(link)
        number = self.next_number()
        rights = self.access.log_in(number, login, self._peers.pop(link), time.time_ns())
        link.number = number
        self.links[number] = link
        return rights

    def forget(self, link: Link) -> bool:
        """Remove a lost link. Return True if its party had logged in."""
        self._admission.arrived(link)
        self._peers.pop(link, None)
        if self.links.pop(link.number, None) is None:
            return False
        self.access.leave(link.number)
        return True

    def write_message(self, link: Link, message: M) -> None:
        link.write(self.frame(message))

    def frame(self, message: M) -> bytes:
        return encode_frame(self._protocol.encode(message, self.limits.message_size_max))

    def refuse_error(self, link: Link, error: PenstockError) -> None:
        self._admission.refuse(link, error, address=link.address)

    def refuse_link(self, link: Link, refusal: Any) -> None:
        """End a link; the refusal is its last message."""
        self.note_refusal(link, refusal)
        self._admission.end(link, refusal)

    def note_refusal(self, link: Link, refusal: Any) -> None:
        self._admission.note(refusal.code, refusal.reason, address=link.address)

    def _end(self, link: Link, last: M) -> None:
        self.write_message(link, last)
        link.close()
