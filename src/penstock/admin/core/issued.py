"""Tokens issued before a subscription was modified: they are valid until they expire, so the server stores their
grants."""

from penstock.admin.core.client_grants import has_lost, is_denial
from penstock.admin.core.records import Issued
from penstock.base.errors import LimitError
from penstock.security.core.token import Grant

ISSUED_MAX = 16
"""Maximal number of separate lists of grants; beyond it, the oldest are merged."""
GRANTS_MAX = 4_096


def still_issued(before: tuple[Issued, ...], grants: tuple[Grant, ...], over_ns: int) -> tuple[Issued, ...]:
    """Return the lists of `before` that have not expired and exceed these grants."""
    kept = [each for each in before if each.until_ns > over_ns and has_lost(each.grants, list(grants))]
    while len(kept) > ISSUED_MAX:
        kept[:2] = [_merged(kept[0], kept[1])]
    if any(len(each.grants) > GRANTS_MAX for each in kept):
        raise LimitError("the subscription was modified too often", hint="wait until its older tokens expire")
    return tuple(kept)


def wanted(grants: tuple[Grant, ...]) -> tuple[list[str], list[str]]:
    """The topics to receive and the topics to send of the grants."""
    given = [each for each in grants if not is_denial(each)]
    receive = [each.pattern for each in given if each.action == "receive"]
    return receive, [each.pattern for each in given if each.action == "send"]


def _merged(one: Issued, other: Issued) -> Issued:
    """The union of two lists of grants; a denial stays if both have it."""
    common = set(one.grants) & set(other.grants)
    grants = [each for each in (*one.grants, *other.grants) if each in common or not is_denial(each)]
    return Issued(tuple(dict.fromkeys(grants)), max(one.until_ns, other.until_ns))
