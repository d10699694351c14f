"""The permitted part of an application's interests: its interests, narrowed to the live grants of its token.

Denials apply under every condition.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.base.errors import NotEntitledError
from penstock.filter.core.events import Interests
from penstock.security import Grant
from penstock.security.core.narrowing import denials, narrowed

Condition = tuple[str, bytes]
"""The condition of an interest: where, content."""

Wanted = tuple[str, Condition]


class EntitledInterest(NamedTuple):
    """The interests that the core gets in place of one interest, and their groups."""

    texts: tuple[str, ...]
    groups: tuple[int, ...]


class Plan(NamedTuple):
    """A permitted change: the request to the core, and the state to commit when the core has accepted it."""

    add: list[Interests]
    remove: list[Interests]
    gained: dict[Wanted, EntitledInterest]
    dropped: dict[Wanted, EntitledInterest]


class EntitledInterests:
    """The interests of one application: the requested ones, and the permitted ones that the core got instead."""

    def __init__(self, grants: Sequence[Grant]) -> None:
        self.grants = tuple(grants)
        self._denied = denials(grants)
        self._wanted: dict[Wanted, EntitledInterest] = {}
        self._uses: Counter[Wanted] = Counter()  # number of requested interests behind each permitted one
        self._conditions: Counter[Condition] = Counter()  # number of interests under each condition

    def plan(self, add: Iterable[Interests], remove: Iterable[Interests]) -> Plan:
        """Plan a change without applying it. Raises TopicError or NotEntitledError."""
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
        """Apply a plan that the core has accepted."""
        for key, held in plan.dropped.items():
            del self._wanted[key]
            self._count(key, held, -1)
        for key, held in plan.gained.items():
            self._wanted[key] = held
            self._count(key, held, 1)

    def regranted(self, grants: Sequence[Grant]) -> tuple["EntitledInterests", Plan]:
        """Narrow the same interests to other grants. Return them with the resulting change for the core; interests
        that are not granted any more are removed."""
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
        """The interests that the core has."""
        return set(self._uses) | {(text, each) for text in self._denied for each in +self._conditions}

    def _all(self) -> list[Interests]:
        """All interests for the core, from the beginning."""
        by_place: dict[tuple[Condition, tuple[int, ...]], dict[str, None]] = {}
        for (_, condition), held in self._wanted.items():
            by_place.setdefault((condition, held.groups), {}).update(dict.fromkeys(held.texts))
        return [
            Interests([*texts, *self._denied], *condition, groups) for (condition, groups), texts in by_place.items()
        ]

    def _released(
        self, gained: dict[Wanted, EntitledInterest], dropped: dict[Wanted, EntitledInterest]
    ) -> list[Interests]:
        """Interests that are no longer used, and denials of conditions without interests."""
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
