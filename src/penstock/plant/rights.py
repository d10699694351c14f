"""What a consumer may have, and who says so (MUX-2). It does no I/O."""

from collections.abc import Iterable

import msgspec

from penstock.base.errors import LimitError
from penstock.engine.control import TOPICS_MAX, Vouched
from penstock.security import Grant, Token
from penstock.security.narrowing import denials, entitlement_text, narrowed


class Rights(msgspec.Struct, frozen=True):
    """What one consumer was granted, by whomever."""

    grants: tuple[Grant, ...]
    subject: str = ""
    subscription_id: str = ""
    """At the administration server, which may revoke it."""

    expires_ns: int = 0
    """By the wall clock; 0: never."""

    @staticmethod
    def of_token(token: Token) -> "Rights":
        return Rights(token.grants, token.subject, token.subscription_id, token.expires_ns)

    @staticmethod
    def vouched(told: Vouched) -> "Rights":
        """As a node above says."""
        grants = tuple(Grant(pattern, "receive") for pattern in told.grants)
        return Rights(grants, told.subject, told.subscription_id, told.expires_ns)

    def patterns(self) -> list[str]:
        """What may be received live, in the protocol's words."""
        live = (each for each in self.grants if each.action == "receive")
        return [each.pattern for each in live if each.delay_s == 0 or each.pattern.startswith("!")]

    def narrow(self, topics: Iterable[str]) -> list[str]:
        """The patterns to subscribe to in place of these: what is granted of each, less what is denied.
        NotEntitledError when of one of them nothing is."""
        found: dict[str, None] = {}
        for topic in topics:
            found |= dict.fromkeys(narrowed(self.grants, topic))
            if len(found) > TOPICS_MAX:
                raise LimitError(f"what is granted of these topics is more than {TOPICS_MAX} patterns")
        return [*found, *denials(self.grants)]

    @property
    def text(self) -> str:
        """Equal for those who may have the same."""
        return entitlement_text(self.grants)


EVERYTHING = Rights((Grant(">", "receive"),))
"""Of a node that asks for no tokens."""
