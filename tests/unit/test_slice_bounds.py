"""Hostile times and stream numbers cannot exceed the partitions of a slice; every message stays accounted for."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from penstock.model import shipped
from penstock.spark.journals import JournalPlace
from penstock.spark.pipeline.archive import bounds
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.archive.bounds import PartitionBound, partition_keys, partition_of
from penstock.spark.pipeline.work import SliceResult, write_slice
from penstock.spark.slices import cut
from penstock.wire import Extension, Origin, OriginFlag, Packer, encode_extensions, encode_origin
from spark.pipeline_kit import CAPTURED_NS, GROUP, TERM, write_journal

TRADE = shipped("trade")
DAY_NS = 86_400 * 10**9
FEW = 16


@pytest.fixture(autouse=True)
def few_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "PARTITIONS_MAX", FEW)


def packets_of(messages: list[tuple[int, int]]) -> list[bytes]:
    """Trades of (stream, event time), numbered in each stream."""
    packer, packets, seqs = Packer(1, GROUP, 1), [], dict[int, int]()
    for stream, time_ns in messages:
        seqs[stream] = seqs.get(stream, 0) + 1
        origin = Origin(stream, TERM, 0, int(OriginFlag.SYNCHRONISED), seqs[stream], seqs[stream])
        record = np.zeros(1, TRADE.dtype)
        record["event_time"] = time_ns
        extensions = encode_extensions({Extension.ORIGIN: encode_origin(origin)})
        packets += packer.add("a.b", record.tobytes(), extensions=extensions, model_id=TRADE.id, model_version=1)
    rest = packer.flush()
    return [*packets, rest] if rest else packets


def written(path: Path, messages: list[tuple[int, int]]) -> tuple[SliceResult, dict[str, list[Any]]]:
    """The result of one slice of these messages, and the rows of its tables."""
    place = JournalPlace(str(path / "journal"))
    packets = packets_of(messages)
    write_journal(Path(place.where), packets)
    (piece,) = cut(place, 1, len(packets), cursors=[])
    with Archive.writing(path / "archive") as archive:
        staging = archive.begin()
        result = write_slice(staging, piece)
        rows: dict[str, list[Any]] = {}
        for file in result.files:
            rows.setdefault(file.table, []).extend(pq.ParquetFile(staging.path / file.path).read().to_pylist())
    assert result.account.is_balanced
    assert result.account.taken == len(messages)
    assert {table: len(found) for table, found in rows.items()} == result.account.rows | result.account.facts
    return result, rows


@pytest.mark.spec("PIPE-11")
def test_rows_of_too_many_dates_are_quarantined(tmp_path: Path) -> None:
    messages = [(7, day * DAY_NS + 5) for day in range(1, FEW + 101)]
    messages.append((7, DAY_NS + 6))  # in an existing partition
    result, rows = written(tmp_path, messages)
    assert result.account.rows == {"trade": FEW + 1}
    assert result.account.quarantined == {"partitions": 100}
    assert len(rows["quarantine"]) == 100
    assert "too many dates and streams" in rows["quarantine"][0]["reason"]
    assert len({(file.date, file.stream) for file in result.files if file.table == "trade"}) == FEW


@pytest.mark.spec("PIPE-11")
def test_rows_and_facts_of_too_many_streams_are_quarantined(tmp_path: Path) -> None:
    messages = [(stream, CAPTURED_NS) for stream in range(1, FEW + 51)]
    result, rows = written(tmp_path, messages)
    assert result.account.rows == {"trade": FEW}
    assert result.account.quarantined == {"partitions": 50}
    reasons = [row["reason"] for row in rows["quarantine"]]
    assert len(reasons) == 50 + 2
    assert [text for text in reasons if "omitted" in text] == [
        f"50 rows of {table} are omitted: the slice has too many streams" for table in ("delivery", "agreement")
    ]
    for table in ("delivery", "agreement"):
        assert len({file.stream for file in result.files if file.table == table}) == FEW


@pytest.mark.spec("PIPE-11")
def test_a_time_that_is_no_date_creates_no_partition(tmp_path: Path) -> None:
    result, rows = written(tmp_path, [(7, -1), (7, -(2**62)), (7, 0), (7, 2**63 - 1), (2**32 - 1, CAPTURED_NS)])
    assert result.account.rows == {"trade": 3}
    assert result.account.quarantined == {"time": 2}
    assert [row["position"] for row in rows["quarantine"]] == [1, 1]
    found = {(file.date, file.stream) for file in result.files if file.table == "trade"}
    assert found == {("2024-01-02", 7), ("2262-04-11", 7), ("2024-01-02", -1)}, "a stream is the INT of its bits"


def test_an_accepted_partition_stays_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "PARTITIONS_MAX", 2)
    bound = PartitionBound()
    days, streams = np.array([1, 2, 3, 1]) * DAY_NS, np.array([1, 1, 1, 2])
    assert bound.admit(days, streams).sum() == 2
    assert bound.admit(days, streams).tolist() == bound.admit(days, streams).tolist()
    assert not bound.admit(days[2:3], streams[2:3]).any()
    different, which = partition_keys(days, np.array([0, 2**32 - 1, 5, 0]))
    assert [partition_of(int(different[index])) for index in which] == [(1, 0), (2, -1), (3, 5), (1, 0)]
