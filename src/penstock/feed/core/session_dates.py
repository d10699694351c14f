"""The trading date of a session: from the feed or from the venue's calendar, never from the host's local date.

    a configured date (a replay)    is that of the first session; a session of another name has the next trading date
    a receive time                  has a trading date in the calendar, in the venue's time zone
    neither                         a session of another name has the next trading date

If a feed continues its session on another trading date, the day ends by the calendar at roll_ns(). Without a calendar
of the venue, only the feed's own sessions begin a day, except where event times need the current date.
"""

from datetime import date

from penstock.base.calendar import TradingCalendar
from penstock.convert import Plan, SourceBatch

RECEIVE_NS_MAX = 2**63 - 1


class SessionDates:
    """Dates of the sessions of one feed. `configured` is the trading date of its first session, for replays;
    `counts_from_midnight` is True if the feed's times count from midnight of the trading date."""

    def __init__(
        self, calendar: TradingCalendar, configured: date | None = None, *, counts_from_midnight: bool = False
    ) -> None:
        self.calendar = calendar
        self.configured = configured
        self.counts_from_midnight = counts_from_midnight

    @staticmethod
    def of_plan(plan: Plan, configured: date | None = None) -> "SessionDates":
        return SessionDates(plan.calendar, configured, counts_from_midnight=plan.counts_from_midnight)

    def date_of(
        self, current: date | None, *, is_first: bool, is_reset: bool = False, receive_ns: int = 0
    ) -> date | None:
        """Return the trading date of a session that follows one of the date `current`; None if it cannot be determined.

        `receive_ns` is the receive time of its first datagram (0: unknown); `is_reset` means that the source
        restarted its numbers under the same name.
        """
        if self.configured is None and 0 < receive_ns <= RECEIVE_NS_MAX:
            return self.calendar.trading_date(receive_ns)
        if is_first:
            return self.configured or current
        return current if current is None or is_reset else self.calendar.next_date(current)

    def roll_ns(self, current: date | None) -> int | None:
        """The receive time from which on messages have a later trading date than `current`; None: never.

        Without a calendar of the venue a roll would clear books at an arbitrary midnight. It is done only for times
        that count from midnight, which would otherwise be a day behind.
        """
        if current is None or self.configured is not None:
            return None
        if self.calendar.is_fallback and not self.counts_from_midnight:
            return None
        return self.calendar.ends_ns(current)

    def end_ns(self, current: date | None) -> int | None:
        """The end of a session of the date `current` by the venue's calendar; None without a calendar."""
        return None if self.calendar.is_fallback else self.roll_ns(current)


def new_day_index(batch: SourceBatch, roll_ns: int | None, next_sequence: int) -> int:
    """The index of the first new message received at `roll_ns` or later; -1 if there is none."""
    count = len(batch)
    if roll_ns is None or not count or batch.receive_ns(count - 1) < roll_ns:
        return -1
    return batch.find_received(roll_ns, next_sequence)
