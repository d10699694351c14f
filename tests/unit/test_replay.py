"""The output of a replay: the recorded packets bit by bit, in order, at the right times."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.errors import ArchiveCorruptError, ModelError, NotFoundError
from penstock.model import MessageModel, shipped, shipped_names
from penstock.model.columns import to_spark
from penstock.model.recorded import from_spark, record_size_of
from penstock.spark.journals import JournalPlace
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.playing import Chosen, Pace, Play, blank_rows, interleaved
from penstock.spark.pipeline.recordings import plays_of_archive, plays_of_journal
from unit.recordings_kit import Day, Published, published, write_archive, write_journal

START_NS = 1_704_200_000 * 10**9
STEP_NS = 10**6


@pytest.fixture(scope="module")
def day() -> Day:
    return Day()


def played(plays: Any) -> list[Published]:
    found = []
    for play in plays:
        assert (np.diff(play.times_ns) >= 0).all()
        found += published(play.topic_data, play.payloads, play.rows)
    return found


@pytest.mark.spec("PIPE-9")
def test_an_archive_replays_the_published_bits(day: Day, tmp_path: Path) -> None:
    """Topics, ORIGINs, versions and records, rebuilt from columns, ordered by number across all tables."""
    write_archive(tmp_path, [day], files=3)
    assert {row.model_id for row in day.published()} > {shipped("trade").id, shipped("quote").id}
    assert played(plays_of_archive(Archive.open(tmp_path), Chosen())) == day.published()


@pytest.mark.spec("PIPE-9")
def test_a_journal_replays_each_message_once(day: Day, tmp_path: Path) -> None:
    """Active and backup were captured; the copies are left out."""
    active, backup = day.packets(1), day.packets(2)
    both = [packet for pair in zip(active, backup, strict=True) for packet in pair]
    write_journal(tmp_path / "journal", both, start_ns=START_NS, step_ns=STEP_NS)
    assert played(plays_of_journal(JournalPlace(str(tmp_path / "journal")), Chosen())) == day.published()


def test_several_streams_are_mixed_by_time_and_each_keeps_its_order(tmp_path: Path) -> None:
    days = [Day(500, stream_id=5, seed=3), Day(700, stream_id=6, seed=4)]
    write_archive(tmp_path, days)
    found = played(plays_of_archive(Archive.open(tmp_path), Chosen()))
    for each in days:
        stream = each.stream_id.to_bytes(4, "little")
        assert [message for message in found if message.extensions[4:8] == stream] == each.published()
    assert found != days[0].published() + days[1].published()
    only = played(plays_of_archive(Archive.open(tmp_path), Chosen(streams=[6])))
    assert only == days[1].published()


def test_time_range_and_topics_select_messages(day: Day, tmp_path: Path) -> None:
    packets = day.packets(1)
    write_journal(tmp_path / "journal", packets, start_ns=START_NS, step_ns=STEP_NS)
    place = JournalPlace(str(tmp_path / "journal"))
    first, last = 10, 20
    chosen = Chosen(START_NS + first * STEP_NS, START_NS + last * STEP_NS)
    some = played(plays_of_journal(place, chosen))
    whole = day.published()
    assert 0 < len(some) < len(whole)
    start = whole.index(some[0])
    assert some == whole[start : start + len(some)]
    times = [play.times_ns for play in plays_of_journal(place, chosen)]
    assert {int(each) for each in np.concatenate(times)} == {START_NS + n * STEP_NS for n in range(first, last)}
    trades = played(plays_of_journal(place, Chosen(topics=["md.us.eq.*.trade"])))
    assert trades == [each for each in whole if each.topic.endswith(".trade")]
    write_archive(tmp_path / "archive", [day])
    archive = Archive.open(tmp_path / "archive")
    assert played(plays_of_archive(archive, Chosen(topics=["md.us.eq.*.trade"]))) == trades
    assert played(plays_of_archive(archive, Chosen(to_ns=START_NS - 30 * 86_400 * 10**9))) == []


def test_an_archive_that_cannot_be_replayed_is_refused_with_the_reason(day: Day, tmp_path: Path) -> None:
    Archive.writing(tmp_path / "empty").close()
    with pytest.raises(NotFoundError):
        list(plays_of_archive(Archive.open(tmp_path / "empty"), Chosen()))
    write_archive(tmp_path / "archive", [day])
    archive = Archive.open(tmp_path / "archive")
    victim = Path(archive.paths("trade")[0])
    data = bytearray(victim.read_bytes())
    victim.write_bytes(data[: len(data) // 2])
    with pytest.raises(ArchiveCorruptError, match="part-"):
        list(plays_of_archive(archive, Chosen()))
    victim.unlink()
    with pytest.raises(ArchiveCorruptError, match="is missing"):
        list(plays_of_archive(archive, Chosen()))


@given(st.data())
def test_records_are_rebuilt_from_columns_bit_by_bit(data: st.DataObject) -> None:
    """Any record with valid texts and prices of at most 18 digits."""
    model = shipped(data.draw(st.sampled_from(shipped_names())))
    records = np.frombuffer(bytearray(bytes(model.new()) * 5), model.dtype)
    for field in model.fields:
        for index in range(len(records)):
            if field.type == "text":
                text = data.draw(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=field.size))
                records[field.name][index] = text.encode()[: field.size].decode(errors="ignore").encode()
            elif field.storage[0] == "f":
                records[field.name][index] = data.draw(st.floats(allow_nan=False, width=8 * field.size))
            elif field.is_decimal:
                records[field.name][index] = data.draw(st.integers(-(10**18) + 1, 10**18 - 1))
            else:
                bits = 8 * field.size
                low = -(2 ** (bits - 1)) if field.storage[0] == "i" else 0
                records[field.name][index] = data.draw(st.integers(low, low + 2**bits - 1))
    columns = to_spark(model, records)
    assert from_spark(model, columns).tobytes() == records.tobytes()
    assert from_spark(model, columns.slice(2, 2)).tobytes() == records[2:4].tobytes()


def test_records_of_older_versions_have_their_size() -> None:
    old = '[{ name = "number", type = "i32" }, { name = "small", type = "u8" }'
    new = old + ', { name = "count", type = "u64", since = 2 }]'
    head = 'id = 900\nname = "sample"\n'
    one = MessageModel.parse(f"{head}version = 1\nfield = {old}]")
    two = MessageModel.parse(f"{head}version = 2\nfield = {new}")
    assert (record_size_of(two, 1), record_size_of(two, 2)) == (one.record_size, two.record_size) == (8, 16)


def test_columns_that_form_no_records_are_refused() -> None:
    model = shipped("trade")
    for name, value in (("action", "dance"), ("venue", "much too long")):
        with pytest.raises(ModelError, match=name):
            from_spark(model, pa.RecordBatch.from_pydict({name: [value]}))


def play_of(numbers: list[int]) -> Play:
    nothing = np.zeros(0, np.uint8)
    return Play(nothing, nothing, blank_rows(len(numbers)), np.array(numbers, np.int64))


@given(st.lists(st.lists(st.integers(0, 50), max_size=30).map(sorted), max_size=5), st.integers(1, 7))
def test_sources_are_interleaved_in_order(sources: list[list[int]], size: int) -> None:
    def pieces(numbers: list[int]) -> Any:
        return (play_of(numbers[start : start + size]) for start in range(0, len(numbers), size))

    mixed = interleaved([pieces(each) for each in sources], lambda play: play.times_ns)
    found = [list(play.times_ns) for play in mixed]
    assert [number for piece in found for number in piece] == sorted(number for each in sources for number in each)


@pytest.mark.spec("PIPE-9")
def test_the_pace_is_that_of_the_recording_or_a_multiple() -> None:
    times = np.array([1_000, 1_000, 1_500, 3_000], np.int64)
    pace = Pace(2.0, now_ns=50, first_time_ns=1_000)
    assert [pace.due(times, 50 + after) for after in (0, 249, 250, 999, 1_000, 9_999)] == [2, 2, 3, 3, 4, 4]
    assert pace.wait_ns(1_500, 50) == 250
    assert pace.wait_ns(1_500, 400) == 0
    assert pace.late_ns(1_500, 400) == 100
    at_once = Pace(0.0, now_ns=50, first_time_ns=1_000)
    assert (at_once.due(times, 50), at_once.wait_ns(3_000, 50), at_once.late_ns(1, 10**9)) == (4, 0, 0)
