"""Sessions of source streams are rows of a table of facts."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from penstock.feed.core.sync.announcement import announcement_body, announcement_message, end_message
from penstock.feed.core.sync.messages import Announced
from penstock.middleware.core.events import OutgoingMessage
from penstock.middleware.core.source_stream import DiscontinuityNote
from penstock.spark.journals import JournalPlace
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.work import write_slice
from penstock.spark.slices import cut
from penstock.wire import OriginFlag, Packer
from spark.pipeline_kit import CAPTURED_NS, GROUP, TERM, write_journal

SYNCHRONISED = int(OriginFlag.SYNCHRONISED)


def begun(session: str, date: str, number: int, *, is_repeated: bool = False) -> OutgoingMessage:
    body = announcement_body(DiscontinuityNote("session", [], session, date))
    announced = Announced(TERM, 7, number, number + 1, body)
    return announcement_message(announced, TERM, SYNCHRONISED, is_repeated=is_repeated)


def ended(session: str, date: str, number: int) -> OutgoingMessage:
    place = {"number": number, "source_sequence": number + 1}
    return end_message(7, TERM, SYNCHRONISED, session=session, trading_date=date, **place)  # type: ignore[arg-type]


@pytest.mark.spec("DAY-3", "PIPE-4")
def test_begin_and_end_of_sessions_are_facts_of_a_capture(tmp_path: Path) -> None:
    days = ("day 1", "2024-01-02"), ("day 2", "2024-01-03")
    said = [begun(*days[0], 0), ended(*days[0], 50), begun(*days[1], 50), begun(*days[1], 50, is_repeated=True)]
    packer = Packer(1, GROUP, 1)
    packets = [
        packet for each in said for packet in packer.add(each.topic, bytes(each.payload), extensions=each.extensions)
    ]
    rest = packer.flush()
    assert rest is not None
    write_journal(tmp_path / "journal", [*packets, rest])
    (piece,) = cut(JournalPlace(str(tmp_path / "journal")), 1, len(packets) + 1, cursors=[])
    with Archive.writing(tmp_path / "archive") as archive:
        staging = archive.begin()
        result = write_slice(staging, piece)
        (file,) = [each for each in result.files if each.table == "session"]
        rows = pq.ParquetFile(staging.path / file.path).read().to_pylist()
    assert [(row["reason"], row["session"], row["trading_date"], row["seq"], row["source_seq"]) for row in rows] == [
        ("session", "day 1", "2024-01-02", 0, 1),
        ("end", "day 1", "2024-01-02", 50, 51),
        ("session", "day 2", "2024-01-03", 50, 51),
    ]
    assert {(row["publisher"], row["term"]) for row in rows} == {(1, TERM)}
    assert all(row["captured"] >= CAPTURED_NS for row in rows)
    assert result.account.facts["session"] == 3
