"""Penstock's data in Spark: journals and raw feeds as DataFrames, and the pipeline from capture to archive and audit.

    spark = penstock.spark.session()                      # local, with all cores; or spark://…, sc://…
    spark.read.format("penstock").option("journal", "captured.d").option("model", "trade").load()
    penstock.spark.messages(spark, journal="captured.d", model="trade", columns="symbol,price")    # same rows, faster

This package contains no code of the low-latency path. Read slices.py first: a slice is the unit of work that Spark
distributes. Importing this package does not import Spark; session() and the data sources do.
"""

from penstock.spark.envelope import envelope_array, envelope_schema
from penstock.spark.frames import messages
from penstock.spark.instruments import with_text
from penstock.spark.journals import JournalPlace
from penstock.spark.session import register, session
from penstock.spark.slices import JournalSlice, JournalSliceReader, cut, slices_frame

__all__ = [
    "JournalPlace",
    "JournalSlice",
    "JournalSliceReader",
    "cut",
    "envelope_array",
    "envelope_schema",
    "messages",
    "register",
    "session",
    "slices_frame",
    "with_text",
]
