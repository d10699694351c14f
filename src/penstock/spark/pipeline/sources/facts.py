"""Facts about the delivery of a capture's messages: rows of the audit's tables.

    facts = SliceFacts(place, models)
    facts.take(messages, is_repeated)          # every message in order, including duplicates
    facts.lose(loss); facts.close(reader.streams)
    for rows in facts.rows(): ...

`delivery` counts packets and messages per publisher, `loss` lists the losses that a capture reports, `agreement` has a
digest of every 1,024 messages of every publisher, `latency` counts message latencies from hop to hop, and `session` has
the announcements of publishers about source streams: begin and end of sessions, and other discontinuities. Rows of
several slices add up.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.base.histogram import LatencyHistogram
from penstock.capture.core._digest import digest_rows
from penstock.capture.core.rows import Loss, MessageRows
from penstock.middleware.core.source_stream import DiscontinuityNote
from penstock.model import MessageModel
from penstock.spark.pipeline.archive.bounds import PartitionBound
from penstock.spark.pipeline.archive.tables import BY_DATE_ONLY, Quarantined, TableRows
from penstock.wire import OriginFlag
from penstock.wire.term import LINEAGE_SHIFT

SYNCHRONISED = int(OriginFlag.SYNCHRONISED)
ANNOUNCED = int(OriginFlag.SYNCHRONISED | OriginFlag.DISCONTINUITY)
ORIGIN_KINDS = int(OriginFlag.SYNCHRONISED | OriginFlag.DISCONTINUITY | OriginFlag.IMAGE)

BLOCK_SHIFT = 10
"""Number of messages per `agreement` block, as a power of two."""

NOWHERE = 0xFFFF_FFFF

VENUE = "venue to adapter"
CAPTURE = "adapter to capture"
NEGATIVE_BUCKET = -1
"""The bucket of negative latencies, which are caused by clocks that disagree."""

_BIGINTS = ("packets", "packets_lost", "packets_repaired", "packets_repeated", "packets_reordered")

FACT_SCHEMAS = {
    "delivery": "`place` STRING, `first_record` BIGINT, `last_record` BIGINT, `publisher` BIGINT, `group` STRING, "
    "`epoch` BIGINT, `first_packet` BIGINT, `last_packet` BIGINT, "
    + "".join(f"`{name}` BIGINT, " for name in _BIGINTS)
    + "`messages` BIGINT, `first_seq` BIGINT, `last_seq` BIGINT, `repeated` BIGINT, `bytes` BIGINT, "
    "`date` DATE, `stream` INT",
    "loss": "`place` STRING, `record` BIGINT, `publisher` BIGINT, `group` STRING, `epoch` BIGINT, "
    "`first_packet` BIGINT, `last_packet` BIGINT, `captured` BIGINT, `date` DATE",
    "agreement": "`place` STRING, `publisher` BIGINT, `lineage` BIGINT, `block` BIGINT, `messages` BIGINT, "
    "`digest` BIGINT, `date` DATE, `stream` INT",
    "latency": "`hop` STRING, `bucket` INT, `count` BIGINT, `date` DATE, `stream` INT",
    "session": "`place` STRING, `publisher` BIGINT, `term` BIGINT, `reason` STRING, `session` STRING, "
    "`trading_date` STRING, `seq` BIGINT, `source_seq` BIGINT, `captured` BIGINT, `date` DATE, `stream` INT",
    "quarantine": "`slice` STRING, `place` STRING, `position` BIGINT, `code` STRING, `reason` STRING, "
    "`excerpt` BINARY, `date` DATE",
}
"""The columns of the fact tables, as Spark DDL."""

_ARROW = {"STRING": pa.string(), "BIGINT": pa.int64(), "INT": pa.int32(), "BINARY": pa.binary()}


class SliceFacts:
    """Gathers the facts of one slice."""

    def __init__(self, place: str, models: Mapping[int, MessageModel]) -> None:
        self._place = place
        self._models = models
        self._left_out = np.full(max(models, default=0) + 1, NOWHERE, np.uint32)
        for number, model in models.items():
            if "receive_time" in model.fields_by_name:
                self._left_out[number] = model.fields_by_name["receive_time"].offset
        self._delivered: dict[tuple[int, ...], list[int]] = {}
        self._blocks: dict[tuple[int, ...], list[int]] = {}
        self._latencies: dict[tuple[str, int], LatencyHistogram] = {}
        self._losses: list[Loss] = []
        self._announced: list[tuple[Any, ...]] = []
        self._time_ns = 0

    def take(self, messages: MessageRows, is_repeated: NDArray[np.bool_]) -> None:
        """Process all messages of a batch; the mask marks duplicates of messages that another publisher sent before."""
        places, origins = messages.places, messages.origins
        if places is None or not len(messages):
            return
        self._time_ns = self._time_ns or int(places["captured_ns"][0])
        # numbers of an unsynchronised backup, of an image or of an announcement are not comparable
        is_numbered = (origins["seq"] != 0) & (origins["flags"] & ORIGIN_KINDS == SYNCHRONISED)
        self._count(places, origins, is_repeated)
        self._note_announced(messages, places, origins)
        if is_numbered.any():
            self._digest(messages, places, origins, is_numbered)

    def measure(self, model: MessageModel, records: NDArray[Any], messages: MessageRows) -> None:
        """Count the latencies of the messages of one model."""
        if "receive_time" not in model.fields_by_name or not len(messages):
            return
        received = records["receive_time"]
        is_there = received > 0
        streams = messages.origins["stream_id"]
        if "event_time" in model.fields_by_name:
            self._time(VENUE, streams, received - records["event_time"], is_there & (records["event_time"] > 0))
        places = messages.places
        if places is not None:
            self._time(CAPTURE, streams, places["captured_ns"] - received, is_there)

    def lose(self, losses: Iterable[Loss]) -> None:
        self._losses += losses

    def rows(self, streams: NDArray[Any]) -> Iterator[TableRows]:
        """Yield all rows, given the reader's table of streams (STREAM_DTYPE)."""
        yield from self._delivery(streams)
        yield from self._loss()
        yield from self._agreement()
        yield from self._latency()
        captured = np.array([row[-2] for row in self._announced], np.int64)
        yield from fact_rows("session", self._announced, captured)

    def _count(self, places: NDArray[Any], origins: NDArray[Any], is_repeated: NDArray[np.bool_]) -> None:
        runs = _Runs([origins["stream_id"], places["publisher"], places["group"], places["epoch"]])
        seqs = origins["seq"]
        lowest, highest = np.minimum.reduceat(seqs, runs.starts), np.maximum.reduceat(seqs, runs.starts)
        repeated = np.add.reduceat(is_repeated, runs.starts, dtype=np.int64)
        numbers = zip(runs.sizes.tolist(), lowest.tolist(), highest.tolist(), repeated.tolist(), strict=True)
        for key, (count, low, high, copies) in zip(runs.keys, numbers, strict=True):
            found = self._delivered.setdefault(key, [0, low, high, 0])
            found[0] += count
            found[1] = min(found[1], low)
            found[2] = max(found[2], high)
            found[3] += copies

    def _note_announced(self, messages: MessageRows, places: NDArray[Any], origins: NDArray[Any]) -> None:
        """Record each publisher's own announcements, but not repetitions by an adapter that joined a term later."""
        for index in np.flatnonzero(origins["flags"] & ORIGIN_KINDS == ANNOUNCED).tolist():
            note = DiscontinuityNote.decode(messages.payload(index))
            origin, place = origins[index], places[index]
            self._announced.append(
                (self._place, _signed(int(place["publisher"])), int(origin["term"]), note.reason, note.session,
                 note.trading_date, _signed(int(origin["seq"])), _signed(int(origin["source_seq"])),
                 int(place["captured_ns"]), int(origin["stream_id"]))
            )  # fmt: skip

    def _digest(self, messages: MessageRows, places: NDArray[Any], origins: NDArray[Any], chosen: NDArray[Any]) -> None:
        digests = digest_rows(messages.topic_data, messages.payloads, messages.rows, origins, self._left_out)[chosen]
        origins, places = origins[chosen], places[chosen]
        lineages, blocks = origins["term"] >> LINEAGE_SHIFT, origins["seq"] >> BLOCK_SHIFT
        runs = _Runs([origins["stream_id"], places["publisher"], lineages, blocks])
        sums = np.add.reduceat(digests, runs.starts).tolist()
        for key, count, digest in zip(runs.keys, runs.sizes.tolist(), sums, strict=True):
            found = self._blocks.setdefault(key, [0, 0])
            found[0] += count
            found[1] += digest

    def _time(self, hop: str, streams: NDArray[Any], values_ns: NDArray[Any], chosen: NDArray[np.bool_]) -> None:
        if not chosen.any():
            return
        for stream in np.unique(streams[chosen]).tolist():
            histogram = self._latencies.setdefault((hop, stream), LatencyHistogram())
            histogram.record(values_ns[chosen & (streams == stream)])

    def _delivery(self, streams: NDArray[Any]) -> Iterator[TableRows]:
        """Yield delivery rows. A packet counts in the row of the first source stream that it carries, or 0 if it
        carries none.
        """
        rows = []
        for stream in streams:
            key = int(stream["publisher"]), int(stream["group"]), int(stream["epoch"])
            sources = sorted(each[0] for each in self._delivered if each[1:] == key) or [0]
            for source in sources:
                counts = self._delivered.get((source, *key), [0, 0, 0, 0])
                packets = [int(stream[name]) if source == sources[0] else 0 for name in (*_BIGINTS, "bytes")]
                rows.append(
                    (self._place, int(stream["first_record"]), int(stream["last_record"]), _signed(key[0]),
                     str(ipaddress.IPv4Address(key[1])), key[2], int(stream["first_packet"]),
                     int(stream["last_packet"]), *packets[:-1], *counts, packets[-1], source)
                )  # fmt: skip
        yield from fact_rows("delivery", rows, self._time_ns)

    def _loss(self) -> Iterator[TableRows]:
        rows = [
            (self._place, each.record, _signed(each.publisher), str(ipaddress.IPv4Address(each.group)), each.epoch,
             each.first, each.last, each.captured_ns, 0)
            for each in self._losses
        ]  # fmt: skip
        yield from fact_rows("loss", rows, np.array([each.captured_ns for each in self._losses], np.int64))

    def _agreement(self) -> Iterator[TableRows]:
        rows = [
            (self._place, _signed(publisher), lineage, block, count, digest, stream)
            for (stream, publisher, lineage, block), (count, digest) in self._blocks.items()
        ]
        yield from fact_rows("agreement", rows, self._time_ns)

    def _latency(self) -> Iterator[TableRows]:
        rows = []
        for (hop, stream), histogram in self._latencies.items():
            state = histogram.state()
            rows += [(hop, bucket, count, stream) for bucket, count in zip(state.buckets, state.counts, strict=True)]
            if state.negative_count:
                rows.append((hop, NEGATIVE_BUCKET, state.negative_count, stream))
        yield from fact_rows("latency", rows, self._time_ns)


def quarantine_rows(name: str, place: str, bad: Iterable[Quarantined], time_ns: int) -> Iterator[TableRows]:
    """Yield rows of the table `quarantine`; `time_ns` is used for entries without a time, if known."""
    found = list(bad)
    rows = [(name, place, each.position, each.code, each.reason, each.excerpt, 0) for each in found]
    now_ns = time_ns or time.time_ns()
    yield from fact_rows("quarantine", rows, np.array([each.time_ns or now_ns for each in found], np.int64))


def fact_rows(table: str, rows: list[tuple[Any, ...]], times_ns: NDArray[np.int64] | int) -> Iterator[TableRows]:
    """Yield rows whose last value is the stream."""
    if not rows:
        return
    columns = [column.split() for column in FACT_SCHEMAS[table].split(", ")]
    named = [(name.strip("`"), _ARROW[kind]) for name, kind in columns if name not in ("`date`", "`stream`")]
    values = list(zip(*rows, strict=True))
    arrays = [pa.array(column, kind) for column, (_, kind) in zip(values[:-1], named, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in named])
    times = np.broadcast_to(np.asarray(times_ns, np.int64), len(rows))
    yield TableRows(table, batch, times, np.array(values[-1], np.int64))


def bounded(rows: TableRows) -> TableRows:
    """Restrict rows to the allowed number of partitions; rows that belong to no stream then have no date (1970)."""
    times = np.maximum(rows.times_ns, 0)
    is_admitted = PartitionBound().admit(times, rows.streams)
    if is_admitted.all():
        return rows._replace(times_ns=times)
    if rows.table in BY_DATE_ONLY:
        return rows._replace(times_ns=np.where(is_admitted, times, 0))
    batch = rows.batch.filter(pa.array(is_admitted))
    return TableRows(rows.table, batch, times[is_admitted], rows.streams[is_admitted])


class _Runs:
    """Runs of neighbouring rows with equal keys: start, length and keys of each run."""

    def __init__(self, keys: list[NDArray[Any]]) -> None:
        is_new = np.zeros(len(keys[0]), np.bool_)
        is_new[0] = True
        for key in keys:
            is_new[1:] |= key[1:] != key[:-1]
        self.starts = np.flatnonzero(is_new)
        self.sizes = np.diff(self.starts, append=len(is_new))
        self.keys: list[tuple[int, ...]] = list(zip(*(key[self.starts].tolist() for key in keys), strict=True))


def _signed(number: int) -> int:
    """Return the same 64 bits as a Spark BIGINT."""
    return number - 2**64 if number >= 2**63 else number
