"""The pipeline from feeds and captures to the archive: every message once, complete accounts, resumable."""

from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pandas as pd
import polars
import pytest

from file_kit import readable_by_others
from penstock.base.errors import ConfigurationError, JournalGoneError
from penstock.capture.core.cursors import CursorImage
from penstock.journal import JournalConfig, JournalWriter
from penstock.spark.feedslices import Conversion
from penstock.spark.journals import JournalPlace
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.runner import balance, follow, run
from penstock.spark.pipeline.sources.capture import FeedSource, JournalSource
from spark.pipeline_kit import CAPTURED_NS, DAY, LOST, Silent, capture_of, converted, write_feed, write_journal

CONVERSION = Conversion("itch", 1, DAY.isoformat())


def ids(frame: Any) -> list[tuple[int, int]]:
    return sorted((row.stream, row.seq) for row in frame.select("stream", "seq").collect())


@pytest.mark.spec("PIPE-6", "PIPE-11", "AUTH-7")
def test_a_feed_is_archived_once_and_all_readers_get_the_same(spark: Any, tmp_path: Path) -> None:
    feed = tmp_path / "day.itch"
    count = write_feed(feed)
    with feed.open("ab") as file:
        file.write(b"\x00\x05?what" + b"\x00\x30cut off")  # an unknown type, and a truncated message
    path = tmp_path / "archive"
    source = FeedSource(feed, CONVERSION, cache=tmp_path / "cache")
    with Archive.writing(path) as archive:
        report = run(spark, archive, [source], (), Silent(), cores=2)
        assert report.is_complete
        account = report.account
        assert account.is_balanced
        assert account.source.taken == count + 1
        assert account.source.quarantined == {"kind": 1}
        assert account.in_quarantine == 2
        assert f"{count + 1:,} source messages = {count:,} converted + 1 quarantined (kind)" in balance(account)[0]
        again = run(spark, archive, [source], (), Silent(), cores=2)
        assert again.commits == 0, "archived messages are skipped"
        assert again.is_complete
        other = bytearray(feed.read_bytes())
        other[len(other) // 2] ^= 1
        feed.write_bytes(other)
        with pytest.raises(ConfigurationError, match="which is the stream of"):
            source.pieces(archive.catalogue)  # a file that differs in one bit is another feed

    assert readable_by_others(path) == []
    archive = Archive.open(path)
    reasons = sorted(row.reason for row in archive.frame(spark, "quarantine").collect())
    assert "truncated" in reasons[0]
    frame = archive.frame(spark, "trade")
    rows = account.rows["trade"]
    assert frame.count() == rows
    plain = spark.read.parquet(str(path / "trade"))
    assert sorted(plain.columns) == sorted(frame.columns)
    volume = frame.selectExpr("sum(quantity) v").collect()[0].v
    assert plain.selectExpr("sum(quantity) v").collect()[0].v == volume
    assert int(pd.read_parquet(path / "trade")["quantity"].sum()) == volume
    assert polars.read_parquet(path / "trade")["quantity"].sum() == volume
    query = f"select sum(quantity), min(price) from read_parquet('{path}/trade/**/*.parquet', hive_partitioning=true)"
    (found,) = duckdb.sql(query).fetchall()
    assert int(found[0]) == volume
    assert found[1] == frame.selectExpr("min(price) p").collect()[0].p


@pytest.mark.spec("PIPE-6", "PIPE-11")
def test_a_capture_of_two_adapters_is_archived_once_in_one_step_or_many(spark: Any, tmp_path: Path) -> None:
    messages = converted(3_000)
    packets = capture_of(messages, corrupt=1_500)
    records = [*packets[:10], b"garbage", LOST, *packets[10:]]
    half = len(records) // 2
    place = JournalPlace(str(tmp_path / "journal"))
    write_journal(Path(place.where), records[:half])
    with Archive.writing(tmp_path / "steps") as archive:
        source = JournalSource(place, cores=2)
        run(spark, archive, [source], (), Silent(), cores=2)
        write_journal(Path(place.where), records[half:], half + 1)
        run(spark, archive, [source], (), Silent(), cores=2)
        steps = archive.catalogue
    looks = iter([False, False, True])
    with Archive.writing(tmp_path / "stream") as archive:
        source = JournalSource(place, cores=1, records_max=half + 7)
        report = follow(spark, archive, [source], (), Silent(), is_ended=lambda: next(looks))
        assert report.commits == 2
        assert len(report.delays_s) == 2
        streamed = archive.catalogue

    assert msgspec.structs.replace(steps.account, facts={}) == msgspec.structs.replace(streamed.account, facts={})
    assert steps.cursors == streamed.cursors
    account = steps.account
    assert account.is_balanced
    assert account.taken == 2 * len(messages) + 1
    assert account.repeated == len(messages)
    assert account.quarantined == {"foreign": 1}
    assert CursorImage(*steps.cursors["1"][:6]).seq == len(messages)
    frames = {name: Archive.open(tmp_path / name) for name in ("steps", "stream")}
    tables = [table for table in account.rows if table in frames["steps"].catalogue.files]
    for name, archive in frames.items():
        seqs = sorted(seq for table in tables for _, seq in ids(archive.frame(spark, table)))
        assert seqs == list(range(1, len(messages) + 1)), name
    check_facts(spark, frames["steps"], len(messages))


@pytest.mark.spec("PIPE-11")
def test_records_removed_by_retention_are_reported_and_the_run_continues_after_them(spark: Any, tmp_path: Path) -> None:
    packets = capture_of(converted(6_000))
    early = len(packets) // 10
    place = JournalPlace(str(tmp_path / "journal"))
    write_journal(Path(place.where), packets[:early])
    is_ended = iter([False, True, False, True]).__next__
    with Archive.writing(tmp_path / "archive") as archive:
        follow(spark, archive, [JournalSource(place, records_max=10_000)], (), Silent(), is_ended=is_ended)
        with JournalWriter.open(place.where, JournalConfig(segment_bytes=65_536, retention_bytes=300_000)) as journal:
            for number, record in enumerate(packets[early:], start=early + 1):
                journal.append(record, CAPTURED_NS + number * 1_000)
                if number % 1_000 == 0:
                    journal.commit()  # only durable records can be removed
        kept = place.measure().first_sequence
        assert kept > early + 1, "the journal's retention removed records"
        gone = f"records {early + 1:,} to {kept - 1:,} were removed before they were archived"
        with pytest.raises(JournalGoneError, match=gone) as caught:
            run(spark, archive, [JournalSource(place)], (), Silent(), cores=1)
        assert "--skip-removed" in str(caught.value.hint)
        assert archive.catalogue.number == 1, "unchanged"
        source = JournalSource(place, records_max=10_000, is_skipping=True)
        report = follow(spark, archive, [source], (), Silent(), is_ended=is_ended)
        assert report.account.is_balanced
        assert report.account.source.removed == kept - 1 - early
        assert any(
            f"not in this sum: {kept - 1 - early:,} records that retention removed" in line
            for line in balance(report.account)
        )
        assert source.pieces(archive.catalogue) == [], "all remaining records are archived"
    archive = Archive.open(tmp_path / "archive")
    (row,) = [row for row in archive.frame(spark, "quarantine").collect() if row.code == "removed"]
    assert (row.position, row.place) == (early + 1, place.where)
    assert f"records {early + 1} to {kept - 1} were removed" in row.reason
    account = archive.catalogue.account
    assert account.is_balanced
    assert account.source.removed == kept - 1 - early
    tables = [table for table in account.rows if table in archive.catalogue.files]
    seqs = [seq for table in tables for _, seq in ids(archive.frame(spark, table))]
    assert len(seqs) == len(set(seqs)) == sum(account.rows.values())


def check_facts(spark: Any, archive: Archive, count: int) -> None:
    loss = archive.frame(spark, "loss").collect()
    assert [(row.publisher, row.first_packet, row.last_packet) for row in loss] == [(1, 7, 9)]
    delivery = archive.frame(spark, "delivery").groupBy("publisher").agg({"messages": "sum", "repeated": "sum"})
    found = {row.publisher: (row["sum(messages)"], row["sum(repeated)"]) for row in delivery.collect()}
    assert {publisher: messages for publisher, (messages, _) in found.items()} == {1: count, 2: count}
    assert sum(repeated for _, repeated in found.values()) == count
    blocks: dict[int, dict[int, tuple[int, int]]] = {1: {}, 2: {}}
    agreement = archive.frame(spark, "agreement").groupBy("publisher", "block")
    for row in agreement.agg({"messages": "sum", "digest": "sum"}).collect():
        blocks[row.publisher][row.block] = row["sum(messages)"], row["sum(digest)"]
    assert blocks[1].keys() == blocks[2].keys()
    differing = {block for block in blocks[1] if blocks[1][block] != blocks[2][block]}
    assert differing == {1_501 // 1_024}, "the one message that differs is found, and nothing else"
    assert archive.frame(spark, "quarantine").collect()[0].position == 11
