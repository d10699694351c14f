"""Events of order books in blocks: thousands of events of some instruments of one stream are one row for Spark."""

import re
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.convert.books.rows import PRICE_NONE
from penstock.spark.pipeline.derive._blocks import encode
from penstock.spark.pipeline.derive._books import EVENT_DTYPE
from penstock.wire.term import LINEAGE_SHIFT, SESSION_TAG_SHIFT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENT_COLUMNS = """stream INT, term BIGINT, origin INT, seq BIGINT, source_seq BIGINT, event_time BIGINT, symbol STRING,
    venue STRING, order_id BIGINT, new_order_id BIGINT, price DECIMAL(18,8), quantity BIGINT, action STRING,
    side STRING, flags INT"""
"""What books are made of, and what is carried from step to step."""

EVENT_NAMES = re.findall(r"(\w+) [A-Z]", EVENT_COLUMNS)
INTEGERS = ("seq", "event_time", "source_seq", "order_id", "new_order_id", "quantity")
TEXTS = ["symbol", "venue", "action", "side"]
BLOCK_COLUMNS = "bucket INT, stream INT, lineage BIGINT, first BIGINT, count INT, instruments BINARY, events BINARY"
KEY_TYPES = (pa.int32(), pa.int32(), pa.int64())  # of the first three
BLOCK_NAMES = re.findall(r"(\w+) [A-Z]", BLOCK_COLUMNS)
EVENTS_PER_PACK = 131_072  # that are packed together, before they are dealt out to blocks

ACTIONS = ("", "add", "modify", "replace", "cancel", "delete", "execute", "clear", "order", "pending")
"""By their number in an event; the last two are carried ones."""

SIDES = ("", "buy", "sell")


# Blocks in Spark


def of_rows(rows: "DataFrame") -> "DataFrame":
    """Blocks of the rows of a DataFrame. Without `term` and `origin` all rows are of one session."""
    from pyspark.sql import functions as f

    absent = {name: f.lit(0) for name in ("term", "origin") if name not in rows.columns}
    events = rows.withColumns(absent).select(*EVENT_NAMES)
    return events.mapInArrow(partial(pack, partition_count(rows.sparkSession)), BLOCK_COLUMNS)


def of_files(spark: "SparkSession", files: Sequence[str]) -> "DataFrame":
    """Blocks of the rows of Parquet files of an archive."""
    count = partition_count(spark)
    groups = [(path, group) for path in files for group in range(pq.read_metadata(path).num_row_groups)]
    frame = spark.createDataFrame(groups, "path STRING, row_group INT").repartition(max(len(groups), 1))
    return frame.mapInArrow(partial(_pack_files, count), BLOCK_COLUMNS)


def arranged(blocks: "DataFrame") -> "DataFrame":
    """All blocks of an instrument in one partition, sorted by stream and the number of their first event."""
    count = partition_count(blocks.sparkSession)
    return blocks.repartitionById(count, "bucket").sortWithinPartitions("stream", "lineage", "first")


def partition_count(spark: "SparkSession") -> int:
    """Twice as many as tasks run at once: a stream's books go on for as long as they may, and no core waits long."""
    from pyspark.errors import PySparkException

    try:
        return 2 * int(spark.sparkContext.defaultParallelism)
    except PySparkException:  # a session of Spark Connect does not tell
        return int(spark.conf.get("spark.sql.shuffle.partitions") or 200)


# Blocks in a worker


def pack(bucket_count: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of EVENT_COLUMNS into blocks."""
    held: list[pa.RecordBatch] = []
    held_count = 0
    for batch in batches:
        held.append(batch)
        held_count += batch.num_rows
        if held_count >= EVENTS_PER_PACK:
            yield _pack(bucket_count, pa.Table.from_batches(held))
            held, held_count = [], 0
    if held_count:
        yield _pack(bucket_count, pa.Table.from_batches(held))


def _pack_files(bucket_count: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for row in batch.to_pylist():
            with pq.ParquetFile(row["path"], read_dictionary=TEXTS) as file:
                names = [name for name in EVENT_NAMES if name in file.schema_arrow.names]
                table = file.read_row_group(row["row_group"], columns=names)
            for name in set(EVENT_NAMES) - set(names):
                table = table.append_column(name, pa.array(np.full(len(table), _told_by_path(row["path"], name))))
            for first in range(0, len(table), EVENTS_PER_PACK):
                yield _pack(bucket_count, table.slice(first, EVENTS_PER_PACK))


def _told_by_path(path: str, column: str) -> int:
    """What the name of a partition's directory says of its rows."""
    told = re.search(f"/{column}=([^/]+)/", path)
    return int(unquote(told[1])) if told else 0


def _pack(bucket_count: int, rows: pa.Table) -> pa.RecordBatch:
    events = _events(rows)
    streams, terms = _integers(rows, "stream"), _integers(rows, "term")
    names, owners = _instruments(rows)
    events["instrument"] = owners
    buckets = np.array([zlib.crc32(name) % bucket_count for name in names], np.uint16)[owners]
    lineages = terms >> LINEAGE_SHIFT
    order = _order(buckets, streams, lineages, events["seq"])
    starts = _starts(*(each[order] for each in (buckets, streams, lineages)))
    data, begins, used = encode(events, order, starts, len(names))
    first = order[starts[:-1]]
    arrays = [
        *(pa.array(each[first], kind) for each, kind in zip((buckets, streams, lineages), KEY_TYPES, strict=True)),
        pa.array(events["seq"][first]),
        pa.array(np.diff(starts), pa.int32()),
        pa.array([b"\n".join(names[each] for each in some.tolist()) for some in used], pa.binary()),
        pa.Array.from_buffers(
            pa.binary(), len(first), [None, pa.py_buffer(np.array(begins, np.int32)), pa.py_buffer(data)]
        ),
    ]
    return pa.RecordBatch.from_arrays(arrays, BLOCK_NAMES)


def _starts(*keys: np.ndarray[Any, Any]) -> list[int]:
    """Where something changes, and the end."""
    is_other = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return [0, *(np.flatnonzero(is_other) + 1).tolist(), len(keys[0])]


def _order(buckets: np.ndarray[Any, Any], *keys: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """How to sort by bucket, stream, lineage and number; mostly rows are sorted but for their buckets."""
    streams, lineages, numbers = keys
    if (streams == streams[0]).all() and (lineages == lineages[0]).all() and (numbers[1:] > numbers[:-1]).all():
        return np.argsort(buckets, kind="stable")
    return np.lexsort((numbers, lineages, streams, buckets))


def unpack(instruments: bytes) -> list[tuple[str, str]]:
    """Symbol and venue of each instrument of a block."""
    pairs = (name.decode().split("\0") for name in instruments.split(b"\n"))
    return [(symbol, venue) for symbol, venue in pairs]


# Columns


def _events(rows: pa.Table) -> dict[str, np.ndarray[Any, Any]]:
    """The fields of events, without their instruments."""
    flags = (_integers(rows, "flags") << 2).astype(np.uint8)
    return {
        **{name: _integers(rows, name).view(EVENT_DTYPE[name]) for name in INTEGERS},
        "price": _prices(rows.column("price").combine_chunks()),
        "action": _codes(rows, "action", ACTIONS),
        "side_flags": _codes(rows, "side", SIDES) | flags,
        "session": ((_integers(rows, "origin") & 0xFFFF) >> SESSION_TAG_SHIFT).astype(np.uint16),
    }


def _integers(rows: pa.Table, name: str) -> np.ndarray[Any, Any]:
    """Values with 64 bits; 0 where there is none."""
    column = rows.column(name)
    values = (column.fill_null(0) if column.null_count else column).to_numpy()
    return np.asarray(values, np.int64)


def _prices(column: pa.Array) -> np.ndarray[Any, Any]:
    """As 64-bit integers: the lower halves of decimals."""
    column = column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks)
    values = np.frombuffer(column.buffers()[1], "<i8")[2 * column.offset : 2 * (column.offset + len(column)) : 2]
    if not column.null_count:
        return np.ascontiguousarray(values)
    return np.where(column.is_valid().to_numpy(zero_copy_only=False), values, PRICE_NONE)


def _encoded(rows: pa.Table, name: str) -> tuple[list[str], np.ndarray[Any, Any]]:
    """The different texts of a column, and which of them each row has; no text is the empty one."""
    column = rows.column(name)
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    array = column.unify_dictionaries().combine_chunks()
    array = array if isinstance(array, pa.Array) else array.chunk(0)
    texts = [*array.dictionary.to_pylist(), ""]
    return texts, array.indices.fill_null(len(texts) - 1).to_numpy(zero_copy_only=False)


def _codes(rows: pa.Table, name: str, names: tuple[str, ...]) -> np.ndarray[Any, Any]:
    texts, which = _encoded(rows, name)
    codes: np.ndarray[Any, Any] = np.array([names.index(text) if text in names else 0 for text in texts], np.uint8)
    return np.asarray(codes[which])


def _instruments(rows: pa.Table) -> tuple[list[bytes], np.ndarray[Any, Any]]:
    """Names of the instruments, and the place of each row's one among them."""
    symbols, symbol_of = _encoded(rows, "symbol")
    venues, venue_of = _encoded(rows, "venue")
    names = [f"{symbol}\0{venue}".encode() for symbol in symbols for venue in venues]
    return names, symbol_of.astype(np.uint32) * len(venues) + venue_of.astype(np.uint32)
