"""How the archive's Parquet files are written: such that Spark, pandas, DuckDB and Polars read them untold."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.base.files import create_file

ROW_GROUP_ROWS = 1 << 17
"""Rows of a row group: large enough to be read quickly, small enough to be held in memory by every core."""

ZSTD_LEVEL = 1


SOUGHT = ("topic", "seq", "source_seq", "captured", "symbol", "event_time", "price", "publisher")
"""Columns that queries choose rows by: the files have their extremes, by which readers pass over row groups."""


def open_parquet(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """A new file. Texts are dictionaries; whole numbers, which mostly grow or repeat, are kept as differences."""
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
