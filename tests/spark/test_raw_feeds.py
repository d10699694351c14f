"""Recorded feeds as DataFrames."""

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from feed_slices_kit import DAY, blocks_of, converted_whole, write_day
from penstock.base.errors import ConfigurationError, ModelError, UnknownKeyError
from penstock.model import shipped
from penstock.model.columns import to_spark
from penstock.spark.feedindex import plan_slices

raw = pytest.importorskip("penstock.spark.raw", reason="pyspark is not installed: pip install 'penstock[spark]'")


def table_of(frame: Any, key: str) -> pa.Table:
    return frame.toArrow().sort_by(key)


@pytest.mark.spec("PIPE-3", "PIPE-4")
def test_rows_are_the_messages_of_a_converter(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "day.itch"
    data = write_day(path, 4_000)
    options = {"table": "itch", "date": DAY, "cache": str(tmp_path / "cache"), "slice_size": 20_000}
    assert len(plan_slices(path, slice_size=20_000, cache=tmp_path / "cache")) > 3
    whole = converted_whole(path)
    for name in ("book_event", "quote"):
        model = shipped(name)
        mine = [message for message in whole if message[2] == model.id]
        records = np.frombuffer(b"".join(record for _, _, _, record in mine), model.dtype)
        expected = pa.Table.from_batches([to_spark(model, records)])
        frame = raw.normalised(spark, path, model=name, **options)
        got = table_of(frame, "seq")
        assert got.column("topic").to_pylist() == [topic for topic, _, _, _ in mine]
        for column in expected.column_names:
            assert got.column(column).to_pylist() == expected.column(column).to_pylist(), column
        assert set(got.column("captured").to_pylist()) == {None}
    # without a model, the bytes
    frame = raw.normalised(spark, path, columns=["topic", "seq", "payload"], **options)
    assert table_of(frame, "seq").column("payload").to_pylist() == [record for _, _, _, record in whole]
    # as a format, with the same options
    frame = spark.read.format("penstock-feed").options(model="trade", columns="seq,price", **options).load(str(path))
    assert frame.columns == ["seq", "price"]
    assert frame.count() == sum(message[2] == 2 for message in whole)
    # in the order received
    frame = raw.messages(spark, path, cache=str(tmp_path / "cache"), slice_size=20_000)
    got = table_of(frame, "source_seq")
    assert got.column("message").to_pylist() == blocks_of(data)
    assert got.column("source_seq").to_pylist() == list(range(1, len(got) + 1))
    assert Counter(got.column("type").to_pylist()) == Counter(chr(each[0]) for each in blocks_of(data))


@pytest.mark.spec("DAY-10")
def test_workers_convert_with_the_parameters_of_the_table(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "day.itch"
    write_day(path, 2_000)
    options = {"table": "itch", "date": DAY, "cache": str(tmp_path / "cache"), "slice_size": 20_000}
    columns = ["topic", "seq", "source_seq", "venue"]
    own = table_of(raw.normalised(spark, path, model="trade", columns=columns, **options), "seq")
    given = {**options, "venue": "XBOS", "prefix": "md.us.bx"}
    bx = table_of(raw.normalised(spark, path, model="trade", columns=columns, **given), "seq")
    assert set(own.column("venue").to_pylist()) == {"XNAS"}
    assert set(bx.column("venue").to_pylist()) == {"XBOS"}
    topics = [topic.replace("md.us.eq.", "md.us.bx.", 1) for topic in own.column("topic").to_pylist()]
    assert bx.column("topic").to_pylist() == topics
    # halts of Nasdaq do not apply to BX
    assert bx.column("source_seq").to_pylist() == own.column("source_seq").to_pylist()


@pytest.mark.spec("PIPE-11")
def test_damaged_data_is_skipped_and_reported(spark: Any, tmp_path: Path) -> None:
    data = bytearray(write_day(tmp_path / "whole.itch", 1_000))
    data[2] = ord("?")
    path = tmp_path / "day.itch.gz"
    path.write_bytes(gzip.compress(bytes(data[:-1])))
    options = {"table": "itch", "date": DAY, "cache": str(tmp_path / "cache")}
    rows = {row.code: row for row in raw.quarantine(spark, path, **options).collect()}
    assert set(rows) == {"kind", "damaged"}
    assert rows["kind"].position == 1
    assert rows["kind"].excerpt[:1] == b"?"
    assert rows["kind"].place == str(path)
    assert raw.normalised(spark, path, model="trade", **options).count() == sum(
        message[2] == 2 for message in converted_whole(path)
    )
    with pytest.raises(Exception, match="the format has no message of this type"):
        raw.normalised(spark, path, bad="fail", **options).count()


def test_wrong_options_are_refused(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "day.itch"
    write_day(path, 200)
    with pytest.raises(UnknownKeyError, match="did you mean 'table'"):
        raw.messages(spark, path, tabel="itch")
    with pytest.raises(ConfigurationError, match="needs a date"):
        raw.normalised(spark, path, table="itch")
    with pytest.raises(ConfigurationError, match="does not produce model 'trades'"):
        raw.normalised(spark, path, table="itch", date=DAY, model="trades")
    with pytest.raises((ConfigurationError, ModelError), match="unknown column 'prise'"):
        raw.normalised(spark, path, table="itch", date=DAY, model="trade", columns=["prise"])
    with pytest.raises(ConfigurationError, match="not converted"):
        raw.messages(spark, path, table="itch")
    with pytest.raises(ConfigurationError, match="no such file"):
        raw.messages(spark, tmp_path / "nowhere")
    with pytest.raises(Exception, match="valid options: bad, cache"):
        spark.read.format("penstock-feed").option("speed", "1").load(str(path))
