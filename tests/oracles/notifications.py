"""Reference for notification filters: everything is checked each time, with Python values."""

from fractions import Fraction
from typing import Any

from penstock.engine.client.filters import NotificationFilter
from penstock.model import Message

NS = 1_000_000_000


class SlowWatch:
    def __init__(self) -> None:
        self.rule = NotificationFilter()
        self.session = (-(2**62), 2**62)
        self.records: dict[int, Message] = {}
        self.told: dict[int, tuple[Message, int]] = {}
        self.changed: set[int] = set()

    def drain(self, now_ns: int, wall_ns: int) -> set[int]:
        """The slots notified at this time."""
        is_open = self.session[0] <= wall_ns < self.session[1]
        interval_ns = int(NS / self.rule.per_second) if self.rule.per_second else 0
        found = set()
        for slot in sorted(self.changed):
            if slot in self.told and self.told[slot][1] + interval_ns > now_ns:
                continue
            self.changed.discard(slot)
            if is_open and slot in self.records and self._passes(slot):
                found.add(slot)
        every_ns = int(self.rule.at_least_every * NS)
        if every_ns and is_open:
            found |= {slot for slot, (_, told_ns) in self.told.items() if told_ns + every_ns <= now_ns}
        for slot in found:
            self.changed.discard(slot)
            self.told[slot] = self.records[slot].copy(), now_ns
        return found

    def _passes(self, slot: int) -> bool:
        if slot not in self.told:
            return True
        before, after = self.told[slot][0], self.records[slot]
        if self.rule.fields and not any(getattr(before, name) != getattr(after, name) for name in self.rule.fields):
            return False
        return not self.rule.moved or any(
            has_moved(exact(before, name), exact(after, name), limit) for name, limit in self.rule.moved.items()
        )


def exact(message: Message, name: str) -> Fraction | None:
    field = message.model.fields_by_name[name]
    if field.is_decimal:
        scaled = message.scaled(name)
        return None if scaled is None else Fraction(scaled, 10**field.decimals)
    value: Any = getattr(message, name)
    return None if value is None else Fraction(value)


def has_moved(before: Fraction | None, after: Fraction | None, limit: float | str) -> bool:
    if before is None or after is None:
        return before != after
    text = str(limit)
    if text.endswith("%"):
        return abs(after - before) * 100 > abs(before) * Fraction(text[:-1])
    return abs(after - before) > Fraction(text)
