"""Archives and journals as input of a replay: every message as published, with its ORIGIN."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from penstock.base.errors import ArchiveCorruptError, ModelError, NotFoundError
from penstock.capture.core.rows import MessageRows
from penstock.model import MessageModel, shipped, shipped_names
from penstock.model.recorded import from_spark, record_size_of
from penstock.spark.journals import JournalPlace
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.archive.commits import FileEntry
from penstock.spark.pipeline.archive.placing import kept
from penstock.spark.pipeline.playing import (
    BEGINNING_NS,
    END_NS,
    ORIGIN_DTYPE,
    SEALED,
    Chosen,
    Play,
    blank_rows,
    in_one_line,
    origin_extensions,
)
from penstock.spark.slices import JournalSlice, JournalSliceReader
from penstock.wire import OriginFlag
from penstock.wire.term import LINEAGE_SHIFT, Term

PIECE_ROWS = 16_384
SEQ_BITS = 42
"""Bits of the sequence number in the ordering key, below the lineage."""

FIRST_TERM = int(Term(1, 0, 0, 0))
SYNCHRONISED = int(OriginFlag.SYNCHRONISED)
SECOND_NS = 10**9
LOOK_BACK_NS = 5 * SECOND_NS
RAW = "raw"
ENVELOPE = ("topic", "seq", "source_seq", "part", "captured", "term", "origin", "version")


def plays_of_archive(archive: Archive, chosen: Chosen, models: Sequence[MessageModel] = ()) -> Iterator[Play]:
    """Yield the selected messages of an archive, in order. Tables of unknown models are skipped."""
    own = [MessageModel.parse(text) for text in archive.catalogue.models.values()]
    known = {model.name: model for model in (*own, *models)} | {name: shipped(name) for name in shipped_names()}
    tables = [info.name for info in archive.tables() if info.name in known or info.name == RAW]
    if not tables:
        raise NotFoundError("the archive has no messages", where=str(archive.path))
    files = [(file, known.get(table)) for table in tables for file in archive.files(table)]
    first, last = _date_of(chosen.from_ns, -1), _date_of(chosen.to_ns, 1)
    dates = sorted({file.date for file, _ in files if first <= file.date <= last})
    for date in dates:
        streams: dict[int, list[Iterator[Play]]] = {}
        for file, model in files:
            if file.date == date and (not chosen.streams or (file.stream or 0) in chosen.streams):
                streams.setdefault(file.stream or 0, []).append(_plays_of_file(archive.path, file, model, chosen))
        yield from in_one_line([streams[stream] for stream in sorted(streams)])


def plays_of_journal(place: JournalPlace, chosen: Chosen) -> Iterator[Play]:
    """Yield the messages of a journal as captured; of duplicates from several publishers, only the first."""
    since_ns = (
        chosen.from_ns - LOOK_BACK_NS if chosen.from_ns > 0 else None
    )  # duplicates of messages just before the start
    extent = place.measure(since_ns)
    first = extent.first_sequence if extent.found_sequence is None else extent.found_sequence
    for rows in JournalSliceReader(JournalSlice(place, first, extent.next_sequence - 1, [])):
        places = rows.places
        if places is None or not len(rows):
            continue
        times_ns = np.maximum.accumulate(places["captured_ns"].astype(np.int64))
        play = Play(rows.topic_data, rows.payloads, rows.rows, times_ns)
        if chosen.streams:
            play = play.select(np.isin(rows.origins["stream_id"], list(chosen.streams)))
        if len(play := chosen.of(play)):
            yield play
        if times_ns[-1] >= chosen.to_ns:
            return


def _plays_of_file(root: Path, file: FileEntry, model: MessageModel | None, chosen: Chosen) -> Iterator[Play]:
    path = kept(root, file.path)
    try:
        with pq.ParquetFile(path) as opened:
            version = int((opened.schema_arrow.metadata or {}).get(b"penstock.version", b"0"))
            for batch in opened.iter_batches(PIECE_ROWS):
                play = chosen.of(_play_of_batch(batch, model, file.stream or 0, version))
                if len(play):
                    yield play.in_order()
    except FileNotFoundError:
        raise ArchiveCorruptError(
            "a committed file is missing",
            where=str(path),
            hint="restart the replay: replaced files remain for a grace period only",
        ) from None
    except (pa.ArrowInvalid, OSError, ModelError) as error:
        raise ArchiveCorruptError(f"cannot read the archive file: {error}", where=str(path)) from None


def _play_of_batch(batch: pa.RecordBatch, model: MessageModel | None, stream: int, version: int) -> Play:
    envelope = {name: batch.column(name) for name in ENVELOPE if name in batch.schema.names}
    numbers = {name: _integers(column) for name, column in envelope.items() if name != "topic"}
    rows = blank_rows(len(batch))
    topic_data = _place_topics(envelope["topic"], rows)
    is_numbered = (numbers["seq"] != 0) | (stream != 0)
    if model is None:
        payloads = _place_contents(batch.column("payload"), rows)
        rows["model_id"] = _integers(batch.column("model_id"))
        rows["model_version"] = numbers["version"]
        if "seal" in batch.schema.names:
            is_sealed = batch.column("seal").is_valid().to_numpy(zero_copy_only=False)
            rows["flags"] |= np.where(is_sealed, SEALED, 0).astype(rows["flags"].dtype)
    else:
        versions = numbers.get("version", np.full(len(batch), version or model.version))
        payloads = _place_records(from_spark(model, batch), model, versions, rows)
    extensions = _origins(numbers, stream)
    rows["extensions_offset"] = len(payloads) + np.arange(len(rows)) * ORIGIN_DTYPE.itemsize
    rows["extensions_size"] = np.where(is_numbered, ORIGIN_DTYPE.itemsize, 0)
    everything = np.concatenate([payloads, extensions.view(np.uint8)])
    times_ns = _times(batch, numbers)
    lineage = extensions["term"].astype(np.uint64) >> np.uint64(LINEAGE_SHIFT)
    order = lineage << np.uint64(SEQ_BITS) | extensions["seq"]
    order = np.where(is_numbered, order, times_ns.astype(np.uint64))
    return Play(topic_data, everything, rows, times_ns, order)


def messages_of_raw(batch: pa.RecordBatch, stream: int) -> MessageRows:
    """Return rows of the table `raw` as the original messages."""
    play = _play_of_batch(batch, None, stream, 0)
    return MessageRows(play.topic_data, play.payloads, play.rows)


def _origins(numbers: dict[str, NDArray[np.int64]], stream: int) -> NDArray[Any]:
    """Return the original ORIGIN extensions. Messages made from a file have no term and are played with the first
    term.
    """
    made = origin_extensions(len(numbers["seq"]))
    made["stream"] = stream
    made["part"] = numbers["part"]
    made["flags"] = numbers["origin"] | SYNCHRONISED
    made["term"] = np.where(numbers["term"] == 0, FIRST_TERM, numbers["term"])
    made["source_seq"] = numbers["source_seq"].view(np.uint64)
    made["seq"] = numbers["seq"].view(np.uint64)
    return made


def _times(batch: pa.RecordBatch, numbers: dict[str, NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the capture time of each message, or else its event time."""
    captured = numbers.get("captured", np.zeros(len(batch), np.int64))
    if "event_time" not in batch.schema.names:
        return captured
    return np.where(captured != 0, captured, _integers(batch.column("event_time")))


def _place_topics(column: pa.Array, rows: NDArray[Any]) -> NDArray[np.uint8]:
    data, offsets = _texts(column)
    rows["topic_offset"] = offsets[:-1]
    rows["topic_size"] = np.diff(offsets)
    return data


def _place_contents(column: pa.Array, rows: NDArray[Any]) -> NDArray[np.uint8]:
    data, offsets = _texts(column)
    rows["payload_offset"] = offsets[:-1]
    rows["payload_size"] = np.diff(offsets)
    padding = -len(data) % 8
    return np.concatenate([data, np.zeros(padding, np.uint8)])


def _place_records(
    records: NDArray[Any], model: MessageModel, versions: NDArray[Any], rows: NDArray[Any]
) -> NDArray[np.uint8]:
    rows["model_id"] = model.id
    rows["model_version"] = versions
    rows["payload_offset"] = np.arange(len(records)) * model.record_size
    for version in np.unique(versions).tolist():
        rows["payload_size"][versions == version] = record_size_of(model, version)
    return records.view(np.uint8).reshape(-1)


def _texts(column: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the bytes of a text or binary column, and the start of each value."""
    _, places, data = column.buffers()
    offsets = np.frombuffer(places, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    held = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return held[offsets[0] : offsets[-1]].copy(), offsets - offsets[0]


def _integers(column: pa.Array) -> NDArray[np.int64]:
    filled = column.fill_null(0).cast(pa.int64())
    return np.asarray(filled.to_numpy(zero_copy_only=False))


def _date_of(time_ns: int, days: int) -> str:
    """Return the date of a time plus some days, because partitions use event dates, not capture dates."""
    if time_ns in (BEGINNING_NS, END_NS):
        return "" if time_ns == BEGINNING_NS else "9999-12-31"
    return (datetime.fromtimestamp(time_ns // SECOND_NS, UTC) + timedelta(days=days)).date().isoformat()
