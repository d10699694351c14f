"""Normalisation: slices read as rows of the archive's tables, with an account of all their messages.

A recorded feed is converted as by a live adapter. A capture holds the messages that adapters published; each message is
taken once. Normalisation runs in the workers, below work.py, which writes the rows into files; rows never pass the JVM.

reading = read_slice(piece) for rows in reading: ... # TableRows: of messages, of facts, of the quarantine
reading.account.is_balanced
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.capture.core.rows import MessageRows
from penstock.middleware.core.source_stream import END_INDEX
from penstock.model import MessageModel
from penstock.spark.feedslices import FeedReader, FeedSlice
from penstock.spark.pipeline.archive.commits import Account, TradingDay
from penstock.spark.pipeline.archive.sessiontags import SeenRun
from penstock.spark.pipeline.archive.tables import (
    RAW,
    MessageTables,
    Quarantined,
    TableRows,
    shipped_models,
    table_schema,
)
from penstock.spark.pipeline.sources.facts import (
    ANNOUNCED,
    FACT_SCHEMAS,
    ORIGIN_KINDS,
    SliceFacts,
    bounded,
    quarantine_rows,
)
from penstock.spark.slices import JournalSlice, JournalSliceReader

Slice: TypeAlias = FeedSlice | JournalSlice


class Reading(Protocol):
    """The rows of one slice; the account is complete after the last row."""

    account: Account
    schemas: dict[str, str]
    cursors: dict[str, Any]
    documents: list[str]
    """Documents of models received in band."""
    sessions: dict[str, list[SeenRun]]

    def __iter__(self) -> Iterator[TableRows]: ...


class Known(msgspec.Struct, frozen=True):
    """The archive's knowledge that the reading of captures depends on."""

    documents: Sequence[str] = ()
    """Documents of custom models."""
    covered: Sequence[TradingDay] = ()
    """Days whose captured messages were replaced by those of a file."""

    def models(self) -> dict[int, MessageModel]:
        return {model.id: model for model in map(MessageModel.parse, self.documents)}


def read_slice(piece: Slice, known: Known | None = None) -> Reading:
    return FeedReading(piece) if isinstance(piece, FeedSlice) else JournalReading(piece, known or Known())


class FeedReading:
    """A converted stretch of a recorded feed."""

    def __init__(self, piece: FeedSlice) -> None:
        self.account = Account()
        self.schemas: dict[str, str] = {}
        self.cursors: dict[str, Any] = {}
        self.documents: list[str] = []
        self.sessions: dict[str, list[SeenRun]] = {}
        self._piece = piece
        self._reader = FeedReader(piece)
        self._time_ns = 0

    def __iter__(self) -> Iterator[TableRows]:
        tables = MessageTables({model.id: model for model in self._reader.models.values()})
        for messages in self._reader:
            yield from self._noted(tables.rows(messages))
        bad = [Quarantined(each.position, each.code, each.reason, each.excerpt) for each in self._reader.bad]
        self.account = tables.account
        self.sessions = tables.sessions.export()
        self._close_source()
        name = self._piece.name
        yield from counted(
            self.account, quarantine_rows(name, self._piece.path, [*bad, *tables.quarantined], self._time_ns)
        )
        self.schemas = schemas_of(tables, self.account)

    def _noted(self, rows: Iterable[TableRows]) -> Iterator[TableRows]:
        for each in rows:
            self._time_ns = self._time_ns or int(each.times_ns[0])
            yield each

    def _close_source(self) -> None:
        found, source = self._reader.account, self.account.source
        source.taken = found.taken
        source.used = found.converted
        source.repeated = found.repeated
        source.quarantined = found.malformed
        source.unmatched = found.unmatched
        source.lost = found.lost
        source.damages = found.damages


class JournalReading:
    """A stretch of a capture: each message once, and the facts of its delivery."""

    def __init__(self, piece: JournalSlice, known: Known) -> None:
        self.account = Account()
        self.schemas: dict[str, str] = {}
        self.cursors: dict[str, Any] = {}
        self.documents: list[str] = []
        self.sessions: dict[str, list[SeenRun]] = {}
        self._piece = piece
        self._reader = JournalSliceReader(piece)
        self._tables = MessageTables({**known.models(), **shipped_models()})
        self._tables.covered = known.covered
        self._facts = SliceFacts(piece.place.where, self._tables.models)
        self._tables.on_records = self._facts.measure
        self._reader.on_judged = self._note

    def __iter__(self) -> Iterator[TableRows]:
        reader, tables = self._reader, self._tables
        for messages in reader:
            yield from tables.rows(messages)
        self._close_account()
        self._facts.lose(reader.lost)
        yield from counted(self.account, self._bounded(self._facts.rows(reader.streams)))
        bad = [Quarantined(each.record, each.code, each.reason, each.excerpt, each.captured_ns) for each in reader.bad]
        found = [*self._removed(), *bad, *tables.quarantined]
        quarantine = quarantine_rows(self._piece.name, self._piece.place.where, found, 0)
        yield from counted(self.account, self._bounded(quarantine))
        self.sessions = tables.sessions.export(None if reader.cursors is None else reader.cursors.beginnings)
        images = reader.cursors.export() if reader.cursors is not None else []
        self.cursors = {str(image.stream): msgspec.to_builtins(image) for image in images}
        self.schemas = schemas_of(tables, self.account)
        self.documents = sorted(each.decode(errors="replace") for each in tables.documents)

    def _note(self, messages: MessageRows, is_repeated: NDArray[np.bool_]) -> None:
        self._facts.take(messages, is_repeated)
        origins = messages.origins
        is_end = (origins["flags"] & ORIGIN_KINDS == ANNOUNCED) & (origins["part"] == END_INDEX)
        self._tables.sessions.note_ends(origins[is_end])

    def _removed(self) -> Iterator[Quarantined]:
        if removed := self._piece.removed:
            first, last = self._piece.first - removed, self._piece.first - 1
            reason = f"records {first} to {last} were removed from the journal before they were archived"
            yield Quarantined(first, "removed", reason, b"")

    def _bounded(self, facts: Iterable[TableRows]) -> Iterator[TableRows]:
        """Yield facts of the allowed number of partitions; omitted rows are noted in the quarantine."""
        for rows in facts:
            kept = bounded(rows)
            if left_out := len(rows.batch) - len(kept.batch):
                reason = f"{left_out:,} rows of {rows.table} are omitted: the slice has too many streams"
                self._tables.quarantined.append(Quarantined(self._piece.first, "partitions", reason, b""))
            yield kept

    def _close_account(self) -> None:
        """Add the messages that the reader left out, and bad records, each of which counts as one message."""
        found, account = self._reader.account, self._tables.account
        account.taken = found.taken
        account.repeated += found.repeated
        for mine, more in ((account.quarantined, found.quarantined), (account.skipped, found.skipped)):
            for cause, count in more.items():
                mine[cause] = mine.get(cause, 0) + count
        account.source.removed = self._piece.removed
        self.account = account


def counted(account: Account, rows: Iterable[TableRows]) -> Iterator[TableRows]:
    """Count rows about messages, separately from the messages."""
    for each in rows:
        account.facts[each.table] = account.facts.get(each.table, 0) + len(each.batch)
        yield each


def schemas_of(tables: MessageTables, account: Account) -> dict[str, str]:
    """Return the schemas of the tables that have rows."""
    models = {model.name: model for model in tables.models.values()}
    found = {table: table_schema(None if table == RAW else models[table]) for table in account.rows}
    return found | {table: FACT_SCHEMAS[table] for table in account.facts}
