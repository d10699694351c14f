"""The updates of a simulated ticker plant, and their record for checkers.

Every publication of a run has a unique number. Records of all models have the same fields. Models with a contract have,
for the updates that a record represents, the first number, the highest and the lowest value, and the total; their
records have three parts.
"""

import bisect
from collections import defaultdict
from typing import NamedTuple

from penstock.model import Message, MessageModel

FILLING = "x" * 1_000
"""Size of a filler field; with large records, few of them fill a ring."""

CHECK = 0x9E37_79B9_7F4A_7C15

_FIELDS = """
[[field]]
name = "number"
type = "u64"
{common}
[[field]]
name = "check"
type = "u64"
{common}
[[field]]
name = "first_number"
type = "u64"
{common}
{first}
[[field]]
name = "high"
type = "i64"
{bid}
{high}
[[field]]
name = "low"
type = "i64"
{ask}
{low}
[[field]]
name = "total"
type = "i64"
{ask}
{total}
[[field]]
name = "filling"
type = "text"
size = 1000
{ask}
"""

PARTS = ("bid", "common", "ask")


def _model(number: int, name: str, conflate: str, **rules: str) -> MessageModel:
    lines = {each: f'conflate = "{rules[each]}"' if each in rules else "" for each in ("first", "high", "low", "total")}
    head = f'id = {number}\nname = "{name}"\nversion = 1\nconflate = {conflate}\n'
    if rules:
        head += "parts = [" + ", ".join(f'{{ name = "{each}" }}' for each in PARTS) + "]\n"
    parts = {each: f'part = "{each}"' if rules else "" for each in PARTS}
    return MessageModel.parse(head + _FIELDS.format(**lines, **parts), name)


KEPT = _model(60_001, "sim_kept", "true", first="first", high="max", low="min", total="sum")
NEWEST = _model(60_002, "sim_newest", "true")
NEVER = _model(60_003, "sim_never", "false")
MODELS = (KEPT, NEWEST, NEVER)


class Publication(NamedTuple):
    number: int
    topic: str
    value: int
    time_ns: int

    def record(self, model: MessageModel) -> bytes:
        return bytes(
            model.new(
                number=self.number,
                check=self.number * CHECK % 2**64,
                first_number=self.number,
                high=self.value,
                low=self.value,
                total=self.value,
                filling=FILLING,
            )
        )


class Market:
    """Topics with their models, and everything that was published on them."""

    def __init__(self, topics: int) -> None:
        self.models = {f"md.{MODELS[n % 3].name[4:]}.{n}": MODELS[n % 3] for n in range(topics)}
        self.dated = ("md.day.1", "md.day.2")
        """Topics of a source stream with sessions, of the model NEWEST; only sessions are checked of them."""
        self.published: dict[str, list[Publication]] = defaultdict(list)
        self.count = 0
        self._starts: list[int] = []

    def start(self) -> None:
        """The plant starts without knowledge of earlier publications."""
        self._starts.append(self.count)

    def started_before(self, number: int) -> int:
        """Return the last publication before the start of the plant that published this one."""
        return self._starts[bisect.bisect_left(self._starts, number) - 1]

    def publish(self, topic: str, value: int, now_ns: int) -> Publication:
        self.count += 1
        publication = Publication(self.count, topic, value, now_ns)
        self.published[topic].append(publication)
        return publication

    def after(self, topic: str, number: int) -> list[Publication]:
        """Publications on the topic with a larger number."""
        published = self.published[topic]
        return published[bisect.bisect_right(published, number, key=lambda each: each.number) :]

    def last(self, topic: str) -> int:
        return self.published[topic][-1].number if self.published[topic] else 0

    def fault(self, topic: str, message: Message, *, is_whole: bool) -> str:
        """Return the defect of a record for the publications from first_number to number; empty if there is none. If it
        is not whole, some of the publications may have been lost.
        """
        if message.check != message.number * CHECK % 2**64 or message.filling != FILLING:
            return "the record is torn"
        spanned = [each for each in self.after(topic, message.first_number - 1) if each.number <= message.number]
        if not spanned or spanned[0].number != message.first_number or spanned[-1].number != message.number:
            return "the record covers numbers that were never published on this topic"
        if not is_whole:
            return ""
        values = [each.value for each in spanned]
        kept = (max(values), min(values), sum(values)) if message.model is KEPT else (values[-1],) * 3
        if (message.high, message.low, message.total) != kept:
            return f"high, low and total should be {kept}"
        return ""
