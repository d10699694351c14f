"""Access control of a server, without I/O: the admitted parties, their rights, and the expiry of these rights.

A party is admitted with the rights of its token, may renew the token while it is connected, and loses its rights when
the token expires or its subscription at the administration server is revoked. The subsystem decides what a right
allows: consumers of a node (plant/core/access.py), applications of a filter module (filter/core/access.py), parties of
a distribution agent (tree/live/access.py), clients of a message router (assured/live/access.py).
"""

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, Self, TypeAlias, TypeVar

import msgspec

from penstock.base.errors import LimitError, RemoteProtocolError, TokenError
from penstock.security.core.narrowing import denials, entitlement_text, narrowed
from penstock.security.core.token import Grant, Token, token_needed

Verify: TypeAlias = Callable[[str, int], Token]
"""Verifies the text of a token at a time of the wall clock. Raises PenstockError if the token is not valid."""

_EVERYTHING = (Grant(">", "receive"),)


class Rights(msgspec.Struct, frozen=True):
    """What a party's token grants. Without a token everything is granted, and never expires."""

    subject: str = ""
    """The client that the token was issued to; without a token, the name that the party gives."""

    grants: tuple[Grant, ...] | None = None
    """None: all topics are granted."""

    subscription_id: str = ""
    """Id of the subscription at the administration server, which may revoke it."""

    expires_ns: int = 0
    """By the wall clock; 0: never."""

    @classmethod
    def of_token(cls, token: Token) -> Self:
        return cls(token.subject, token.grants, token.subscription_id, token.expires_ns)

    @property
    def is_revocable(self) -> bool:
        """True if the rights can be revoked, or expire."""
        return bool(self.subscription_id or self.expires_ns)

    def has_expired(self, now_ns: int) -> bool:
        return 0 < self.expires_ns <= now_ns

    @property
    def text(self) -> str:
        """A text that is equal for parties with equal receive grants."""
        return "" if self.grants is None else entitlement_text(self.grants)

    def patterns(self) -> list[str]:
        """The patterns of topics that may be received live, including denials."""
        live = (each for each in self._granted if each.action == "receive")
        return [each.pattern for each in live if each.delay_s == 0 or each.pattern.startswith("!")]

    def narrow(self, topics: Iterable[str], patterns_max: int) -> list[str]:
        """Return the patterns to subscribe to in place of `topics`: the granted part of each, and all denials. Raise
        NotEntitledError if no part of a topic is granted."""
        found: dict[str, None] = {}
        for topic in topics:
            found |= dict.fromkeys(narrowed(self._granted, topic))
            if len(found) > patterns_max:
                raise LimitError(f"the granted part of these topics has more than {patterns_max} patterns")
        return [*found, *denials(self._granted)]

    @property
    def _granted(self) -> tuple[Grant, ...]:
        return _EVERYTHING if self.grants is None else self.grants


class AdmittedParty(Protocol):
    """A party that a server has admitted."""

    @property
    def number(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def rights(self) -> Rights: ...


P = TypeVar("P", bound=AdmittedParty)


class AccessControl(Generic[P]):
    """The admitted parties, by number. `verify` checks their tokens; without it the server requires no token, and
    every party has all rights."""

    def __init__(self, verify: Verify | None = None) -> None:
        self.parties: dict[int, P] = {}
        self._verify = verify

    def verify(self, text: str, now_ns: int) -> Token | None:
        """Verify and return a token; return None if the server requires none."""
        if self._verify is None:
            return None
        if not text:
            raise token_needed()
        return self._verify(text, now_ns)

    def add(self, party: P) -> None:
        self.parties[party.number] = party

    def leave(self, number: int) -> None:
        self.parties.pop(number, None)

    def is_taken(self, name: str) -> bool:
        """True if a party of this name is admitted."""
        return any(each.name == name for each in self.parties.values())

    def bearers(self, subscription_id: str) -> list[P]:
        """The parties whose rights come from this subscription at the administration server."""
        return [each for each in self.parties.values() if each.rights.subscription_id == subscription_id]

    def expired(self, now_ns: int) -> list[P]:
        """The parties whose rights have expired."""
        return [each for each in self.parties.values() if each.rights.has_expired(now_ns)]


def check_same_subject(before: Rights, after: Rights) -> None:
    """Raise TokenError unless the new token belongs to the client that was admitted."""
    if after.subject != before.subject:
        raise TokenError("the new token belongs to another client")


class LoginMessage(Protocol):
    """The first message of a party on a link."""

    @property
    def name(self) -> str: ...

    @property
    def token(self) -> str: ...


class NamedPeer(Protocol):
    """The other side of a handshake (net.session.Peer)."""

    @property
    def node(self) -> str: ...


L = TypeVar("L", bound=LoginMessage)
R = TypeVar("R", bound=Rights)


class LoggedIn(Generic[L, R]):
    """A party that has logged in on a link; `number` is the link's."""

    def __init__(self, number: int, login: L, rights: R) -> None:
        self.number = number
        self.login = login
        self.rights = rights

    @property
    def name(self) -> str:
        return self.login.name


class LoginAccess(AccessControl[LoggedIn[L, R]]):
    """Access by logins on links. A subclass derives the rights of a login: rights_of_login()."""

    def log_in(self, number: int, login: L, peer: NamedPeer, now_ns: int) -> R:
        """Admit the party that logs in on a link. Raise an error if it is refused."""
        if login.name != peer.node:
            raise RemoteProtocolError(f"{peer.node} logs in as {login.name}")
        rights = self.rights_of_login(login, login.token, now_ns)
        self.add(LoggedIn(number, login, rights))
        return rights

    def renew(self, number: int, token: str, now_ns: int) -> R:
        """Replace the rights of a login by those of a newer token, and return them."""
        if (party := self.parties.get(number)) is None:
            raise TokenError("nobody has logged in on this link")
        party.rights = self.rights_of_login(party.login, token, now_ns)
        return party.rights

    def rights_of_login(self, login: L, token: str, now_ns: int) -> R:
        """Return the rights of this login with this token. Raise an error if it has none."""
        raise NotImplementedError
