"""What a child may have: what its token grants, without what was revoked (TREE-6)."""

from collections.abc import Iterable

import msgspec

from penstock.base.errors import LimitError, NotEntitledError
from penstock.security.narrowing import denials, narrowed
from penstock.security.token import Grant
from penstock.topics.interest import Interest
from penstock.topics.overlap import covers as topic_covers
from penstock.tree.core.board import Board, Child
from penstock.tree.core.catch_up import CatchUp
from penstock.tree.core.control import TOPICS_MAX, WANTS_SIZE_MAX, Want, size_of
from penstock.tree.core.events import Party
from penstock.tree.core.infostream import Revoked, portions

REVOKED_MAX = 65_536
EVERYTHING = "!>"


class Rights:
    def __init__(self, board: Board, catch_up: CatchUp) -> None:
        self._board = board
        self._catch_up = catch_up
        self._revoked: dict[str, tuple[tuple[str, ...], str]] = {}
        """By name: patterns with their !, and why."""

    def denied(self, party: Party) -> tuple[str, ...]:
        """Patterns, each with its !."""
        return tuple(denials(party.grants or ())) + self.revoked(party)[0]

    def why_none(self, party: Party) -> str | None:
        """Why the party may have nothing at all."""
        patterns, reason = self.revoked(party)
        return reason if EVERYTHING in patterns else None

    def revoked(self, party: Party) -> tuple[tuple[str, ...], str]:
        """Patterns, each with its !, and why."""
        found = [self._revoked[name] for name in dict.fromkeys((party.name, party.subject)) if name in self._revoked]
        patterns = tuple(pattern for each, _ in found for pattern in each)
        return patterns, next((reason for _, reason in found), "")

    def tell(self, child: Child) -> None:
        """What was taken from the party before it came."""
        patterns, reason = self.revoked(child.party)
        if patterns:
            self._tell_revoked(child, tuple(each[1:] for each in patterns), reason)

    def granted(self, child: Child, wants: Iterable[Want]) -> tuple[Want, ...]:
        """NotEntitledError if that is nothing, LimitError if it takes too many words."""
        grants = child.party.grants
        found: dict[Want, None] = {}
        size = 0
        for want in dict.fromkeys(wants):
            topics: dict[str, None] = {}
            for topic in want.topics:
                for text in (topic,) if grants is None else self._narrowed(grants, topic):
                    if not self._is_denied(child, text):
                        topics[text] = None
            if any(not text.startswith("!") for text in topics):
                narrow = Want((*topics, *child.denied), want.where)
                size += size_of(narrow)
                if size > WANTS_SIZE_MAX or len(narrow.topics) > TOPICS_MAX:
                    raise LimitError(f"it has more than {WANTS_SIZE_MAX} bytes or {TOPICS_MAX} topics as it is granted")
                found[narrow] = None
        if not found:
            raise NotEntitledError("nothing of it is granted", hint="the administration server knows what is")
        return tuple(found)

    @staticmethod
    def _narrowed(grants: tuple[Grant, ...], topic: str) -> tuple[str, ...]:
        try:
            return narrowed(grants, topic)
        except NotEntitledError:
            return ()

    @staticmethod
    def _is_denied(child: Child, topic: str) -> bool:
        interest = Interest.parse(topic)
        return not interest.negative and any(topic_covers(Interest.parse(each[1:]), interest) for each in child.denied)

    def revoke(self, name: str, topics: tuple[str, ...], reason: str, *, is_lasting: bool) -> None:
        """For all links of the party, now and, if it lasts, later. Its neighbours notice nothing."""
        patterns = tuple(f"!{topic}" for topic in topics) or (EVERYTHING,)
        known = self._revoked.get(name, ((), ""))[0]
        if is_lasting and (name in self._revoked or len(self._revoked) < REVOKED_MAX):
            self._revoked[name] = (tuple(dict.fromkeys((*known, *patterns))), reason)
        for child in [each for each in self._board.children.values() if each.party.is_called(name)]:
            child.denied = tuple(dict.fromkeys((*child.denied, *patterns)))
            # What waits for it may be among that: it fetches again what it may have.
            self._board.fanout.take_back(child.link)
            self._board.refilled = True
            self._regrant(child)
            self._tell_revoked(child, topics, reason)

    def _tell_revoked(self, child: Child, topics: tuple[str, ...], reason: str) -> None:
        for part in portions(topics):
            self._board.inform(Revoked(part, reason), [child.link])

    def restore(self, name: str) -> None:
        self._revoked.pop(name, None)

    def renewed(self, child: Child, grants: tuple[Grant, ...] | None) -> None:
        """What a newer token no longer grants, the child no longer gets, and is told so."""
        before = {number: leg.wants for number, leg in child.legs.items()}
        child.party = msgspec.structs.replace(child.party, grants=grants)
        child.denied = self.denied(child.party)
        self._regrant(child)
        lost = [
            number for number, wants in before.items() if number not in child.legs or child.legs[number].wants != wants
        ]
        topics = tuple(dict.fromkeys(topic for number in lost for want in before[number] for topic in want.topics))
        if lost:
            self._tell_revoked(child, topics, "the token no longer grants it")

    def _regrant(self, child: Child) -> None:
        """Each leg gets what is granted of it now; those for which that is nothing end."""
        board = self._board
        for leg in list(child.legs.values()):
            try:
                wants = self.granted(child, leg.asked)
            except (NotEntitledError, LimitError):
                del child.legs[leg.number]
                board.fanout.close_leg(leg.link, leg.number)
                self._catch_up.abandon(leg)
                continue
            if wants != leg.wants:
                leg.wants = wants
                board.fanout.change_leg(
                    child.link, leg.number, board.conditions.compile(wants, is_agent=child.is_agent)
                )
                self._catch_up.abandon(leg)
                self._catch_up.serve(board.streams[leg.stream], leg)
