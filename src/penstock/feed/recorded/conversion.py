"""The conversion of a recorded feed: sessions and trading days begin where an adapter begins them."""

from collections.abc import Iterator

import msgspec

from penstock.convert import Converter, SourceBatch
from penstock.feed.core.lines.events import LineInstruction, SessionStarted, SourceLost, SourceReady
from penstock.feed.core.lines.session_names import after_reset
from penstock.feed.core.session_dates import SessionDates, new_day_index
from penstock.wire.term import SESSION_TAG_SHIFT, session_tag


class RecordedConversion:
    """A converter that gets a source's events in the same way as in an adapter."""

    def __init__(self, converter: Converter, dates: SessionDates) -> None:
        self.converter = converter
        self.session: str | None = None
        self.lost = 0
        """Number of messages missing in the recording, by the source's numbers."""
        self._dates = dates

    def take(self, event: LineInstruction) -> Iterator[SourceBatch]:
        """The messages to convert next, if the event has any; each batch is converted before the next is taken."""
        if isinstance(event, SourceReady):
            yield from self._by_days(event.batch)
        elif isinstance(event, SourceLost):
            self.lost += event.last - event.first + 1
            self.converter.skip_to(event.last + 1)
        elif isinstance(event, SessionStarted) and (event.is_reset or event.name != self.session):
            if event.name == self.session:  # a day that began by the calendar already has the name of the reset
                event = msgspec.structs.replace(event, name=after_reset(event.name))
            self._begin_session(event)

    def name_session(self, name: str) -> None:
        """Set the session, after the converter has its trading date."""
        self.session = name
        day = self.converter.trading_date
        self.converter.flags = session_tag(name, "" if day is None else day.isoformat()) << SESSION_TAG_SHIFT

    def _begin_session(self, event: SessionStarted, *, is_continued: bool = False) -> None:
        day = self._dates.date_of(
            self.converter.trading_date,
            is_first=self.session is None,
            is_reset=event.is_reset,
            receive_ns=event.receive_ns,
        )
        self.converter.new_session(event.name, day, is_continued=is_continued)
        self.converter.skip_to(event.first)
        self.name_session(event.name)

    def _by_days(self, batch: SourceBatch) -> Iterator[SourceBatch]:
        """Split a batch where the trading day ends by the calendar within a session."""
        while (at := self._new_day_at(batch)) >= 0:
            if at:
                yield batch.part(0, at)
            batch = batch.part(at, len(batch))
            first = next(sequence for sequence, _ in batch)
            event = SessionStarted(after_reset(self.session or ""), first, True, batch.receive_ns(0))
            self._begin_session(event, is_continued=True)
        if len(batch):
            yield batch

    def _new_day_at(self, batch: SourceBatch) -> int:
        roll_ns = None if self.session is None else self._dates.roll_ns(self.converter.trading_date)
        return new_day_index(batch, roll_ns, self.converter.next_source_sequence)
