"""Notification filters: the changes of a record that wake an application (docs/how-to/records.md).

    NotificationFilter(fields=("bid_price",), moved={"bid_price": 0.05, "bid_size": "10%"}, per_second=4)

A filter compares each record with the last one that woke the application, so that many small moves count as one large
move.
"""

import datetime as dt
import re
import zoneinfo
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Annotated

import msgspec

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import ConfigurationError
from penstock.model import Field, MessageModel

RATE_MAX = 1_000_000.0
PERIOD_S_MAX = 86_400.0
DAYS_AHEAD_MAX = 8
SESSION = re.compile(r"(\d\d:\d\d)-(\d\d:\d\d)(?: (\S+))?")
NO_NUMBER = ("text", "enum", "flags")
WEEKDAYS = (0, 1, 2, 3, 4)

Rate = Annotated[float, msgspec.Meta(ge=0, le=RATE_MAX)]
Period = Annotated[float, msgspec.Meta(ge=0, le=PERIOD_S_MAX)]


class TradingSession(msgspec.Struct, frozen=True):
    """From `open` until just before `close`, on some days of the week (0 is Monday), in a time zone. A session that
    closes before it opens spans midnight, and belongs to the day on which it opens."""

    open: str
    close: str
    zone: str = "UTC"
    days: tuple[int, ...] = WEEKDAYS

    @staticmethod
    def parse(text: str) -> "TradingSession":
        """Parse "09:30-16:00 America/New_York"; the default time zone is UTC."""
        found = SESSION.fullmatch(text)
        if found is None:
            raise ConfigurationError(f"{text!r} is not a session", hint="write 09:30-16:00 America/New_York")
        return TradingSession(found[1], found[2], found[3] or "UTC").checked()

    def checked(self) -> "TradingSession":
        try:
            opens, closes = dt.time.fromisoformat(self.open), dt.time.fromisoformat(self.close)
            zoneinfo.ZoneInfo(self.zone)
        except (ValueError, zoneinfo.ZoneInfoNotFoundError) as error:
            raise ConfigurationError(
                f"invalid session from {self.open} to {self.close} in {self.zone}: {error}"
            ) from None
        if opens == closes or not self.days or not all(0 <= day <= 6 for day in self.days):
            raise ConfigurationError(
                "a session needs different times of open and close, and at least one day",
                hint="days are 0 (Monday) to 6",
            )
        return self

    def window(self, now_ns: int) -> tuple[int, int]:
        """Begin and end of the current or next session, in nanoseconds since 1970."""
        zone = zoneinfo.ZoneInfo(self.zone)
        opens, closes = dt.time.fromisoformat(self.open), dt.time.fromisoformat(self.close)
        day = dt.datetime.fromtimestamp(now_ns // NS_PER_SECOND, zone).date() - dt.timedelta(1)
        for _ in range(DAYS_AHEAD_MAX + 1):
            last = day + dt.timedelta(closes < opens)
            begin_ns, end_ns = (_ns(dt.datetime.combine(*each, zone)) for each in ((day, opens), (last, closes)))
            if day.weekday() in self.days and begin_ns < end_ns and now_ns < end_ns:
                return begin_ns, end_ns
            day += dt.timedelta(1)
        raise ConfigurationError(f"no session comes within {DAYS_AHEAD_MAX} days")


def _ns(moment: dt.datetime) -> int:
    return int(moment.timestamp()) * NS_PER_SECOND


class NotificationFilter(msgspec.Struct, frozen=True):
    """The updates of a record that are reported. All given conditions must hold; without conditions every update
    passes."""

    fields: tuple[str, ...] = ()
    """At least one of these fields has changed."""

    moved: dict[str, float | str] = {}
    """At least one of these values has moved by more than this amount, or by more than this percentage ("1.5%"). A
    value that appears or disappears has moved."""

    per_second: Rate = 0.0
    """Maximum reports per second for each record; an earlier change is reported later if it still passes. 0: no
    limit."""

    at_least_every: Period = 0.0
    """Each record is reported again after this number of seconds, even if unchanged. 0: never."""

    session: TradingSession | None = None
    """Changes outside of the session are not reported, not even later."""

    def checked(self) -> "NotificationFilter":
        """Raise ConfigurationError for contradictory or invalid values."""
        if not 0 <= self.per_second <= RATE_MAX or not 0 <= self.at_least_every <= PERIOD_S_MAX:
            raise ConfigurationError(
                f"{self.per_second} per second, at least every {self.at_least_every} s",
                hint=f"up to {RATE_MAX:.0f} per second, up to {PERIOD_S_MAX:.0f} s",
            )
        if self.per_second and 0 < self.at_least_every < 1 / self.per_second:
            raise ConfigurationError(
                f"at least every {self.at_least_every} s contradicts the limit of {self.per_second} per second"
            )
        for limit in self.moved.values():
            parse_limit(limit)
        if self.session is not None:
            self.session.checked()
        return self

    def can_pass(self, model: MessageModel) -> bool:
        """True if records of this model have the filter's fields."""
        names = model.fields_by_name
        return all(not wanted or any(name in names for name in wanted) for wanted in (self.fields, self.moved))

    def fields_in(self, model: MessageModel) -> list[str]:
        """The filter's `fields` that the model has."""
        return [name for name in self.fields if name in model.fields_by_name]

    def moves_in(self, model: MessageModel) -> list[tuple[str, float, bool]]:
        """Return field, limit in its own integers (or as a float), and True if the limit is a percentage."""
        return [self._move(model.fields_by_name[name]) for name in self.moved if name in model.fields_by_name]

    def _move(self, field: Field) -> tuple[str, float, bool]:
        if field.type in NO_NUMBER:
            raise ConfigurationError(f"{field.name!r} is a {field.type}, which cannot move by this amount")
        limit, is_share = parse_limit(self.moved[field.name])
        return field.name, float(limit if is_share else limit.scaleb(field.decimals)), is_share


def notification_filter(
    fields: Sequence[str] = (),
    moved: Mapping[str, float | str] | None = None,
    per_second: float = 0.0,
    at_least_every: float = 0.0,
    session: "TradingSession | str | None" = None,
) -> NotificationFilter:
    """Make and check a filter. A session may be a text for TradingSession.parse()."""
    window = TradingSession.parse(session) if isinstance(session, str) else session
    names = (fields,) if isinstance(fields, str) else tuple(fields)  # a single name, given as a string
    return NotificationFilter(names, dict(moved or {}), per_second, at_least_every, window).checked()


def parse_limit(limit: float | str) -> tuple[Decimal, bool]:
    """Return the limit, and True if it is a percentage."""
    text = str(limit).strip()
    try:
        value = Decimal(text.removesuffix("%"))
    except InvalidOperation:
        value = Decimal("NaN")
    if not value.is_finite() or value < 0:
        raise ConfigurationError(f"{limit!r} is not a limit", hint="write 0.05 or 1.5%")
    return value, text.endswith("%")
