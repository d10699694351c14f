"""Parquet settings of the archive, chosen so that Spark, pandas, DuckDB and Polars read the files without options."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.base.files import create_file

ROW_GROUP_ROWS = 1 << 17
"""Rows per row group: large enough for fast reads, small enough to fit in memory once per core."""

ZSTD_LEVEL = 1


SOUGHT = ("topic", "seq", "source_seq", "captured", "symbol", "event_time", "price", "publisher")
"""Columns with minimum and maximum statistics, which let readers skip row groups."""


def open_parquet(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Create a file. Text is dictionary-encoded; integers, which mostly grow or repeat, are delta-encoded."""
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    create_file(path)
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=ZSTD_LEVEL,
        use_dictionary=texts,
        column_encoding={field.name: "DELTA_BINARY_PACKED" for field in schema if pa.types.is_integer(field.type)},
        store_decimal_as_integer=True,
        write_statistics=[name for name in SOUGHT if name in schema.names],
    )
