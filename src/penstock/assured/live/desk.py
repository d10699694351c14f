"""Who may come to a message router, as what, and with which rights: by the handshake, the login and its token."""

from collections.abc import Callable, Collection

import msgspec

from penstock.assured.wire.control import Login, Refused
from penstock.base.errors import NotEntitledError, PenstockError, RemoteProtocolError, TokenError
from penstock.net.session import Peer
from penstock.security import Grant, Token
from penstock.security.gate import token_needed

Verify = Callable[[str, int], Token]
"""Checks a token's text at a time of the wall clock; a PenstockError says why it is not good."""

REASON_SIZE_MAX = 256


def refusal_of(error: PenstockError) -> Refused:
    return Refused(error.code, str(error)[:REASON_SIZE_MAX])


class Rights(msgspec.Struct, frozen=True):
    """What a client's token says; without one everything is allowed, for ever."""

    subject: str
    """Who it is; without a token, who it says it is."""
    grants: tuple[Grant, ...] | None = None
    subscription_id: str = ""
    expires_ns: int = 0
    is_operator: bool = False
    may_define: bool = False


class Desk:
    """`verify` is None where nobody asks for tokens: then everybody may have everything."""

    def __init__(self, operators: Collection[str], verify: Verify | None) -> None:
        self._operators = frozenset(operators)
        self._verify = verify
        self._clients: dict[int, tuple[Login, Rights]] = {}

    def admit(self, link: int, login: Login, peer: Peer, now_ns: int) -> Rights:
        """Whoever logs in on a link is this client; an error says why it is not let in."""
        if login.name != peer.node:
            raise RemoteProtocolError(f"{peer.node} logs in as {login.name}")
        rights = self._rights(login, now_ns)
        self._clients[link] = (login, rights)
        return rights

    def renew(self, link: int, token: str, now_ns: int) -> Rights:
        """What a newer token says."""
        if link not in self._clients:
            raise TokenError("nobody has logged in on this link")
        login, _ = self._clients[link]
        rights = self._rights(msgspec.structs.replace(login, token=token), now_ns)
        self._clients[link] = (login, rights)
        return rights

    def leave(self, link: int) -> None:
        self._clients.pop(link, None)

    def bearers(self, subscription_id: str) -> list[int]:
        """Links of those whose rights come from this subscription at the administration server."""
        return [link for link, (_, rights) in self._clients.items() if rights.subscription_id == subscription_id]

    def expired(self, now_ns: int) -> list[int]:
        """Links of those whose rights' time is over."""
        return [link for link, (_, rights) in self._clients.items() if 0 < rights.expires_ns <= now_ns]

    def rights_of(self, link: int) -> Rights:
        return self._clients[link][1] if link in self._clients else Rights("")

    def name_of(self, link: int) -> str:
        return self._clients[link][0].name if link in self._clients else ""

    def _rights(self, login: Login, now_ns: int) -> Rights:
        wants_orders = login.role != "client"
        if self._verify is None:
            if wants_orders and self._operators and login.name not in self._operators:
                raise self._not_listed(login.name)
            return Rights(login.name, is_operator=wants_orders, may_define=wants_orders or not self._operators)
        if not login.token:
            raise token_needed()
        token = self._verify(login.token, now_ns)
        if wants_orders and token.subject not in self._operators:
            raise self._not_listed(token.subject)
        grants = None if wants_orders else token.grants
        return Rights(token.subject, grants, token.subscription_id, token.expires_ns, wants_orders, wants_orders)

    @staticmethod
    def _not_listed(name: str) -> NotEntitledError:
        return NotEntitledError(
            f"{name} is not among the operators here", hint="the router's list `operators` names them"
        )
