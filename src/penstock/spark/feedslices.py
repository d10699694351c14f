"""Slices of recorded feeds: stretches of a feed that any process can read and convert independently.

    for piece in plan_slices(...):                        # feedindex.py
        reader = FeedReader(piece, models=["trade"])
        for rows in reader:                               # MessageRows, each valid until the next
            ...
        reader.bad, reader.account                        # messages that failed, and the counts of all messages

The conversion of a slice starts from the slice's state image. Its output, sequence numbers included, equals what a live
adapter publishes for the same input, because both run the same plan in the same compiled code from the same state.
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
from penstock.capture.core.rows import MessageRows, rows_of_converted
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
"""Bytes of source messages that are converted at a time; large enough to make the cost per batch negligible."""

BAD_MAX = 100_000
"""Bad messages of one slice that are kept in full; further ones are only counted."""


CONVERTED = ("excess", "decimals")
"""Causes of unmatched messages that are converted nevertheless."""


class FeedOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Options for reading a recorded feed; a missing option is detected from the file."""

    file_format: FileFormat | None = None
    framing: str = ""
    destinations: tuple[str, ...] = ()
    has_header: bool = False
    modules: tuple[str, ...] = ()
    """User-defined framings: files that every worker can read, or modules that every worker can import."""


class Conversion(msgspec.Struct, frozen=True, omit_defaults=True):
    """Options for converting the feed's messages. The table is the name of a shipped table or a TOML file; an empty
    `venue` or `prefix` keeps the table's own.
    """

    table: str
    stream_id: int = 1
    trading_date: str = ""
    venue: str = ""
    prefix: str = ""
    quantity_decimals: QuantityDecimals | None = None
    calendar: str = ""
    """The name of a shipped trading calendar, or a TOML file that all workers can read; empty keeps the table's own."""
    modules: tuple[str, ...] = ()
    """User-defined converter functions or tables, in addition to those that the table names."""

    def load(self) -> tuple[ConverterTable, Plan]:
        """Return the table and its plan; a process compiles each plan once."""
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
        """Return this conversion with the date from the file's name, if a date is needed and not given.

        A capture gets no date: the receive times of a capture date each of its sessions, as in an adapter.
        """
        if not self.needs_date:
            return self
        found = replay_date(path, self.load()[1])
        return self if found is None else msgspec.structs.replace(self, trading_date=found.isoformat())

    def checked(self, path: Path) -> tuple[ConverterTable, Plan]:
        """Return the table and its plan. Refuse a table whose times count from midnight, if neither a date nor the
        receive times of a capture are available.
        """
        table, plan = self.load()
        if self.needs_date and capture_begins_ns(path) is None:
            raise ConfigurationError(
                f"the table {table.name!r} needs a date: its times count from midnight",
                where="date",
                hint="like 2019-01-30",
            )
        return table, plan

    def day(self) -> date | None:
        try:
            return date.fromisoformat(self.trading_date) if self.trading_date else None
        except ValueError:
            raise ConfigurationError(
                f"{self.trading_date!r} is not a date", where="date", hint="use the form 2019-01-30"
            ) from None


def _changed_ns(name: str) -> int:
    """Return the modification time of a TOML file; 0 for a shipped document."""
    path = Path(name)
    return path.stat().st_mtime_ns if path.suffix == ".toml" and path.exists() else 0


@lru_cache(maxsize=16)
def _load(choice: TableChoice, table_changed_ns: int, calendar_changed_ns: int) -> tuple[ConverterTable, Plan]:
    table = ConverterTable.find(choice)
    return table, table.compile()


class StartState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a converter before the first message of a slice."""

    session: str
    next_source: int
    next_message: int
    image: str
    """The file with the state image."""
    size: int
    """Size of the image in bytes."""


class FeedSlice(msgspec.Struct, frozen=True, omit_defaults=True, tag="feed"):
    """A stretch of a recorded feed."""

    path: str
    """The file, as given."""
    number: int
    options: FeedOptions
    data: str = ""
    """The tape that `offset` refers to; empty: the file itself, which holds length-prefixed messages."""
    offset: int = 0
    size: int = -1
    """Size in bytes; -1: the whole file, in any format, not scanned yet."""
    messages: int = -1
    first_sequence: int = 1
    checksum: int = 0
    """Checksum of the bytes, for a slice of a tape."""
    session: str = ""
    damages: tuple[Damage, ...] = ()
    damages_left_out: int = 0
    conversion: Conversion | None = None
    start: StartState | None = None
    """The start state; None: the feed begins here."""

    @property
    def name(self) -> str:
        """Name of the slice in reports; unique within a run."""
        return f"{self.path}#{self.number}"


class BadMessage(msgspec.Struct, frozen=True):
    """A source message that was not converted, or a damaged stretch of the file."""

    position: int
    """Byte offset in the file; for captures and text files, the number of the message."""
    code: str
    reason: str
    excerpt: bytes = b""


class FeedAccount(msgspec.Struct, omit_defaults=True):
    """Counts of the source messages of a slice by outcome; `taken` is the sum of the next four fields."""

    taken: int = 0
    converted: int = 0
    malformed: dict[str, int] = {}
    unmatched: dict[str, int] = {}
    """Messages that refer to an order, trade or instrument that was never received, by cause."""
    repeated: int = 0
    lost: int = 0
    """Numbers that the source assigned to messages missing in the file; not part of the other counts."""
    damages: int = 0
    made: int = 0
    """Application messages of all models that the conversion produced."""

    @property
    def is_balanced(self) -> bool:
        return (
            self.taken == self.converted + sum(self.malformed.values()) + sum(self.unmatched.values()) + self.repeated
        )


SourceEvent: TypeAlias = SessionStarted | SourceReady | SourceLost


class SourceEvents:
    """The source messages of a slice, and the other events of its source. `damages` are reported at the end."""

    def __init__(self, piece: FeedSlice) -> None:
        self.piece = piece
        self.base = 0
        """Position in the file to which the offsets of the current batch are relative."""
        self.damages: list[Damage] = list(piece.damages)
        self.damages_left_out = piece.damages_left_out

    def __iter__(self) -> Iterator[LineInstruction]:
        if self.piece.size < 0:
            return self._of_file()
        return self._of_tape() if self.piece.data else self._of_blocks()

    @property
    def position(self) -> int:
        """Bytes of the slice before the current batch."""
        return self.base - self.piece.offset if self.has_offsets else 0

    @property
    def has_offsets(self) -> bool:
        """True if base + offset of a message is its position in the file."""
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
                    raise FeedIndexError("the file changed since it was indexed", where=self.piece.path, hint=REMAKE)
                self.base = at
                sequence += len(batch)
                at += blocks.consumed
                yield SourceReady(batch)


REMAKE = "delete the index directory to rebuild the index"


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
    """The conversion of a slice, starting at the beginning of the feed or from a state image."""

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
    """The application messages of a slice. `models` selects models by name (None: all)."""

    def __init__(self, piece: FeedSlice, models: Iterable[str] | None = None) -> None:
        if piece.conversion is None:
            raise ConfigurationError(
                "no converter table is named", where=piece.path, hint="set one, for example table=itch"
            )
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
            self.bad.append(BadMessage(-1, "left-out", f"{left_out} more bad messages, which are not listed"))


REASONS = {
    "kind": "the format has no message of this type",
    "length": "wrong number of bytes or columns",
    "number": "a text is not a number",
    "range": "a number is outside the range of its field",
    "missing": "a value is missing",
    "enumeration": "a value is not in the table's map",
    "text": "a text is too long, or not UTF-8",
    "function": "a function of the table failed",
    "value": "the order book refuses the message",
    "state_limit": "the conversion state is full",
}


def check_models(models: Iterable[str], plan: Plan) -> list[str]:
    """Return the names of models that the plan produces; refuse an unknown name and list the known ones."""
    known = sorted({output.model.name for output in plan.outputs})
    names = list(models)
    for name in names:
        if name not in known:
            raise ConfigurationError(
                f"the table {plan.name!r} does not produce model {name!r}",
                where="model",
                hint=f"its models: {', '.join(known)}",
            )
    return names


def _read_all(path: str, offset: int, size: int) -> bytes:
    try:
        with Path(path).open("rb") as file:
            file.seek(offset)
            data = file.read(size)
    except OSError as error:
        raise FeedIndexError(f"cannot read the file: {error.strerror}", where=path, hint=REMAKE) from None
    if len(data) != size:
        raise FeedIndexError(f"the file has {len(data)} of {size} bytes", where=path, hint=REMAKE)
    return data


def _chunks(image: bytes) -> Iterator[memoryview]:
    """Yield the chunks of a state image, each stored after its size in 8 bytes."""
    view = memoryview(image)
    while view:
        size = int.from_bytes(view[:8], "little")
        yield view[8 : 8 + size]
        view = view[8 + size :]
