"""Reference for class rules: every rule is tried on every update, in order."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from oracles.conflation import may_conflate
from oracles.interests import matches
from penstock.model import Message

CLASSES = ("critical", "adaptive", "metered")


@dataclass(frozen=True)
class Rule:
    cls: str
    topics: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    where: tuple[str, frozenset[str], Callable[[Any], bool]] | None = None
    """The condition, its fields, and its function in Python."""
    expressions: tuple[tuple[str, str], ...] = ()
    consumers: tuple[str, ...] = ()

    def render(self) -> str:
        lines = ["[[rule]]", f'class = "{self.cls}"']
        lists = {"topics": self.topics, "models": self.models, "consumers": self.consumers}
        lines += [f"{name} = {list(value)}" for name, value in lists.items() if value]
        if self.where:
            lines.append(f'where = "{self.where[0]}"')
        if self.expressions:
            lines.append("matches = { " + ", ".join(f"{name} = '{text}'" for name, text in self.expressions) + " }")
        return "\n".join(lines)

    def holds(self, topic: str, message: Message, consumer: Sequence[str]) -> bool:
        model = message.model
        names = model.fields_by_name
        if self.topics and not any(matches(each, topic) for each in self.topics):
            return False
        if self.models and model.name not in self.models:
            return False
        if self.consumers and not any(_is_named(each, name) for each in self.consumers for name in consumer if name):
            return False
        if self.where and not (self.where[1] <= names.keys() and self.where[2](message)):
            return False
        for name, expression in self.expressions:
            value = getattr(message, name) if name in names and names[name].type in ("text", "enum") else None
            if value is None or not re.fullmatch(expression, value):
                return False
        return True


def class_of(
    rules: Sequence[Rule], default: str, topic: str, message: Message, consumer: Sequence[str], is_relieved: bool
) -> int:
    cls = next((rule.cls for rule in rules if rule.holds(topic, message, consumer)), default)
    if may_conflate(message.model):
        cls = "adaptive" if is_relieved and cls == "critical" else cls
    elif cls == "adaptive":
        cls = "critical"
    return CLASSES.index(cls) + 1


def _is_named(pattern: str, name: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None
