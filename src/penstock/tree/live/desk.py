"""Who may come to an agent, as what, and with which rights: by the handshake, the login and its token."""

import hmac
from collections.abc import Callable, Collection, Mapping

import msgspec

from penstock.base.errors import (
    NotEntitledError,
    PenstockError,
    RemoteProtocolError,
    TokenError,
)
from penstock.net.session import Peer
from penstock.security import Grant, Token
from penstock.security.gate import token_needed
from penstock.tree.core.control import AGENT_ROLES, Login, Refused, Role
from penstock.tree.core.events import Party

Verify = Callable[[str, int], Token]
"""Checks a token's text at a time of the wall clock; a PenstockError says why it is not good."""

REASON_SIZE_MAX = 256


def refusal_of(error: PenstockError) -> Refused:
    return Refused(error.code, str(error)[:REASON_SIZE_MAX])


class Rights(msgspec.Struct, frozen=True):
    """What a party's token says; without one everything is allowed, for ever."""

    grants: tuple[Grant, ...] | None = None
    subscription_id: str = ""
    expires_ns: int = 0
    subject: str = ""


class Desk:
    """`agents` says by the name of an agent whose token it shows. `verify` is None where nobody asks for tokens: then
    everybody may have everything. `own_token` lets in whoever is of this process."""

    def __init__(
        self, agents: Mapping[str, str], operators: Collection[str], verify: Verify | None, *, own_token: str
    ) -> None:
        self.set_names(agents, operators)
        self._verify = verify
        self._own_token = own_token
        self._parties: dict[int, tuple[Login, Rights]] = {}

    def set_names(self, agents: Mapping[str, str], operators: Collection[str]) -> None:
        """For whoever comes from now on."""
        self._agents = dict(agents)
        self._operators = frozenset(operators)

    def admit(self, link: int, login: Login, peer: Peer, now_ns: int) -> Party:
        """Whoever logs in on a link is this party; an error says why it is not let in."""
        if login.name != peer.node:
            raise RemoteProtocolError(f"{peer.node} logs in as {login.name}")
        rights = self.rights(login, now_ns)
        self._parties[link] = (login, rights)
        return Party(
            login.name,
            login.role,
            login.tree,
            login.place,
            login.home,
            login.publisher_id if login.role == "publisher" else 0,
            login.cls,
            login.term,
            rights.grants,
            rights.subject,
        )

    def renew(self, link: int, token: str, now_ns: int) -> Rights:
        """What a newer token says."""
        if link not in self._parties:
            raise TokenError("nobody has logged in on this link")
        login, _ = self._parties[link]
        rights = self.rights(msgspec.structs.replace(login, token=token), now_ns)
        self._parties[link] = (login, rights)
        return rights

    def leave(self, link: int) -> None:
        self._parties.pop(link, None)

    def is_publisher(self, link: int) -> bool:
        return link in self._parties and self._parties[link][0].role == "publisher"

    def operators(self, name: str) -> list[int]:
        """Links of the operators with this name, or with a token of its bearer."""
        return [
            link
            for link, (login, rights) in self._parties.items()
            if login.role == "operator" and name in (login.name, rights.subject)
        ]

    def bearers(self, subscription_id: str) -> list[tuple[int, str]]:
        """Links and names of those whose rights come from this subscription at the administration server."""
        return [
            (link, login.name)
            for link, (login, rights) in self._parties.items()
            if rights.subscription_id == subscription_id
        ]

    def expired(self, now_ns: int) -> list[int]:
        """Links of those whose rights' time is over."""
        return [link for link, (_, rights) in self._parties.items() if 0 < rights.expires_ns <= now_ns]

    def rights(self, login: Login, now_ns: int) -> Rights:
        if hmac.compare_digest(login.token.encode(), self._own_token.encode()):
            return Rights()
        if self._verify is None:
            self._check_name(login.role, login.name)
            return Rights()
        if not login.token:
            raise token_needed()
        token = self._verify(login.token, now_ns)
        if login.role in AGENT_ROLES or login.role == "operator":
            self._check_subject(login.role, login.name, token.subject)
            return Rights(None, token.subscription_id, token.expires_ns, token.subject)
        return Rights(token.grants, token.subscription_id, token.expires_ns, token.subject)

    def _check_name(self, role: Role, name: str) -> None:
        """Without tokens: whoever may do more than have messages is named, if anybody is."""
        if role in AGENT_ROLES and self._agents and name not in self._agents:
            raise _not_listed(name, "agents")
        if role == "operator" and self._operators and name not in self._operators:
            raise _not_listed(name, "operators")

    def _check_subject(self, role: Role, name: str, subject: str) -> None:
        """With tokens: an operator is whose token it is, and an agent shows the token that is its own."""
        if role == "operator":
            if subject not in self._operators:
                raise _not_listed(subject, "operators")
            return
        if name not in self._agents:
            raise _not_listed(name, "agents")
        if self._agents[name] != subject:
            raise NotEntitledError(
                f"the agent {name} shows a token of {subject}, and has that of {self._agents[name]} here",
                hint=f'agents = {{ {name} = "{subject}" }} would let it',
            )


def _not_listed(name: str, what: str) -> NotEntitledError:
    return NotEntitledError(f"{name} is not among the {what} here", hint=f"the agent's `{what}` names them")
