"""Interests of simulated applications, and whether they match a message, without the product's interest table."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from penstock.filter.core.events import Interests
from penstock.model import MessageModel
from penstock.sim.randomness import SeededRandomness

MODEL = MessageModel.parse(
    """
id = 900
name = "simulated"
version = 1
[[field]]
name = "number"
type = "u64"
[[field]]
name = "level"
type = "u32"
[[field]]
name = "marks"
type = "u32"
""",
    where="simulated",
)

TAGGED, MARKED, DIRECT = 1, 2, 4
"""Bits of `marks`: the message has the tag `halted`; its content has PATTERN at the beginning; it is for the
application whose number is `level`."""

PATTERN = b"<MARK>"
TOPICS = ("md.sim.AAA.trade", "md.sim.BBB.trade", "md.sim.CCC.quote", "ref.7.x", "ref.30.x")

MENU: dict[str, Callable[[str, int], bool]] = {
    "md.sim.AAA.trade": lambda topic, _: topic == "md.sim.AAA.trade",
    "md.sim.*.quote": lambda topic, _: topic.startswith("md.sim.") and topic.endswith(".quote"),
    "md.>": lambda topic, _: topic.startswith("md."),
    "md.sim.BB*.trade": lambda topic, _: topic == "md.sim.BBB.trade",
    "ref.[5..12].x": lambda topic, _: topic == "ref.7.x",
    "/ref[.].*|md[.]sim[.]CCC[.].*/": lambda topic, _: topic.startswith(("ref.", "md.sim.CCC.")),
    "#halted": lambda _, marks: bool(marks & TAGGED),
    "!md.sim.BBB.*": lambda topic, _: topic.startswith("md.sim.BBB."),
    "!#halted": lambda _, marks: bool(marks & TAGGED),
}

CONDITIONS: dict[str, tuple[str, bytes]] = {"": ("", b""), "level": ("level > 50", b""), "pattern": ("", PATTERN)}
"""The conditions on fields, and the pattern in the content, by name."""


class SentMessage(NamedTuple):
    """All properties of a message that decide which applications receive it."""

    group: int
    topic: str
    model_id: int
    level: int
    marks: int

    @staticmethod
    def of(group: int, topic: str, model_id: int, payload: bytes) -> "SentMessage":
        record = MODEL.view(payload[: MODEL.record_size])
        return SentMessage(group, topic, model_id, int(record.level), int(record.marks))


class Wants(NamedTuple):
    """An application's interests, by condition, on some groups."""

    application: int
    groups: tuple[int, ...] = ()
    interests: tuple[tuple[str, frozenset[str]], ...] = ()

    def want(self, message: SentMessage) -> bool:
        if message.group not in self.groups:
            return False
        if message.marks & DIRECT:
            return message.level == self.application
        return any(
            _matches(texts, message) and _holds(condition, message) for condition, texts in self.interests if texts
        )

    def as_interests(self) -> list[Interests]:
        return [_interests(condition, texts, self.groups) for condition, texts in self.interests if texts]

    def added_since(self, before: "Wants") -> list[Interests]:
        known = dict(before.interests) if before.groups == self.groups else {}
        found = ((condition, texts - known.get(condition, frozenset())) for condition, texts in self.interests)
        return [_interests(condition, texts, self.groups) for condition, texts in found if texts]

    def removed_since(self, before: "Wants") -> list[Interests]:
        return before.added_since(self)

    @staticmethod
    def draw(application: int, groups: list[int], randomness: SeededRandomness) -> "Wants":
        chosen = tuple(groups) if randomness.chance(0.6) else (randomness.choose(groups),)
        interests = []
        for condition in CONDITIONS:
            share = 0.35 if condition == "" else 0.15
            interests.append((condition, frozenset(text for text in MENU if randomness.chance(share))))
        if not any(text[0] != "!" for _, texts in interests for text in texts):
            interests[0] = ("", interests[0][1] | {"md.>"})
        return Wants(application, chosen, tuple(interests))


def _interests(condition: str, texts: Iterable[str], groups: tuple[int, ...]) -> Interests:
    where, content = CONDITIONS[condition]
    return Interests(sorted(texts), where, content, groups)


def _matches(texts: frozenset[str], message: SentMessage) -> bool:
    hits = [text for text in texts if MENU[text](message.topic, message.marks)]
    return bool(hits) and not any(text.startswith("!") for text in hits)


def _holds(condition: str, message: SentMessage) -> bool:
    if condition == "level":
        return message.model_id == MODEL.id and message.level > 50
    return condition != "pattern" or bool(message.marks & MARKED)
