"""What live widgets show: the newest row of each topic, and the recent points of a field."""

from collections import deque
from collections.abc import Sequence
from typing import TypedDict

from penstock.base.display import cell
from penstock.base.errors import ModelError
from penstock.model import Message

FIELDS_SHOWN = 8
"""Fields of a table whose fields are not chosen."""


class Series(TypedDict):
    name: str
    points: list[tuple[int, float]]
    """Times in milliseconds since 1970, and values."""


class NewestRows:
    """The newest message of each of the first `rows_max` topics."""

    def __init__(self, fields: Sequence[str], rows_max: int) -> None:
        self.fields = list(fields)
        self._rows_max = rows_max
        self._rows: dict[str, list[str]] = {}
        self._others: set[str] = set()

    def take(self, message: Message) -> None:
        known = message.model.fields_by_name
        if not self.fields:
            self.fields = list(known)[:FIELDS_SHOWN]
        if message.topic not in self._rows and len(self._rows) >= self._rows_max:
            if len(self._others) < self._rows_max:
                self._others.add(message.topic)
            return
        values = [getattr(message, name) if name in known else None for name in self.fields]
        self._rows[message.topic] = [cell(message.topic), cell(message.seq), *map(cell, values)]

    @property
    def columns(self) -> list[str]:
        return ["topic", "seq", *self.fields]

    @property
    def rows(self) -> list[list[str]]:
        return [self._rows[topic] for topic in sorted(self._rows)]

    @property
    def note(self) -> str:
        """A sentence about topics that have no row."""
        if not self._others:
            return ""
        is_all = len(self._others) < self._rows_max
        return f"{'' if is_all else 'at least '}{len(self._others)} more topics"


class RecentPoints:
    """The values of a numeric field over time, of the first `topics_max` topics."""

    def __init__(self, field: str, topics_max: int, points_max: int) -> None:
        self.field = field
        self._topics_max = topics_max
        self._points_max = points_max
        self._newest: dict[str, float] = {}
        self._points: dict[str, deque[tuple[int, float]]] = {}

    def take(self, message: Message) -> None:
        """Note the newest value. Raises ModelError if the field is not a number."""
        field = message.model.fields_by_name.get(self.field)
        if field is None:
            return
        if field.type in ("text", "enum", "flags"):
            raise ModelError(f"a chart of {self.field!r}, which is a {field.type}", hint="choose a numeric field")
        value = getattr(message, self.field)
        if value is not None and (message.topic in self._newest or len(self._newest) < self._topics_max):
            self._newest[message.topic] = value

    def sample(self, now_ms: int) -> None:
        """Add the newest value of each topic as a point."""
        for topic, value in self._newest.items():
            points = self._points.setdefault(topic, deque(maxlen=self._points_max))
            points.append((now_ms, value))

    @property
    def series(self) -> list[Series]:
        return [Series(name=cell(topic), points=list(self._points[topic])) for topic in sorted(self._points)]
