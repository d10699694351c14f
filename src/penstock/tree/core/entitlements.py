"""The entitlements of a party: the grants of its token, without revocations by name (TREE-6)."""

from collections.abc import Iterable

from penstock.base.errors import LimitError, NotEntitledError
from penstock.security.core.narrowing import denials, narrowed
from penstock.security.core.token import Grant
from penstock.topics.interest import Interest
from penstock.topics.overlap import covers as topic_covers
from penstock.tree.core.control import TOPICS_MAX, WANTS_SIZE_MAX, Want, size_of
from penstock.tree.core.events import Party

REVOKED_MAX = 65_536
EVERYTHING = "!>"


class Entitlements:
    """Owns the revocations. Patterns that deny topics have a leading `!`."""

    def __init__(self) -> None:
        self._revoked: dict[str, tuple[tuple[str, ...], str]] = {}
        """By name: patterns, and the reason."""

    def denied(self, party: Party) -> tuple[str, ...]:
        """Patterns that the party's token and revocations deny."""
        return tuple(denials(party.grants or ())) + self.revoked(party)[0]

    def revocation_reason(self, party: Party) -> str | None:
        """The reason, if everything was revoked from the party."""
        patterns, reason = self.revoked(party)
        return reason if EVERYTHING in patterns else None

    def revoked(self, party: Party) -> tuple[tuple[str, ...], str]:
        """The revoked patterns, and the reason."""
        found = [self._revoked[name] for name in dict.fromkeys((party.name, party.subject)) if name in self._revoked]
        patterns = tuple(pattern for each, _ in found for pattern in each)
        return patterns, next((reason for _, reason in found), "")

    def revoke(self, name: str, topics: tuple[str, ...], reason: str, *, is_lasting: bool) -> tuple[str, ...]:
        """The patterns that the party's present links lose; a lasting revocation also holds for later links."""
        patterns = tuple(f"!{topic}" for topic in topics) or (EVERYTHING,)
        known = self._revoked.get(name, ((), ""))[0]
        if is_lasting and (name in self._revoked or len(self._revoked) < REVOKED_MAX):
            self._revoked[name] = (tuple(dict.fromkeys((*known, *patterns))), reason)
        return patterns

    def restore(self, name: str) -> None:
        self._revoked.pop(name, None)


def granted(grants: tuple[Grant, ...] | None, denied: tuple[str, ...], wants: Iterable[Want]) -> tuple[Want, ...]:
    """The part of these wants that is granted and not denied; `grants` None: everything is granted. NotEntitledError if
    nothing is left, LimitError if the result is too long."""
    denials_parsed = [Interest.parse(each[1:]) for each in denied]
    found: dict[Want, None] = {}
    size = 0
    for want in dict.fromkeys(wants):
        topics: dict[str, None] = {}
        for topic in want.topics:
            for text in (topic,) if grants is None else _narrowed(grants, topic):
                if not _is_denied(denials_parsed, text):
                    topics[text] = None
        if any(not text.startswith("!") for text in topics):
            narrow = Want((*topics, *denied), want.where)
            size += size_of(narrow)
            if size > WANTS_SIZE_MAX or len(narrow.topics) > TOPICS_MAX:
                raise LimitError(
                    "the granted part of the subscription is too long",
                    hint=f"at most {WANTS_SIZE_MAX} bytes and {TOPICS_MAX} topics",
                )
            found[narrow] = None
    if not found:
        what = "no part of the subscription is granted"
        raise NotEntitledError(what, hint="see the policy of the administration server")
    return tuple(found)


def _narrowed(grants: tuple[Grant, ...], topic: str) -> tuple[str, ...]:
    try:
        return narrowed(grants, topic)
    except NotEntitledError:
        return ()


def _is_denied(denials_parsed: list[Interest], topic: str) -> bool:
    interest = Interest.parse(topic)
    return not interest.negative and any(topic_covers(each, interest) for each in denials_parsed)
