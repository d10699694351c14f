"""What an application may have of what it wants: its interests, narrowed to the live grants of its token.

What is denied is denied under every condition.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.base.errors import NotEntitledError
from penstock.filter.core.events import Interests
from penstock.security import Grant
from penstock.security.core.narrowing import denials, narrowed

Condition = tuple[str, bytes]
"""Of an interest: where, content."""

Wanted = tuple[str, Condition]


class EntitledInterest(NamedTuple):
    """What the core is told in place of an interest, and where the topics flow."""

    texts: tuple[str, ...]
    groups: tuple[int, ...]


class Plan(NamedTuple):
    """A change that is allowed: what the core is asked for, and what is to be remembered once it has agreed."""

    add: list[Interests]
    remove: list[Interests]
    gained: dict[Wanted, EntitledInterest]
    dropped: dict[Wanted, EntitledInterest]


class EntitledInterests:
    """The interests of one application: what it asked for, and what the core was told in its place."""

    def __init__(self, grants: Sequence[Grant]) -> None:
        self.grants = tuple(grants)
        self._denied = denials(grants)
        self._wanted: dict[Wanted, EntitledInterest] = {}
        self._uses: Counter[Wanted] = Counter()  # how many interests each that the core was told stands for
        self._conditions: Counter[Condition] = Counter()  # how many interests are under each

    def plan(self, add: Iterable[Interests], remove: Iterable[Interests]) -> Plan:
        """What a change means here; nothing is changed yet. TopicError or NotEntitledError if it cannot be."""
        gained: dict[Wanted, EntitledInterest] = {}
        dropped: dict[Wanted, EntitledInterest] = {}
        added: list[Interests] = []
        for each in remove:
            dropped |= {key: self._wanted[key] for key in _keys(each) if key in self._wanted}
        for each in add:
            told: dict[str, None] = {}
            for key in _keys(each):
                held = gained.get(key) or self._wanted.get(key)
                if held is None or key in dropped:
                    held = gained[key] = EntitledInterest(narrowed(self.grants, key[0]), tuple(each.groups))
                told |= dict.fromkeys(held.texts)
            added.append(Interests([*told, *self._denied], each.where, each.content, each.groups))
        return Plan(added, self._released(gained, dropped), gained, dropped)

    def commit(self, plan: Plan) -> None:
        """The core has agreed."""
        for key, held in plan.dropped.items():
            del self._wanted[key]
            self._count(key, held, -1)
        for key, held in plan.gained.items():
            self._wanted[key] = held
            self._count(key, held, 1)

    def regranted(self, grants: Sequence[Grant]) -> tuple["EntitledInterests", Plan]:
        """The same interests under other grants, and what that changes for the core: what is no longer granted is left
        out."""
        renewed = EntitledInterests(grants)
        for key, held in self._wanted.items():
            try:
                texts = narrowed(renewed.grants, key[0])
            except NotEntitledError:
                continue
            renewed._wanted[key] = EntitledInterest(texts, held.groups)
            renewed._count(key, renewed._wanted[key], 1)
        gone = self._told() - renewed._told()
        plan = Plan(renewed._all(), _grouped(gone), {}, {})
        return renewed, plan

    def _count(self, key: Wanted, held: EntitledInterest, step: int) -> None:
        self._conditions[key[1]] += step
        for text in held.texts:
            use = (text, key[1])
            self._uses[use] += step
            if self._uses[use] <= 0:
                del self._uses[use]

    def _told(self) -> set[Wanted]:
        """What the core has been told."""
        return set(self._uses) | {(text, each) for text in self._denied for each in +self._conditions}

    def _all(self) -> list[Interests]:
        """What the core is to be told, from the beginning."""
        by_place: dict[tuple[Condition, tuple[int, ...]], dict[str, None]] = {}
        for (_, condition), held in self._wanted.items():
            by_place.setdefault((condition, held.groups), {}).update(dict.fromkeys(held.texts))
        return [
            Interests([*texts, *self._denied], *condition, groups) for (condition, groups), texts in by_place.items()
        ]

    def _released(
        self, gained: dict[Wanted, EntitledInterest], dropped: dict[Wanted, EntitledInterest]
    ) -> list[Interests]:
        """What nothing uses any more, and denials where nothing is left to deny."""
        uses: Counter[Wanted] = Counter()
        conditions: Counter[Condition] = Counter()
        for change, step in ((gained, 1), (dropped, -1)):
            for key, held in change.items():
                conditions[key[1]] += step
                for text in held.texts:
                    uses[text, key[1]] += step
        gone = {each for each in uses if self._uses[each] + uses[each] <= 0 and each[0] not in self._denied}
        empty = [each for each in conditions if self._conditions[each] + conditions[each] <= 0]
        return _grouped(gone | {(text, each) for text in self._denied for each in empty})


def _keys(each: Interests) -> list[Wanted]:
    return [(text, (each.where, each.content)) for text in dict.fromkeys(each.topics)]


def _grouped(wanted: Iterable[Wanted]) -> list[Interests]:
    by_condition: dict[Condition, list[str]] = {}
    for text, condition in sorted(wanted):
        by_condition.setdefault(condition, []).append(text)
    return [Interests(topics, *condition) for condition, topics in by_condition.items()]
