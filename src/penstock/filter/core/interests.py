"""The interests of applications: table slots, conditions, and the groups of their topics.

A slot is a subscriber of the interest table: the interests of one application under one condition. A negative interest
therefore only affects interests under the same condition.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from penstock.base.errors import (
    FilterExpressionError,
    LimitError,
    LocalProtocolError,
    ModelError,
    PenstockError,
    TopicError,
)
from penstock.filter.config import FilterConfig
from penstock.filter.core.events import Interests, Want
from penstock.filter.core.kernel._forward import Forwarder
from penstock.filter.core.number_pool import NumberPool
from penstock.model import MessageModel
from penstock.topics import GroupMap, Interest, InterestKind, InterestTable, Predicate
from penstock.topics.refusal import Refusal, most_helpful

if TYPE_CHECKING:
    from penstock.filter.core.consumers import Application

MARKS = frozenset("*>[!/#")
"""Characters that plain topics do not contain."""

CONDITIONS_REMEMBERED_MAX = 256
TOPIC_GROUPS_REMEMBERED_MAX = 4_096

Predicates = dict[tuple[int, int], Predicate]
"""By model id and the first version to which the predicate applies."""


class Terms(NamedTuple):
    """A condition. Interests with equal conditions are matched together."""

    where: str = ""
    content: bytes = b""


class TopicGroups(NamedTuple):
    """The groups of an interest's messages, and whether the application named them."""

    groups: tuple[int, ...]
    is_named: bool


GroupsByTerms: TypeAlias = dict[Terms, dict[str, TopicGroups]]


class Slot(msgspec.Struct):
    """`interests` are canonical texts."""

    number: int
    interests: dict[str, TopicGroups] = {}


class KnownModels:
    """Models, which never change, and the conditions compiled for them."""

    def __init__(self, models: dict[int, MessageModel]) -> None:
        self.models = models
        self._compiled: dict[str, Predicates] = {}

    def predicates(self, where: str) -> Predicates:
        """The compiled condition for every model that has its fields."""
        found = self._compiled.get(where)
        if found is None:
            found = _predicates(where, self.models.values())
            if len(self._compiled) >= CONDITIONS_REMEMBERED_MAX:
                self._compiled.clear()
            self._compiled[where] = found
        return found


class InterestBook:
    """The interests of all applications. A change is applied completely or, with an error, not at all."""

    def __init__(
        self,
        config: FilterConfig,
        table: InterestTable,
        forwarder: Forwarder,
        groups: Sequence[int],
        group_map: GroupMap | None,
        models: Iterable[MessageModel],
    ) -> None:
        self._config = config
        self._table = table
        self._forwarder = forwarder
        self._standard = TopicGroups(tuple(groups), is_named=False)
        self._map = group_map
        self._configured = {model.id: model for model in models}
        self._known = KnownModels(self._configured)
        self._unnamed: set[int] = set()  # models that no application has registered any more
        self._slot_numbers = NumberPool(config.conditions_max, "conditions", "raise conditions_max")
        # one object for equal groups, of which there may be millions
        self._remembered: dict[TopicGroups, TopicGroups] = {}

    def prepare(self, want: Want) -> None:
        """Do the slow part of a change in any thread: parse its interests and conditions, which are cached for a
        while. Raises the same errors as change()."""
        for interests in want.add:
            self._compile(_terms(interests))
            for topic in interests.topics:
                _canonical(topic)

    def change(
        self, application: "Application", want: Want, check_groups: Callable[[Counter[int]], None]
    ) -> tuple[Counter[int], Counter[int]]:
        """Apply a change. Return, per group, the number of the application's interests that now need it, and that no
        longer need it. `check_groups` may refuse the newly needed groups."""
        wanted = self._resolve(want.add)
        unwanted = {terms: [_canonical(text) for text in topics] for terms, topics in _by_terms(want.remove).items()}
        self._check_limits(application, wanted, unwanted)
        compiled = {terms: self._compile(terms) for terms in wanted if terms not in application.slots}
        new, moved = _new_and_moved(application, wanted)
        needed = _groups(new) + _groups(moved)
        check_groups(needed)
        self._add(application, new, compiled)
        freed = self._remove(application, unwanted, wanted)
        for terms, groups_by_text in moved.items():
            interests = application.slots[terms].interests
            for text, topic_groups in groups_by_text.items():
                freed.update(interests[text].groups)
                interests[text] = topic_groups
        return needed, freed

    def clear(self, application: "Application") -> None:
        """Remove all interests of the application."""
        for terms in list(application.slots):
            self._table.remove_subscriber(application.slots[terms].number)
            self._release(application, terms)

    def learn(self, model: MessageModel, applications: Iterable["Application"]) -> None:
        """Allow conditions, including existing ones, to refer to this model. A known or older version changes
        nothing; a contradicting model is refused (ModelError), because others rely on the known one."""
        self._unnamed.discard(model.id)
        known = self._known.models.get(model.id)
        if known is not None:
            newer, older = (model, known) if model.version > known.version else (known, model)
            if contradictions := newer.incompatibilities(older):
                raise ModelError(f"{model.name} contradicts the known model: {contradictions[0]}")
            if newer is known:
                return
        self._known = KnownModels({**self._known.models, model.id: model})
        for application in applications:
            for terms, slot in application.slots.items():
                if terms.where:
                    self._set_slot(application, slot.number, terms, self._compile(terms))

    def forget(self, model_ids: Iterable[int], applications: Iterable["Application"]) -> None:
        """No application uses these models any more. Models without a condition are dropped, now or when the last
        condition that refers to them is removed."""
        self._unnamed |= self._known.models.keys() & set(model_ids)
        if not self._unnamed:
            return
        conditions = {terms.where for each in applications for terms in each.slots if terms.where}
        for model_id in sorted(self._unnamed):
            others = {number: model for number, model in self._known.models.items() if number != model_id}
            if (configured := self._configured.get(model_id)) is not None:
                others[model_id] = configured
            known = KnownModels(others)
            try:
                for where in conditions:
                    known.predicates(where)
            except FilterExpressionError:
                continue
            self._known = known
            self._unnamed.discard(model_id)

    def change_map(
        self, group_map: GroupMap, applications: Iterable["Application"]
    ) -> dict[int, tuple[Counter[int], Counter[int]]]:
        """Use the groups of a new map. Return the result of change() for each application."""
        self._map = group_map
        changes = {}
        for application in applications:
            before: Counter[int] = Counter()
            after: Counter[int] = Counter()
            for slot in application.slots.values():
                for text, topic_groups in slot.interests.items():
                    if not topic_groups.is_named:
                        before.update(topic_groups.groups)
                        slot.interests[text] = fresh = self._topic_groups(text, ())
                        after.update(fresh.groups)
            changes[application.number] = (after, before)
        return changes

    def _resolve(self, wanted: Iterable[Interests]) -> GroupsByTerms:
        resolved: GroupsByTerms = {}
        for interests in wanted:
            terms = _terms(interests)
            groups_by_text = resolved.setdefault(terms, {})
            for topic in interests.topics:
                text = _canonical(topic)
                groups_by_text[text] = self._topic_groups(text, interests.groups)
        return resolved

    def _topic_groups(self, text: str, groups: Sequence[int]) -> TopicGroups:
        if groups:
            topic_groups = TopicGroups(tuple(groups), is_named=True)
        elif self._map is None:
            topic_groups = self._standard
        elif not MARKS.intersection(text):
            topic_groups = TopicGroups((self._map.group_of(text),), is_named=False)
        else:
            topic_groups = TopicGroups(tuple(self._map.groups_for([text])), is_named=False)
        if len(self._remembered) >= TOPIC_GROUPS_REMEMBERED_MAX:
            self._remembered.clear()
        return self._remembered.setdefault(topic_groups, topic_groups)

    def _check_limits(
        self, application: "Application", wanted: GroupsByTerms, unwanted: dict[Terms, list[str]]
    ) -> None:
        """Check the limits as they will be after the change."""
        new = gone = 0
        terms_after = set(application.slots) | set(wanted)
        for terms, groups_by_text in wanted.items():
            slot = application.slots.get(terms)
            new += len(groups_by_text) if slot is None else sum(text not in slot.interests for text in groups_by_text)
        for terms, texts in unwanted.items():
            slot = application.slots.get(terms)
            if slot is not None:
                gone += sum(text in slot.interests and text not in wanted.get(terms, ()) for text in set(texts))
        if application.interest_count + new - gone > self._config.interests_per_application_max:
            raise LimitError(
                f"the application would have {application.interest_count + new - gone} interests",
                hint="raise interests_per_application_max",
            )
        if len(self._table) + new - gone > self._config.interests_max:
            raise LimitError(
                f"the change would make {len(self._table) + new - gone} interests", hint="raise interests_max"
            )
        if len(terms_after) > self._config.conditions_per_application_max:
            raise LimitError(
                f"the application would have {len(terms_after)} conditions", hint="raise conditions_per_application_max"
            )
        if len(terms_after) - len(application.slots) > self._slot_numbers.free:
            raise LimitError(f"all {self._config.conditions_max} conditions are in use", hint="raise conditions_max")

    def _compile(self, terms: Terms) -> Predicates | bytes | None:
        """The compiled condition for every model that has its fields."""
        if terms.content:
            return terms.content
        if not terms.where:
            return None
        return self._known.predicates(terms.where)

    def _add(
        self,
        application: "Application",
        new: GroupsByTerms,
        compiled: dict[Terms, Predicates | bytes | None],
    ) -> None:
        tried: list[tuple[int, str]] = []
        try:
            for terms, groups_by_text in new.items():
                slot = application.slots.get(terms)
                if slot is None:
                    slot = application.slots[terms] = Slot(self._slot_numbers.take())
                    self._set_slot(application, slot.number, terms, compiled[terms])
                tried += [(slot.number, text) for text in groups_by_text]
                self._table.add_many(groups_by_text, [slot.number] * len(groups_by_text))
        except PenstockError:
            for number, text in tried:
                self._take_back(text, number)
            self._release_empty(application)
            raise
        for terms, groups_by_text in new.items():
            application.slots[terms].interests.update(groups_by_text)

    def _remove(
        self, application: "Application", unwanted: dict[Terms, list[str]], wanted: GroupsByTerms
    ) -> Counter[int]:
        """Remove interests, except those that the same change adds."""
        freed: Counter[int] = Counter()
        for terms, texts in unwanted.items():
            slot = application.slots.get(terms)
            if slot is None:
                continue
            for text in texts:
                if text in slot.interests and text not in wanted.get(terms, ()):
                    self._table.remove(text, slot.number)
                    freed.update(slot.interests.pop(text).groups)
        self._release_empty(application)
        return freed

    def _take_back(self, text: str, slot_number: int) -> None:
        try:
            self._table.remove(text, slot_number)
        except TopicError:
            return  # the refused change was the first one

    def _set_slot(
        self, application: "Application", number: int, terms: Terms, condition: Predicates | bytes | None
    ) -> None:
        self._forwarder.set_slot(number, application.consumer.number, application.bit, condition)

    def _release_empty(self, application: "Application") -> None:
        for terms in [terms for terms, slot in application.slots.items() if not slot.interests]:
            self._release(application, terms)

    def _release(self, application: "Application", terms: Terms) -> None:
        number = application.slots.pop(terms).number
        self._forwarder.clear_slot(number)
        self._slot_numbers.give_back(number)


def _predicates(where: str, models: Iterable[MessageModel]) -> Predicates:
    """Compile the condition for every model that has its fields, in all versions."""
    predicates: Predicates = {}
    refusals: list[Refusal] = []
    for model in models:
        try:
            for version in sorted({1, *(field.since for field in model.fields)}):  # each version that adds fields
                predicates[model.id, version] = Predicate.compile(where, model, version)
        except FilterExpressionError as error:
            refusals.append((model, error))
    if not predicates:
        refusal = most_helpful(where, refusals)
        what = "matches no known message model" + (f": {refusal}" if refusal else "")
        raise FilterExpressionError(what, where=f"condition {where[:80]!r}")
    return predicates


def _new_and_moved(application: "Application", wanted: GroupsByTerms) -> tuple[GroupsByTerms, GroupsByTerms]:
    """Split into interests that are new and interests that move to other groups."""
    new: GroupsByTerms = {}
    moved: GroupsByTerms = {}
    for terms, groups_by_text in wanted.items():
        slot = application.slots.get(terms)
        known = slot.interests if slot is not None else {}
        new[terms] = {text: topic_groups for text, topic_groups in groups_by_text.items() if text not in known}
        moved[terms] = {
            text: topic_groups
            for text, topic_groups in groups_by_text.items()
            if text in known and known[text] != topic_groups
        }
    return new, moved


def _groups(wanted: GroupsByTerms) -> Counter[int]:
    return Counter(
        group
        for groups_by_text in wanted.values()
        for topic_groups in groups_by_text.values()
        for group in topic_groups.groups
    )


def _terms(interests: Interests) -> Terms:
    if interests.where and interests.content:
        raise LocalProtocolError("a condition has either `where` or `content`, not both")
    return Terms(interests.where, interests.content)


def _by_terms(wanted: Iterable[Interests]) -> dict[Terms, list[str]]:
    topics: dict[Terms, list[str]] = {}
    for interests in wanted:
        topics.setdefault(_terms(interests), []).extend(interests.topics)
    return topics


def _canonical(text: str) -> str:
    """Return one text for all interests with equal parts."""
    if not MARKS.intersection(text):
        return text
    interest = Interest.parse(text)
    mark = "!" if interest.negative else ""
    if interest.kind is InterestKind.REGEX:
        return f"{mark}/{interest.subject}/"
    if interest.kind is InterestKind.TAG:
        return f"{mark}#{interest.subject}"
    return mark + interest.subject
