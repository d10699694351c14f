"""Tokens that were issued before a subscription was modified: they are good until they expire, so the server must not
forget what they give."""

from penstock.admin.core.client_grants import has_lost, is_denial
from penstock.admin.core.records import Issued
from penstock.base.errors import LimitError
from penstock.security.core.token import Grant

ISSUED_MAX = 16
"""Lists of grants that are kept apart; of more, the oldest are merged."""
GRANTS_MAX = 4_096


def still_issued(before: tuple[Issued, ...], grants: tuple[Grant, ...], over_ns: int) -> tuple[Issued, ...]:
    """Those of `before` that have not expired and give more than these grants."""
    kept = [each for each in before if each.until_ns > over_ns and has_lost(each.grants, list(grants))]
    while len(kept) > ISSUED_MAX:
        kept[:2] = [_merged(kept[0], kept[1])]
    if any(len(each.grants) > GRANTS_MAX for each in kept):
        raise LimitError("the subscription was modified too often", hint="wait until its older tokens expire")
    return tuple(kept)


def wanted(grants: tuple[Grant, ...]) -> tuple[list[str], list[str]]:
    """The topics to receive and to send that grants give."""
    given = [each for each in grants if not is_denial(each)]
    receive = [each.pattern for each in given if each.action == "receive"]
    return receive, [each.pattern for each in given if each.action == "send"]


def _merged(one: Issued, other: Issued) -> Issued:
    """All that any of the two gives, and of what they deny only what both do."""
    common = set(one.grants) & set(other.grants)
    grants = [each for each in (*one.grants, *other.grants) if each in common or not is_denial(each)]
    return Issued(tuple(dict.fromkeys(grants)), max(one.until_ns, other.until_ns))
