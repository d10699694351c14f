"""Access control of an agent: who may connect, in which role, and with which rights."""

import hmac
from collections.abc import Collection, Mapping

from penstock.base.errors import NotEntitledError
from penstock.security.core.access_control import LoginAccess, Rights, Verify
from penstock.security.core.refusal import Refusals
from penstock.tree.core.control import AGENT_ROLES, Login, Refused, Role
from penstock.tree.core.events import Party

REFUSALS = Refusals(Refused)


class PartyAccess(LoginAccess[Login, Rights]):
    """`agents` maps the name of an agent to the subject of its token. `own_token` admits parties of this process."""

    def __init__(
        self, agents: Mapping[str, str], operators: Collection[str], verify: Verify | None, *, own_token: str
    ) -> None:
        super().__init__(verify)
        self.set_names(agents, operators)
        self._own_token = own_token

    def set_names(self, agents: Mapping[str, str], operators: Collection[str]) -> None:
        """Applies to later logins."""
        self._agents = dict(agents)
        self._operators = frozenset(operators)

    def is_publisher(self, link: int) -> bool:
        return link in self.parties and self.parties[link].login.role == "publisher"

    def operators(self, name: str) -> list[int]:
        """The links of operators with this name, or with a token of this subject."""
        return [
            link
            for link, party in self.parties.items()
            if party.login.role == "operator" and name in (party.name, party.rights.subject)
        ]

    def rights_of_login(self, login: Login, token: str, now_ns: int) -> Rights:
        if hmac.compare_digest(token.encode(), self._own_token.encode()):
            return Rights()
        verified = self.verify(token, now_ns)
        if verified is None:
            self._check_name(login.role, login.name)
            return Rights()
        rights = Rights.of_token(verified)
        if login.role in AGENT_ROLES or login.role == "operator":
            self._check_subject(login.role, login.name, rights.subject)
            return Rights(rights.subject, None, rights.subscription_id, rights.expires_ns)
        return rights

    def _check_name(self, role: Role, name: str) -> None:
        """Without tokens: agents and operators must be listed, if a list is configured."""
        if role in AGENT_ROLES and self._agents and name not in self._agents:
            raise _not_listed(name, "agents")
        if role == "operator" and self._operators and name not in self._operators:
            raise _not_listed(name, "operators")

    def _check_subject(self, role: Role, name: str, subject: str) -> None:
        """With tokens: an operator is the subject of its token, and an agent shows the token that is its own."""
        if role == "operator":
            if subject not in self._operators:
                raise _not_listed(subject, "operators")
            return
        if name not in self._agents:
            raise _not_listed(name, "agents")
        if self._agents[name] != subject:
            raise NotEntitledError(
                f"agent {name} presents a token of {subject}, but is assigned to {self._agents[name]}",
                hint=f'agents = {{ {name} = "{subject}" }} would permit it',
            )


def _not_listed(name: str, what: str) -> NotEntitledError:
    return NotEntitledError(f"{name} is not among the {what} here", hint=f"the agent's `{what}` names them")


def party_of(login: Login, rights: Rights) -> Party:
    """The party, in the core's terms."""
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
