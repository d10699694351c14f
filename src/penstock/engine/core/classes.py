"""Class rules: the first rule that applies to an update decides the class in which it is sent.

    default = "critical"                    # for updates without a matching rule; alone: the static class of a node

    [[rule]]
    class = "adaptive"
    topics = ["md.us.eq.*.quote"]           # patterns as in subscriptions; default: any
    models = ["quote"]                      # names; default: any
    where = "bid_size > 100 and venue = 'XNAS'"     # SQL over the fields: exact, ranges, prefixes (LIKE 'AA%')
    matches = { symbol = "[A-M].*" }        # regular expressions (RE2) for entire texts and enum names
    consumers = ["screen-*", "10.1.*"]      # names or destinations, * for anything; default: all

Topics, models and consumers of rules are checked when a consumer gets an item; only `where` and `matches` are checked
for each record, by compiled code. A rule does not apply to models without its fields. Models that are never conflated
are never adaptive: they are critical instead.
"""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
import re2

from penstock.base.config import Config, parse_toml, read_document
from penstock.base.errors import ConfigurationError, FilterExpressionError, LimitError
from penstock.engine.core.kernel._classify import ClassProgram, ValueTest
from penstock.engine.core.kernel._conflate import ConflationPlan
from penstock.model import MessageModel, shipped, shipped_names
from penstock.topics import Interest, InterestKind, InterestTable, Predicate

ClassName: TypeAlias = Literal["critical", "adaptive", "metered"]

CRITICAL, ADAPTIVE, METERED = 1, 2, 3
NUMBERS: dict[str, int] = {"critical": CRITICAL, "adaptive": ADAPTIVE, "metered": METERED}
INSTEAD = {
    CRITICAL: (CRITICAL, METERED),
    ADAPTIVE: (ADAPTIVE, METERED, CRITICAL),
    METERED: (METERED, ADAPTIVE, CRITICAL),
}
"""By class: substitutes for a class that the node does not serve, in order of preference."""

RULES_MAX = 1_000
REGEX_MEMORY_BYTES_MAX = 1 << 20
PROGRAMS_MAX = 65_536

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
Texts = Annotated[tuple[Text, ...], msgspec.Meta(max_length=1_000)]


class ClassRule(Config, frozen=True):
    """A rule applies if all of its conditions hold."""

    cls: ClassName = msgspec.field(name="class")
    topics: Texts = ()
    models: Texts = ()
    where: Annotated[str, msgspec.Meta(max_length=16_384)] = ""
    matches: dict[str, Text] = msgspec.field(default_factory=dict)
    consumers: Texts = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for topic in self.topics:
            if Interest.parse(topic).kind is InterestKind.TAG:
                raise ConfigurationError(f"{topic!r} is not a topic pattern", where="rule: topics")
        for expression in self.matches.values():
            _expression(expression)

    @property
    def is_static(self) -> bool:
        return not self.where and not self.matches


class ClassMap(Config, frozen=True, dict=True):
    """The rules of a node or of one consumer; the module's docstring describes their syntax."""

    default: ClassName = "critical"
    rule: Annotated[tuple[ClassRule, ...], msgspec.Meta(max_length=RULES_MAX)] = ()

    @staticmethod
    def parse(text: str, where: str = "classes") -> "ClassMap":
        return parse_toml(text, ClassMap, where=where)

    @staticmethod
    def load(path: str | Path) -> "ClassMap":
        return ClassMap.parse(read_document(Path(path)), where=str(path))

    def check(self, models: Iterable[MessageModel] = ()) -> None:
        """Raise ConfigurationError for a rule that fits none of the shipped models and none of `models`."""
        known = [*map(shipped, shipped_names()), *models]
        for index, rule in enumerate(self.rule):
            named = [model for model in known if not rule.models or model.name in rule.models]
            if rule.is_static or not named:
                continue
            errors = [error for model in named if (error := _misfit(rule, model, model.version))]
            if len(errors) == len(named):
                raise ConfigurationError(errors[0], where=f"rule[{index}]")

    def allowing(self, *consumer: str) -> tuple[int, ...]:
        """Indices of the rules that may apply to a consumer with this name and destination."""
        return tuple(
            index
            for index, rule in enumerate(self.rule)
            if not rule.consumers
            or any(fnmatchcase(text, each) for each in rule.consumers for text in consumer if text)
        )

    def concerning(self, topic: str) -> frozenset[int]:
        """Indices of the rules that may apply to an item with this topic."""
        everywhere = self._everywhere
        return everywhere.union(self._table.match(topic)) if len(everywhere) < len(self.rule) else everywhere

    @cached_property
    def _everywhere(self) -> frozenset[int]:
        return frozenset(index for index, rule in enumerate(self.rule) if not rule.topics)

    @cached_property
    def _table(self) -> InterestTable:
        table = InterestTable(seed=bytes(16))
        for index, rule in enumerate(self.rule):
            for topic in rule.topics:
                table.add(topic, index)
        return table


class Profile:
    """The rules that may apply to one consumer: its own, then the node's."""

    def __init__(self, maps: Sequence[ClassMap], consumer: Sequence[str]) -> None:
        self._allowing = [(each, each.allowing(*consumer)) for each in maps]

    def concerning(self, topic: str) -> tuple[frozenset[int], ...]:
        """For each of the two maps: the rules that may apply to an item with this topic."""
        return tuple(each.concerning(topic) for each, _ in self._allowing)

    def rules(self, concerning: Sequence[frozenset[int]], model: str) -> tuple[ClassRule, ...]:
        """Those of these rules that may apply to items of the model, in order."""
        found: list[ClassRule] = []
        for (each, allowing), concerned in zip(self._allowing, concerning, strict=True):
            found += [each.rule[index] for index in allowing if index in concerned]
        return tuple(rule for rule in found if not rule.models or model in rule.models)


class Classifier:
    """The compiled rules of a node, for one thread. Rules never change; the node replaces the Classifier."""

    def __init__(self, rules: ClassMap) -> None:
        self.rules = rules
        self._programs: dict[tuple[object, ...], tuple[ClassProgram, tuple[ClassRule, ...]]] = {}
        self._tests: dict[tuple[str, str, MessageModel], ValueTest] = {}

    def profile(self, name: str, destination: str = "", overrides: ClassMap | None = None) -> Profile:
        """The rules for a consumer; its own rules come first. The default of its own rules is ignored."""
        return Profile((self.rules,) if overrides is None else (overrides, self.rules), (name, destination))

    def program(
        self, profile: Profile, topic: str, model: MessageModel, version: int, *, is_relieved: bool = False
    ) -> ClassProgram:
        """Return the program that classifies records of this version on this topic; cached in the classifier. With
        relief, critical updates that allow conflation become adaptive."""
        rules = profile.rules(profile.concerning(topic), model.name)
        return self.program_of(rules, model, version, is_relieved=is_relieved)

    def program_of(
        self, rules: tuple[ClassRule, ...], model: MessageModel, version: int, *, is_relieved: bool
    ) -> ClassProgram:
        """Return the program for items to which these rules may apply."""
        version = min(version, model.version)
        key = (*map(id, rules), model.id, model.version, version, is_relieved)
        known = self._programs.get(key)
        if known is None:
            if len(self._programs) >= PROGRAMS_MAX:
                raise LimitError(f"the combinations of rules, models and versions exceed {PROGRAMS_MAX}")
            # The rules are stored with the program, so that their ids are not reused.
            known = self._programs[key] = (self._compiled(rules, model, version, is_relieved), rules)
        return known[0]

    def _compiled(
        self, rules: tuple[ClassRule, ...], model: MessageModel, version: int, is_relieved: bool
    ) -> ClassProgram:
        may_conflate = ConflationPlan.of(model).is_conflatable
        otherwise = _final(self.rules.default, may_conflate, is_relieved)
        steps = []
        for rule in rules:
            if _misfit(rule, model, version):
                continue
            cls = _final(rule.cls, may_conflate, is_relieved)
            if rule.is_static:
                otherwise = cls
                break
            condition = Predicate.compile(rule.where, model, version).program if rule.where else None
            steps.append((condition, [self._test(name, text, model) for name, text in rule.matches.items()], cls))
        return ClassProgram([] if all(cls == otherwise for _, _, cls in steps) else steps, otherwise)

    def _test(self, name: str, expression: str, model: MessageModel) -> ValueTest:
        key = (name, expression, model)
        if key not in self._tests:
            field, compiled = model.fields_by_name[name], _expression(expression)
            # The empty text of an optional field represents a missing value, which matches nothing.
            self._tests[key] = ValueTest(
                field, lambda value: (value != b"" or not field.optional) and compiled.fullmatch(value) is not None
            )
        return self._tests[key]


def nearest(cls: int, served: frozenset[int], *, is_conflatable: bool) -> int:
    """The substitute for `cls` among the served classes; 0 if there is none."""
    for instead in INSTEAD[cls]:
        if instead in served and (is_conflatable or instead != ADAPTIVE):
            return instead
    return ADAPTIVE if is_conflatable and ADAPTIVE in served else 0


def _final(name: ClassName, may_conflate: bool, is_relieved: bool) -> int:
    cls = NUMBERS[name]
    if cls == ADAPTIVE and not may_conflate:
        return CRITICAL
    return ADAPTIVE if is_relieved and may_conflate and cls == CRITICAL else cls


def _misfit(rule: ClassRule, model: MessageModel, version: int) -> str:
    """The reason why the rule cannot apply to records of this version of the model; empty if it can."""
    for name in rule.matches:
        field = model.fields_by_name.get(name)
        if field is None or field.since > version:
            return f"model {model.name!r} has no field {name!r}"
        if field.type not in ("text", "enum"):
            return f"field {name!r} is {field.type_text}, expressions need texts or enums"
    if rule.where:
        try:
            Predicate.compile(rule.where, model, version)
        except FilterExpressionError as error:
            return str(error)
    return ""


@lru_cache(maxsize=1_024)
def _expression(expression: str) -> "re2._Regexp":
    options = re2.Options()
    options.max_mem = REGEX_MEMORY_BYTES_MAX
    options.log_errors = False
    options.never_capture = True
    try:
        return re2.compile(expression, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if error.args else "cannot be compiled"
        raise ConfigurationError(
            f"the regular expression {expression[:80]!r} is refused: {reason}", hint="use RE2 syntax"
        ) from None
