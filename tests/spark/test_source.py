"""The data source `penstock` against a real Spark."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from children import child_environment
from penstock.base.errors import UnknownKeyError
from penstock.spark import messages
from penstock.wire import Packer, encode_gone
from spark.journal_kit import FIRST_NS, GROUP, Publisher, append
from unit.test_slices import served
from waiting import wait_until


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """5,000 trades from two publishers; three records that are not packets, a loss, and a message of an unknown
    model."""
    path = tmp_path_factory.mktemp("captured") / "j.d"
    one, two = Publisher(1).packets(5_000), Publisher(2).packets(5_000)
    mixed = [packet for pair in zip(one, two, strict=True) for packet in pair]
    mixed[100:100] = [b"garbage", b"", b"PS" + b"\xff" * 60]
    mixed[200:200] = [encode_gone(9, GROUP, 1, [(4, 6)])]
    other = Packer(3, GROUP, 1)
    other.add("other.text", b"hello")
    append(path, [*mixed, other.flush() or b""])
    return path


def load(spark: Any, path: Path, **options: Any) -> Any:
    reader = spark.read.format("penstock").option("journal", str(path))
    for key, value in options.items():
        reader = reader.option(key.strip("_"), str(value))
    return reader.load()


@pytest.mark.parametrize(
    "options", [{}, {"model": "trade", "columns": "seq,symbol,price,record", "from_": 7, "to": 900}]
)
def test_messages_gives_the_rows_of_the_data_source(spark: Any, captured: Path, options: dict[str, Any]) -> None:
    quick, usual = messages(spark, journal=captured, **options), load(spark, captured, **options)
    assert quick.schema == usual.schema
    rows = sorted(map(repr, quick.collect()))
    assert len(rows) > 200
    assert rows == sorted(map(repr, usual.collect()))


def test_messages_refuses_the_options_that_the_data_source_refuses(spark: Any, captured: Path) -> None:
    with pytest.raises(UnknownKeyError, match=r"did you mean 'model'\?"):
        messages(spark, journal=captured, modle="trade")


@pytest.mark.spec("PIPE-1")
def test_a_journal_as_a_table(spark: Any, captured: Path) -> None:
    everything = load(spark, captured)
    assert everything.columns == ["topic", "stream", "seq", "source_seq", "part", "captured", "payload"]
    rows = everything.groupBy("topic").count().collect()
    assert {row["topic"]: row["count"] for row in rows} == {
        **{f"md.S{number}.trade": 1_000 for number in range(5)},
        "other.text": 1,
    }
    trades = load(spark, captured, model="trade")
    assert trades.columns[:6] == ["topic", "stream", "seq", "part", "captured", "symbol"]
    assert trades.rdd.getNumPartitions() > 1 if hasattr(trades, "rdd") else True
    found = trades.agg(F.count("*"), F.countDistinct("seq"), F.sum("quantity"), F.sum("price"), F.max("symbol")).first()
    total = 5_000 * 5_001 // 2
    assert (found[0], found[1], found[2], int(found[3]), found[4]) == (5_000, 5_000, total, total, "S4")
    assert load(spark, captured, model="trade", copies="all").count() == 10_000
    bad = load(spark, captured, rows="bad").orderBy("record").collect()
    assert [(row["record"], row["code"]) for row in bad] == [(101, "foreign"), (102, "foreign"), (103, "version")]


@pytest.mark.spec("PIPE-1")
def test_columns_are_pruned_and_filters_pushed(spark: Any, captured: Path) -> None:
    pruned = load(spark, captured, model="trade", columns="seq,price,record,publisher,group,model,version")
    assert pruned.columns == ["seq", "price", "record", "publisher", "group", "model", "version"]
    chosen = pruned.where("seq > 10 and seq <= 20 and record < 1000000 and price <> 15")
    assert sorted(row["seq"] for row in chosen.collect()) == [11, 12, 13, 14, 16, 17, 18, 19, 20]
    assert {(row["group"], row["model"], row["version"]) for row in chosen.collect()} == {("239.1.1.1", "trade", 1)}
    plan = chosen._jdf.queryExecution().executedPlan().toString()
    assert re.search(r"NOT \(price#\d+ = 15", plan)  # a field: Spark filters it
    assert not re.search(r"(seq|record)#\d+L [<>]", plan)  # of the envelope: the source has applied them
    trades = load(spark, captured, model="trade", topics="md.S1.*,md.S2.*,!md.S2.>", condition="quantity > 4990")
    assert sorted(row["seq"] for row in trades.collect()) == [4_991, 4_996]
    by_topic = load(spark, captured).where("topic like 'md.S3%' and stream = 7").agg(F.count("*")).first()[0]
    assert by_topic == 1_000
    by_schema = spark.read.format("penstock").option("journal", str(captured)).option("model", "trade")
    assert (
        by_schema.schema("quantity BIGINT, seq BIGINT").load().agg(F.sum("quantity")).first()[0] == 5_000 * 5_001 // 2
    )
    places = load(spark, captured, copies="all", columns="record", from_=11, to=20).distinct().count()
    assert places == 10
    timed = load(spark, captured, copies="all", columns="captured", from_="2023-11-14T22:13:30Z")
    assert timed.agg(F.min("captured")).first()[0] == FIRST_NS + 10 * 10**9


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"journl": "x"}, "did you mean 'journal'"),
        ({"model": "trad"}, "did you mean 'trade'"),
        ({"columns": "seq,prize"}, "unknown column 'prize'"),
        ({"copies": "some"}, "copies"),
        ({"condition": "quantity > 1"}, "option model"),
        ({"from": "yesterday"}, "is not a journal position"),
        ({"journal": "/nowhere/j.d"}, "cannot list the directory"),
        ({"model": "trade", "topics": "a..b"}, "topic"),
    ],
)
def test_invalid_options_are_refused(spark: Any, captured: Path, options: dict[str, str], text: str) -> None:
    reader = spark.read.format("penstock").option("journal", str(captured)).options(**options)
    with pytest.raises(Exception, match=text):
        reader.load().count()


@pytest.mark.spec("PIPE-2")
def test_a_journal_of_another_machine(spark: Any, captured: Path, tmp_path: Path) -> None:
    with served(str(captured)) as port:
        reader = spark.read.format("penstock").option("connect", f"127.0.0.1:{port}").option("model", "trade")
        assert reader.load().agg(F.sum("quantity")).first()[0] == 5_000 * 5_001 // 2


STREAMING = """
import sys
from penstock.spark import session
journal, out, checkpoint = sys.argv[1:4]
with session("local[2]") as spark:
    frame = (spark.readStream.format("penstock").option("journal", journal).option("model", "trade")
             .option("columns", "seq,quantity,record").option("max_records", 40).load())
    query = frame.writeStream.format("parquet").option("checkpointLocation", checkpoint).start(out)
    print("started", flush=True)
    query.awaitTermination()
"""


@pytest.mark.spec("PIPE-1")
def test_a_killed_query_continues_without_loss_or_repetition(spark: Any, tmp_path: Path) -> None:
    """kill -9 in the middle of micro-batches; the rest is read from the checkpoint, with records that arrived in
    between."""
    journal, out, checkpoint = tmp_path / "j.d", tmp_path / "out", tmp_path / "checkpoint"
    publisher, copies = Publisher(1), Publisher(2)
    mixed = [packet for pair in zip(publisher.packets(2_000), copies.packets(2_000), strict=True) for packet in pair]
    append(journal, mixed)
    script = tmp_path / "query.py"
    script.write_text(STREAMING)
    environment = child_environment()
    command = [sys.executable, str(script), str(journal), str(out), str(checkpoint)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        wait_until(lambda: len(list((checkpoint / "commits").glob("[0-9]*"))) >= 2, "micro-batches")
        os.killpg(process.pid, signal.SIGKILL)
    append(journal, publisher.packets(500))
    frame = spark.readStream.format("penstock").option("journal", str(journal)).option("model", "trade")
    query = (
        (frame.option("columns", "seq,quantity,record").load().writeStream.format("parquet").trigger(availableNow=True))
        .option("checkpointLocation", str(checkpoint))
        .start(str(out))
    )
    assert query.awaitTermination(120)
    found = [row["seq"] for row in spark.read.parquet(str(out)).select("seq").collect()]
    assert sorted(found) == list(range(1, 2_501))
