"""Slices of raw feeds: stretches of a recorded feed that any process can read, and convert, on its own.

    for piece in plan_slices(...):                        # feedindex.py
        reader = FeedReader(piece, models=["trade"])
        for rows in reader:                               # MessageRows, each good until the next
            ...
        reader.bad, reader.account                        # what could not be converted, and what became of everything

A slice begins where its converter's state image says. What comes out, numbers included, is what a live adapter
publishes for the same input: both run the same plan in the same compiled code, from the same state.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from penstock.base.crc32c import crc32c
from penstock.base.errors import ConfigurationError, FeedIndexError, PenstockError
from penstock.base.extensions import load_modules
from penstock.capture.rows import MessageRows, rows_of_converted
from penstock.convert import Converter, ConverterTable, Plan, TableChoice
from penstock.convert.core.document import QuantityDecimals
from penstock.feed.core.lines.events import LineInstruction, SessionStarted, SourceLost, SourceReady
from penstock.feed.core.session_dates import SessionDates
from penstock.feed.formats._framing import Blocks
from penstock.feed.formats.stream import Damage
from penstock.feed.recorded.conversion import RecordedConversion
from penstock.feed.recorded.dates import capture_begins_ns, replay_date
from penstock.feed.recorded.files import FileFormat, open_file, open_source
from penstock.feed.recorded.tape import read_tape

READ_SIZE = 1024 * 1024
"""Bytes of source messages that are converted at a time: enough that what is done per batch does not count."""

BAD_MAX = 100_000
"""Bad messages of one slice that are kept in full; a slice with more says how many more."""


CONVERTED = ("excess", "decimals")
"""Causes of unmatched messages that are converted all the same."""


class FeedOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a recorded feed is to be read; what is not told is seen from the file."""

    file_format: FileFormat | None = None
    framing: str = ""
    destinations: tuple[str, ...] = ()
    has_header: bool = False
    modules: tuple[str, ...] = ()
    """With framings of one's own: files that every worker can read, or modules that it can import."""


class Conversion(msgspec.Struct, frozen=True, omit_defaults=True):
    """How its messages are to be converted. The table is a shipped one's name, or a TOML file; an empty `venue` or
    `prefix` keeps the table's own."""

    table: str
    stream_id: int = 1
    trading_date: str = ""
    venue: str = ""
    prefix: str = ""
    quantity_decimals: QuantityDecimals | None = None
    calendar: str = ""
    """A shipped trading calendar by its name, or a TOML file that all workers can read; empty keeps the table's own."""
    modules: tuple[str, ...] = ()
    """With converter functions or tables of one's own, besides those that the table names."""

    def load(self) -> tuple[ConverterTable, Plan]:
        """The table and its plan, which is compiled once in a process."""
        load_modules(self.modules)
        choice = TableChoice(
            name=self.table,
            venue=self.venue,
            prefix=self.prefix,
            quantity_decimals=self.quantity_decimals,
            calendar=self.calendar,
        )
        return _load(choice, _changed_ns(self.table), _changed_ns(self.calendar))

    @property
    def needs_date(self) -> bool:
        """True if times count from midnight and no date is given."""
        _, plan = self.load()
        return self.day() is None and plan.counts_from_midnight

    def dated(self, path: Path) -> Conversion:
        """The same conversion with the date from the file's name, if a date is needed and not given.

        A capture gets no date: its receive times date each of its sessions, as they do in an adapter.
        """
        if not self.needs_date:
            return self
        found = replay_date(path, self.load()[1])
        return self if found is None else msgspec.structs.replace(self, trading_date=found.isoformat())

    def checked(self, path: Path) -> tuple[ConverterTable, Plan]:
        """The table and its plan, if the table has what it needs: where times count from midnight, a date or the
        receive times of a capture."""
        table, plan = self.load()
        if self.needs_date and capture_begins_ns(path) is None:
            raise ConfigurationError(
                f"the table {table.name!r} needs a date: the feed's times count from midnight",
                where="date",
                hint="like 2019-01-30",
            )
        return table, plan

    def day(self) -> date | None:
        try:
            return date.fromisoformat(self.trading_date) if self.trading_date else None
        except ValueError:
            raise ConfigurationError(
                f"{self.trading_date!r} is no date", where="date", hint="like 2019-01-30"
            ) from None


def _changed_ns(name: str) -> int:
    """When a TOML file was changed; 0 for a shipped document."""
    path = Path(name)
    return path.stat().st_mtime_ns if path.suffix == ".toml" and path.exists() else 0


@lru_cache(maxsize=16)
def _load(choice: TableChoice, table_changed_ns: int, calendar_changed_ns: int) -> tuple[ConverterTable, Plan]:
    table = ConverterTable.find(choice)
    return table, table.compile()


class StartState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a converter is before the first message of a slice."""

    session: str
    next_source: int
    next_message: int
    image: str
    """The file with the state's image."""
    size: int
    """Its bytes."""


class FeedSlice(msgspec.Struct, frozen=True, omit_defaults=True, tag="feed"):
    """A stretch of a recorded feed."""

    path: str
    """The file, as it was given."""
    number: int
    options: FeedOptions
    data: str = ""
    """The tape that `offset` counts in; empty: the file itself, whose messages have their sizes before them."""
    offset: int = 0
    size: int = -1
    """Bytes; -1: the whole file, of any format, with nothing known of it."""
    messages: int = -1
    first_sequence: int = 1
    checksum: int = 0
    """Of the bytes, if they are a tape's."""
    session: str = ""
    damages: tuple[Damage, ...] = ()
    damages_left_out: int = 0
    conversion: Conversion | None = None
    start: StartState | None = None
    """None: the feed begins here."""

    @property
    def name(self) -> str:
        """For people, and to tell slices of a run apart."""
        return f"{self.path}#{self.number}"


class BadMessage(msgspec.Struct, frozen=True):
    """A source message that was not converted, or a stretch of the file that has none."""

    position: int
    """Bytes from the start of the file; in captures and texts, the number of the message."""
    code: str
    reason: str
    excerpt: bytes = b""


class FeedAccount(msgspec.Struct, omit_defaults=True):
    """What became of the source messages of a slice; `taken` is the sum of what the next four say."""

    taken: int = 0
    converted: int = 0
    malformed: dict[str, int] = {}
    unmatched: dict[str, int] = {}
    """Those that refer to something that was never received: orders, trades, instruments."""
    repeated: int = 0
    lost: int = 0
    """Messages that the source numbered and the file does not have; they are in nothing else."""
    damages: int = 0
    made: int = 0
    """Application messages that came of those converted, of all models."""

    @property
    def is_balanced(self) -> bool:
        return (
            self.taken == self.converted + sum(self.malformed.values()) + sum(self.unmatched.values()) + self.repeated
        )


SourceEvent: TypeAlias = SessionStarted | SourceReady | SourceLost


class SourceEvents:
    """The source messages of a slice, with what else its source says. `damages` are told at the end."""

    def __init__(self, piece: FeedSlice) -> None:
        self.piece = piece
        self.base = 0
        """What offsets of the batch at hand count from, in the file."""
        self.damages: list[Damage] = list(piece.damages)
        self.damages_left_out = piece.damages_left_out

    def __iter__(self) -> Iterator[LineInstruction]:
        if self.piece.size < 0:
            return self._of_file()
        return self._of_tape() if self.piece.data else self._of_blocks()

    @property
    def position(self) -> int:
        """Bytes of the slice that came before the batch at hand."""
        return self.base - self.piece.offset if self.has_offsets else 0

    @property
    def has_offsets(self) -> bool:
        """Whether base + offset of a message is its place in the file."""
        return self.piece.size >= 0 and not self.piece.data

    def _of_file(self) -> Iterator[LineInstruction]:
        with open_as_told(Path(self.piece.path), self.piece.options) as source:
            yield from source
            self.damages = list(source.damages)
            self.damages_left_out = source.damages.total - len(source.damages)

    def _of_tape(self) -> Iterator[LineInstruction]:
        data = _read_all(self.piece.data, self.piece.offset, self.piece.size)
        if crc32c(data) != self.piece.checksum:
            raise FeedIndexError("the tape is damaged", where=self.piece.data, hint=REMAKE)
        yield from read_tape(data)

    def _of_blocks(self) -> Iterator[LineInstruction]:
        if self.piece.start is None:
            yield SessionStarted(self.piece.session, self.piece.first_sequence)
        blocks = Blocks()
        buffer = bytearray(READ_SIZE)
        sequence, at, end = self.piece.first_sequence, self.piece.offset, self.piece.offset + self.piece.size
        with open_file(Path(self.piece.path)) as file:
            while at < end:
                view = memoryview(buffer)[: end - at]
                size = os.preadv(file.fileno(), [view], at)
                batch = blocks.batch(view[:size], sequence)
                if not blocks.consumed:
                    raise FeedIndexError(
                        "the file is not what it was when it was indexed", where=self.piece.path, hint=REMAKE
                    )
                self.base = at
                sequence += len(batch)
                at += blocks.consumed
                yield SourceReady(batch)


REMAKE = "the index is made again when its directory is deleted"


def open_as_told(path: Path, options: FeedOptions) -> Any:
    load_modules(options.modules)
    return open_source(
        path,
        file_format=options.file_format,
        framing=options.framing or None,
        destinations=options.destinations,
        has_header=options.has_header,
    )


class FeedConverter(RecordedConversion):
    """The conversion of a slice, which begins with the feed or with a state image."""

    def __init__(self, plan: Plan, conversion: Conversion, start: StartState | None = None) -> None:
        day = conversion.day()
        converter = Converter(plan, conversion.stream_id, trading_date=day, seed=secrets.randbits(64))
        super().__init__(converter, SessionDates.of_plan(plan, day))
        if start is not None:
            self._begin_at(start)

    def _begin_at(self, start: StartState) -> None:
        image = _read_all(start.image, 0, start.size)
        try:
            self.converter.state.install(_chunks(image))
        except PenstockError as error:
            raise FeedIndexError(f"the state image is damaged: {error.what}", where=start.image, hint=REMAKE) from None
        self.name_session(start.session)
        self.converter.skip_to(start.next_source)
        self.converter.next_message_sequence = start.next_message


class FeedReader:
    """The application messages of a slice; `models` names those that are wanted (None: all)."""

    def __init__(self, piece: FeedSlice, models: Iterable[str] | None = None) -> None:
        if piece.conversion is None:
            raise ConfigurationError("no converter table is told", where=piece.path, hint="table=itch, for example")
        self.piece = piece
        _, self.plan = piece.conversion.load()
        self.models = {output.model.name: output.model for output in self.plan.outputs}
        self.bad: list[BadMessage] = []
        self.account = FeedAccount()
        self._bad_left_out = 0
        self._events = SourceEvents(piece)
        self._feed = FeedConverter(self.plan, piece.conversion, piece.start)
        converter = self._feed.converter
        converter.on_each_fault = self._note
        if models is not None:
            converter.make_only({self.models[name].id for name in check_models(models, self.plan)})

    def __iter__(self) -> Iterator[MessageRows]:
        converter = self._feed.converter
        first = converter.next_message_sequence
        for event in self._events:
            for batch in self._feed.take(event):
                self.account.taken += len(batch)
                rows = rows_of_converted(converter.convert(batch))
                if len(rows):
                    yield rows
        self.account.made = converter.next_message_sequence - first
        self._close_account()

    def _note(self, cause: str, route: int, sequence: int, offset: int, size: int, excerpt: bytes, why: Any) -> None:
        if len(self.bad) >= BAD_MAX:
            self._bad_left_out += 1
            return
        what = f"message {sequence} ({self.plan.messages[route]})" if route >= 0 else f"message {sequence}"
        reason = f"{what} of {size} bytes: {REASONS.get(str(cause), str(cause))}" + (f": {why!r}" if why else "")
        position = self._events.base + offset if self._events.has_offsets else sequence
        self.bad.append(BadMessage(position, str(cause), reason, excerpt))

    def _close_account(self) -> None:
        account, counters = self.account, self._feed.converter.counters
        account.malformed = {str(cause): n for cause, n in counters.by_cause("source_messages_malformed").items() if n}
        unmatched = counters.by_cause("source_messages_unmatched")
        account.unmatched = {str(cause): n for cause, n in unmatched.items() if n and cause not in CONVERTED}
        account.repeated = self._feed.converter.repeated_count()
        account.converted = (
            sum(counters.by_cause("source_messages").values())
            - sum(account.unmatched.values())
            - sum(n for cause, n in account.malformed.items() if cause != "kind")
        )
        account.lost = self._feed.lost
        account.damages = len(self._events.damages) + self._events.damages_left_out
        for damage in self._events.damages:
            self.bad.append(BadMessage(damage.offset, "damaged", damage.what, bytes.fromhex(damage.excerpt)))
        left_out = self._bad_left_out + self._events.damages_left_out
        if left_out:
            self.bad.append(BadMessage(-1, "left-out", f"{left_out} more that are not listed"))


REASONS = {
    "kind": "no message of this format has this type",
    "length": "a wrong number of bytes or columns",
    "number": "a text is no number",
    "range": "a number is too great or too small for its field",
    "missing": "a value is not there",
    "enumeration": "a value is none of those in the table's map",
    "text": "a text is too long, or no UTF-8",
    "function": "a function of the table failed",
    "value": "the book refuses it",
    "state_limit": "the conversion state is full",
}


def check_models(models: Iterable[str], plan: Plan) -> list[str]:
    """Names of models that the plan makes; another is refused with the list of them."""
    known = sorted({output.model.name for output in plan.outputs})
    names = list(models)
    for name in names:
        if name not in known:
            raise ConfigurationError(
                f"the table {plan.name!r} makes no {name!r}", where="model", hint=f"it makes: {', '.join(known)}"
            )
    return names


def _read_all(path: str, offset: int, size: int) -> bytes:
    try:
        with Path(path).open("rb") as file:
            file.seek(offset)
            data = file.read(size)
    except OSError as error:
        raise FeedIndexError(f"cannot be read: {error.strerror}", where=path, hint=REMAKE) from None
    if len(data) != size:
        raise FeedIndexError(f"has {len(data)} of {size} bytes", where=path, hint=REMAKE)
    return data


def _chunks(image: bytes) -> Iterator[memoryview]:
    """Chunks of a state image, one after the other, each with its size in 8 bytes before it."""
    view = memoryview(image)
    while view:
        size = int.from_bytes(view[:8], "little")
        yield view[8 : 8 + size]
        view = view[8 + size :]
