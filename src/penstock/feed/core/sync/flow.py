"""Conversion of one source stream: immediate, or from a backlog while the stream is repaired or compared."""

from datetime import date
from enum import Enum, auto
from typing import Any

import numpy
from numpy.typing import NDArray

from penstock.base.calendar import every_day
from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.convert import SourceBatch
from penstock.feed.config import SynchroniserConfig
from penstock.feed.core.conversion import Checkpoint, Conversion
from penstock.feed.core.events import Announce, Paused, PublishConverted, SessionBegan, SyncInstruction
from penstock.feed.core.session_dates import SessionDates, new_day_index
from penstock.feed.core.sync.announcement import end_message
from penstock.feed.core.sync.source_backlog import SourceBacklog
from penstock.middleware.core.batch import Packable
from penstock.wire import OriginFlag
from penstock.wire.term import SESSION_TAG_SHIFT, session_tag

DAY_END_GRACE_NS = NS_PER_SECOND
"""Time from the end of the trading day to the end of its session, in which earlier messages may still arrive."""

LOST_MAX = 256
"""Maximum number of lost ranges kept for an announcement, the newest ones."""


class Mode(Enum):
    FLOWING = auto()
    PAUSING = auto()  # a few messages at a time, so that the active adapter gets ahead (SYNC-4)
    REPAIRING = auto()  # held until the active adapter's conversion state is here (SYNC-5, SYNC-9)
    BROKEN = auto()  # held until this active adapter has its new term
    AWAITING = auto()  # a new session: held until the active adapter has entered it, or this adapter is active


class Output:
    """The messages of one conversion; the converter owns their memory until keep() is called."""

    def __init__(self, converted: Packable) -> None:
        self.topic_data: bytes | NDArray[numpy.uint8] = converted.topic_data
        self.payloads: NDArray[numpy.uint8] = converted.payloads
        self.rows: NDArray[Any] = converted.rows

    def __len__(self) -> int:
        return len(self.rows)

    def keep(self) -> None:
        self.topic_data = bytes(self.topic_data)
        self.payloads = self.payloads.copy()
        self.rows = self.rows.copy()


class StreamFlow:
    """Owns the state of one source stream: its converter, its session, its backlog, its losses and checkpoints."""

    def __init__(
        self, stream_id: int, converter: Conversion, config: SynchroniserConfig, dates: SessionDates | None = None
    ) -> None:
        self.stream_id = stream_id
        self.converter = converter
        self._session: str | None = None
        self._mode = Mode.FLOWING
        self._is_sending = True
        self._stop_at: int | None = None
        self._lost: list[tuple[int, int]] = []
        """Source messages missing in the conversion since the last discontinuity."""
        self._is_damaged = False
        self._is_ended = False
        self._backlog = SourceBacklog(config.held_messages_max, config.held_bytes_max)
        self._resume_ns: int | None = None
        self._roll_ns: int | None = None
        self._end_ns: int | None = None
        self._dates = dates or SessionDates(every_day("UTC"))
        self._config = config
        self._start = 0
        self._is_synchronised = False
        self._checkpoints: dict[int, Checkpoint] = {}
        self._fresh: list[Checkpoint] = []
        self._newest: Output | None = None
        self._is_ending = False  # the session has ended, but not everything before its end has been converted

    # State, for reading

    @property
    def session(self) -> str | None:
        return self._session

    @property
    def mode(self) -> Mode:
        return self._mode

    @property
    def is_sending(self) -> bool:
        """False while the adapter is off-line."""
        return self._is_sending

    @property
    def is_damaged(self) -> bool:
        """True if the conversion state lacks lost messages, so that it cannot equal the active adapter's."""
        return self._is_damaged

    @property
    def is_ended(self) -> bool:
        """True if the session is over and its end was announced."""
        return self._is_ended

    @property
    def resume_ns(self) -> int | None:
        """The end of the current pause."""
        return self._resume_ns

    @property
    def roll_ns(self) -> int | None:
        """Messages received from this time on have a later trading date, even within the session."""
        return self._roll_ns

    @property
    def position(self) -> int:
        """The next source sequence number to convert."""
        return self.converter.next_source_sequence or self._start

    @property
    def held_from(self) -> int:
        """The oldest source position from which this adapter can continue."""
        return self._start if self._backlog.first is None else self._backlog.first

    def begin_event(self) -> None:
        """The driver has published the output of earlier events."""
        self._newest = None

    def is_immediate(self) -> bool:
        """True if source messages are converted as they arrive."""
        return self._mode is Mode.FLOWING and self._stop_at is None and not len(self._backlog)

    def stamp(self, term: int, *, is_synchronised: bool) -> None:
        self.converter.term = term
        self._is_synchronised = is_synchronised
        self.converter.flags = self.flags

    @property
    def flags(self) -> int:
        """The flags in the ORIGIN of every message."""
        tag = session_tag(self._session or "", self.trading_date) << SESSION_TAG_SHIFT
        return tag | (int(OriginFlag.SYNCHRONISED) if self._is_synchronised else 0)

    # Source messages

    def take(self, batch: SourceBatch) -> list[SyncInstruction]:
        if self.is_immediate():
            return self._convert(batch) + self._announce_end()
        self._backlog.add(batch)
        if self._mode is Mode.FLOWING:
            return self.drain()
        gone = self._backlog.shrink()
        if gone is not None:
            self._overflow(*gone)
        return []

    def drain(self) -> list[SyncInstruction]:
        """Convert the backlog, up to the stop if there is one."""
        instructions: list[SyncInstruction] = []
        while self._mode is Mode.FLOWING and len(self._backlog) and not self.is_at_stop():
            below = None if self._stop_at is None or self._stop_at <= self.held_from else self._stop_at
            batch = self._backlog.take(below=below)
            assert batch is not None
            instructions += self._convert(batch)
        return instructions + self._announce_end()

    def stop_before(self, source_sequence: int | None) -> None:
        """Convert no message from this source position on until the next call; None removes the stop."""
        self._stop_at = source_sequence

    def is_at_stop(self) -> bool:
        return self._stop_at is not None and self.position == self._stop_at

    def lose(self, first: int, last: int) -> None:
        """These source messages are lost."""
        self._note_loss(first, last)
        self._start = last + 1
        self._backlog.clear()
        self.forget_checkpoints()
        if self._mode in (Mode.FLOWING, Mode.PAUSING):
            self.converter.skip_to(last + 1)

    def is_change(self, event: SessionBegan) -> bool:
        """True if another session begins; False if the current session was joined again."""
        return event.is_reset or event.name != self._session

    def begin_session(self, event: SessionBegan) -> None:
        is_first, is_new = self._session is None, self.is_change(event)
        self._session, self._start = event.name, event.first
        is_missed = self._mode in (Mode.BROKEN, Mode.AWAITING) or event.is_continued  # may contain definitions
        if is_missed and self._backlog.first is not None:
            self._note_loss(self._backlog.first, self._backlog.first + len(self._backlog) - 1)
        self._backlog.clear()
        self._is_ended = self._is_ending = False
        if is_new:
            self.forget_checkpoints()
            day = event.trading_date or self._date_of(event, is_first=is_first)
            self.converter.new_session(event.name, day, is_continued=event.is_continued)
            self.converter.skip_to(event.first)
            self._note_date()
        self.converter.flags = self.flags

    def _date_of(self, event: SessionBegan, *, is_first: bool) -> date | None:
        return self._dates.date_of(
            self.converter.trading_date, is_first=is_first, is_reset=event.is_reset, receive_ns=event.receive_ns
        )

    def _note_date(self) -> None:
        self._roll_ns = self._dates.roll_ns(self.converter.trading_date)
        self._end_ns = self._dates.end_ns(self.converter.trading_date)

    @property
    def trading_date(self) -> str:
        """The session's trading date, as 2026-01-30; empty if unknown."""
        found = self.converter.trading_date
        return "" if found is None else found.isoformat()

    def new_day_at(self, batch: SourceBatch) -> int:
        """The index of the first message in the batch with a later trading date; -1 if there is none."""
        return -1 if self._session is None else new_day_index(batch, self._roll_ns, self.position)

    def end_session(self) -> list[SyncInstruction]:
        """The session has ended by the source or by the calendar. Only the first of several ends counts."""
        self._is_ending = self._session is not None and not self._is_ended
        return self._announce_end()

    @property
    def day_end_ns(self) -> int | None:
        """The end of the session by the calendar; None while unknown, or after the end."""
        is_open = self._session is not None and not self._is_ended and not self._is_ending
        return None if self._end_ns is None or not is_open else self._end_ns + DAY_END_GRACE_NS

    def _announce_end(self) -> list[SyncInstruction]:
        """Announce the end of the session when everything before it has been converted."""
        if self.converter.is_over and self._session is not None and not self._is_ended:
            self._is_ending = True
        if not self._is_ending or self._mode is not Mode.FLOWING or len(self._backlog):
            return []
        self._is_ending, self._is_ended = False, True
        message = end_message(
            self.stream_id,
            self.converter.term,
            self.flags,
            number=self.converter.next_message_sequence - 1,
            source_sequence=self.position,
            session=self._session or "",
            trading_date=self.trading_date,
        )
        return [Announce(self.stream_id, message)] if self._is_sending else []

    def _overflow(self, first: int, last: int) -> None:
        """The oldest messages of the backlog were dropped. If an image is awaited, it may include them."""
        if self._mode is Mode.REPAIRING:
            return
        self._note_loss(first, last)
        self.forget_checkpoints()
        if self._mode is Mode.PAUSING:
            self.converter.skip_to(last + 1)

    def _note_loss(self, first: int, last: int) -> None:
        self._is_damaged = True
        self._lost.append((first, last))
        del self._lost[:-LOST_MAX]

    def _convert(self, batch: SourceBatch) -> list[SyncInstruction]:
        if self._newest is not None:
            self._newest.keep()
        output = self._newest = Output(self.converter.convert(batch))
        self._collect()
        return [PublishConverted(self.stream_id, output)] if self._is_sending and len(output) else []

    # Checkpoints

    def _collect(self) -> None:
        for checkpoint in self.converter.take_checkpoints():
            self._fresh.append(checkpoint)
            self._checkpoints[checkpoint.next_source_sequence] = checkpoint
        while len(self._checkpoints) > self._config.checkpoints_max:
            self._checkpoints.pop(next(iter(self._checkpoints)))
        del self._fresh[: -self._config.checkpoints_max]

    def advanced(self) -> list[SyncInstruction]:
        """The driver has converted messages itself."""
        self._collect()
        return self._announce_end()

    def fresh_checkpoints(self) -> list[Checkpoint]:
        """The checkpoints taken since the last call."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def checkpoint(self, source_sequence: int) -> Checkpoint | None:
        return self._checkpoints.get(source_sequence)

    def newest_checkpoints(self, count: int) -> list[Checkpoint]:
        return list(self._checkpoints.values())[-count:]

    def forget_checkpoints(self) -> None:
        """Drop checkpoints that cannot be compared with the following ones."""
        self._collect()
        self._checkpoints.clear()
        self._fresh.clear()

    # Corrections by the follower

    def rename_session(self, name: str) -> None:
        """The active adapter knows the session by another name."""
        self._session = name
        self.forget_checkpoints()

    def renumber(self, message_sequence: int) -> None:
        """Number the next message as the active adapter does."""
        self.converter.next_message_sequence = message_sequence
        self.forget_checkpoints()

    def forget_losses(self) -> None:
        """Remove the losses so far from the next announcement."""
        self._lost.clear()

    def take_losses(self) -> list[tuple[int, int]]:
        """Return the ranges of lost source messages for a report; following messages are complete."""
        lost, self._lost = self._lost, []
        self._is_damaged = False
        return lost

    def send(self, *, is_sending: bool) -> None:
        """Set whether converted messages are published; an off-line adapter only converts."""
        self._is_sending = is_sending

    # Modes

    def hold(self, mode: Mode) -> None:
        self._mode, self._resume_ns = mode, None

    def enter_flowing(self) -> None:
        """Continue with the backlog, over lost messages if there are any."""
        self._mode, self._resume_ns = Mode.FLOWING, None
        if self.held_from > self.position:
            self.converter.skip_to(self.held_from)
            self.forget_checkpoints()

    def take_over(self, source_sequence: int, message_sequence: int) -> None:
        """Continue with the conversion state and the numbers of the active adapter."""
        self.converter.skip_to(source_sequence)
        self.converter.next_message_sequence = message_sequence
        self.forget_checkpoints()
        self._backlog.drop_below(source_sequence)
        self._is_damaged = False
        self._lost.clear()
        self._mode, self._resume_ns, self._start = Mode.FLOWING, None, source_sequence
        self._note_date()
        self.converter.flags = self.flags

    def pause(self, now_ns: int) -> list[SyncInstruction]:
        self._mode = Mode.PAUSING
        self._resume_ns = now_ns + self._config.pause_ms * NS_PER_MS
        return [Paused(self.stream_id, self._resume_ns)]

    def resume(self, now_ns: int) -> list[SyncInstruction]:
        """After a pause: convert a few messages, then pause again."""
        batch = self._backlog.take(count_max=self._config.pause_every)
        instructions = self._convert(batch) if batch is not None else []
        return instructions + self.pause(now_ns)
