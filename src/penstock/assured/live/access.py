"""Access control of a message router: who may connect, in which role, and with which rights."""

from collections.abc import Collection

from penstock.assured.wire.control import Login, Refused
from penstock.base.errors import NotEntitledError
from penstock.security.core.access_control import LoginAccess, Rights, Verify
from penstock.security.core.refusal import Refusals

REFUSALS = Refusals(Refused)


class ClientRights(Rights, frozen=True):
    """The rights of a client of a router."""

    is_operator: bool = False
    may_define: bool = False
    """True if the client may create and delete endpoints."""


class ClientAccess(LoginAccess[Login, ClientRights]):
    """`operators` are the names that may give orders."""

    def __init__(self, operators: Collection[str], verify: Verify | None) -> None:
        super().__init__(verify)
        self._operators = frozenset(operators)

    def rights_of(self, link: int) -> ClientRights:
        return self.parties[link].rights if link in self.parties else ClientRights()

    def name_of(self, link: int) -> str:
        return self.parties[link].name if link in self.parties else ""

    def rights_of_login(self, login: Login, token: str, now_ns: int) -> ClientRights:
        wants_orders = login.role != "client"
        verified = self.verify(token, now_ns)
        if verified is None:
            if wants_orders and self._operators and login.name not in self._operators:
                raise _not_listed(login.name)
            may_define = wants_orders or not self._operators
            return ClientRights(login.name, is_operator=wants_orders, may_define=may_define)
        if wants_orders and verified.subject not in self._operators:
            raise _not_listed(verified.subject)
        return ClientRights(
            verified.subject,
            None if wants_orders else verified.grants,
            verified.subscription_id,
            verified.expires_ns,
            is_operator=wants_orders,
            may_define=wants_orders,
        )


def _not_listed(name: str) -> NotEntitledError:
    return NotEntitledError(f"{name} is not among the operators here", hint="the router's list `operators` names them")
