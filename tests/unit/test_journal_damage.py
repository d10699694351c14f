"""Damaged files: refused, truncated or reported; never a crash, never a wrong record."""

import shutil
from pathlib import Path

import pytest

from penstock.base.crc32c import crc32c
from penstock.base.errors import JournalCorruptError, JournalError, JournalGoneError, PenstockError
from penstock.journal import JournalReader, JournalWriter
from penstock.journal.core._log import SEGMENT_HEADER_SIZE
from penstock.journal.core.format import (
    MARK_NAME,
    OLDEST_NAME,
    OLDEST_SLOT_SIZE,
    Mark,
    decode_mark,
    decode_oldest,
    encode_mark,
)
from penstock.journal.live.files import Directory, SegmentFile, boot_id
from penstock.journal.live.verify import inspect
from unit.journal_kit import SMALL, read, segments, write
from waiting import wait_until

PAYLOADS = [b"one", b"two" * 5, b"", b"four" * 9]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def set_mark(path: Path, durable: int, run_id: bytes) -> None:
    """The journal as after a restart of the machine, or after a writer was killed that only knew `durable`."""
    mark = decode_mark((path / MARK_NAME).read_bytes())
    assert mark is not None
    (path / MARK_NAME).write_bytes(encode_mark(Mark(journal_id=mark.journal_id, boot_id=run_id, durable=durable)))


def segment_first(path: Path, index: int) -> int:
    return int(segments(path)[index].name[:20])


def problems(path: Path) -> list[str]:
    return [report.problem for report in inspect(Directory(path)) if report.problem]


def test_every_bit_of_a_segment_is_checked(path: Path) -> None:
    """After a restart of the machine: the mark is gone, and only the records themselves can be checked."""
    write(path, PAYLOADS)
    (path / MARK_NAME).unlink()
    (segment,) = segments(path)
    good, expected = segment.read_bytes(), read(path)
    for position in range(len(good)):
        for bit in (0, 7):
            damaged = bytearray(good)
            damaged[position] ^= 1 << bit
            segment.write_bytes(damaged)
            try:
                found = read(path)
            except PenstockError:
                found = []
            assert found == expected[: len(found)], f"byte {position}"
            try:
                with JournalWriter.open(path, SMALL) as journal:
                    assert journal.next_sequence <= len(PAYLOADS) + 1
                    # only the last record can pass for a torn tail: the next record confirms those before it
                    assert journal.next_sequence >= len(PAYLOADS)
            except JournalError:
                assert segment.read_bytes() == damaged, "no change"
            (path / MARK_NAME).unlink(missing_ok=True)


def test_every_bit_of_a_closed_segment_is_checked(path: Path) -> None:
    """The mark has the number of records: no damage can pass for a torn tail."""
    write(path, PAYLOADS)
    (segment,) = segments(path)
    good = segment.read_bytes()
    for position in range(len(good)):
        damaged = bytearray(good)
        damaged[position] ^= 0x10
        segment.write_bytes(damaged)
        with pytest.raises(JournalError):
            JournalWriter.open(path, SMALL)
        with pytest.raises(JournalError):
            read(path)
        assert problems(path)
        assert segment.read_bytes() == damaged


def test_every_truncation_is_detected_or_removed_as_a_torn_tail(path: Path) -> None:
    write(path, PAYLOADS)
    (segment,) = segments(path)
    good = segment.read_bytes()
    for size in range(len(good)):
        segment.write_bytes(good[:size])
        with pytest.raises(JournalCorruptError):
            JournalWriter.open(path, SMALL)
        with pytest.raises(JournalCorruptError):
            read(path)
        assert problems(path)


def test_a_torn_tail_is_truncated_exactly_after_the_last_valid_record(path: Path) -> None:
    write(path, PAYLOADS)
    (segment,) = segments(path)
    good = segment.read_bytes()
    for size in range(SEGMENT_HEADER_SIZE, len(good)):
        segment.write_bytes(good[:size])
        set_mark(path, 0, b"an earlier run..")
        before = read(path)
        with JournalWriter.open(path, SMALL) as journal:
            assert journal.next_sequence == len(before) + 1
            journal.append(b"next", 77)
        after = read(path)
        assert after[:-1] == before
        assert after[-1] == (len(before) + 1, 77, b"next")
    assert problems(path) == []


def test_valid_records_after_an_unacknowledged_hole_are_dropped(path: Path) -> None:
    """One batch, written by the disk in another order: none of it was acknowledged."""
    write(path, PAYLOADS, per_commit=4)
    (segment,) = segments(path)
    damaged = bytearray(segment.read_bytes())
    damaged[SEGMENT_HEADER_SIZE + 5] ^= 1
    segment.write_bytes(damaged)
    set_mark(path, 0, b"an earlier run..")
    assert read(path) == []
    with JournalWriter.open(path, SMALL) as journal:
        assert journal.next_sequence == 1
    assert segment.stat().st_size == SEGMENT_HEADER_SIZE


def test_damage_to_acknowledged_records_is_never_removed_as_a_torn_tail(path: Path) -> None:
    write(path, PAYLOADS)
    (segment,) = segments(path)
    damaged = bytearray(segment.read_bytes())
    damaged[SEGMENT_HEADER_SIZE + 33] ^= 1
    segment.write_bytes(damaged)
    set_mark(path, 0, b"an earlier run..")
    with pytest.raises(JournalCorruptError, match=r"00000000000000000001.journal at byte 64: record 1 is damaged"):
        JournalWriter.open(path, SMALL)
    with pytest.raises(JournalCorruptError, match="record 1 is damaged"):
        read(path)
    assert segment.read_bytes() == damaged
    assert "record 1 is damaged" in problems(path)[0]


def test_records_that_a_killed_writer_left_in_the_page_cache_are_kept(path: Path) -> None:
    """In the same boot of the machine, only the mark says which records are on the disk."""
    write(path, PAYLOADS, per_commit=4)
    expected = read(path)
    set_mark(path, 0, boot_id())
    assert read(path) == [], "no record is known to be on the disk"
    with JournalWriter.open(path, SMALL) as journal:
        assert journal.durable_sequence == 4
    assert read(path) == expected
    assert problems(path) == []


def test_a_new_segment_ends_the_previous_one(path: Path) -> None:
    """Records that a killed writer left are superseded from the start of the new segment."""
    write(path, PAYLOADS[:2])
    set_mark(path, 1, boot_id())
    write(path, PAYLOADS[2:])
    assert [record.payload for record in read(path)] == PAYLOADS
    assert [segment.name[:20] for segment in segments(path)] == [f"{1:020}", f"{2:020}"]
    assert problems(path) == []


def test_a_missing_segment_is_a_gap(path: Path) -> None:
    write(path, [bytes(1_000)] * 20)
    first, second, *_ = segments(path)
    second.unlink()
    with pytest.raises(JournalCorruptError, match="is missing"):
        JournalWriter.open(path, SMALL)
    with pytest.raises(JournalCorruptError):
        read(path)
    assert any("is missing" in problem for problem in problems(path))
    first.unlink()
    with JournalReader.open(path) as reader, pytest.raises(JournalGoneError):
        reader.seek(1)
    assert read(path)[-1].sequence == 20


@pytest.mark.spec("PROOF-1")
def test_a_missing_first_segment_is_distinguished_from_a_removed_one(path: Path) -> None:
    write(path, [bytes(1_000)] * 20)
    with JournalWriter.open(path, SMALL) as journal:
        journal.remove_before(segment_first(path, 2))
    assert segment_first(path, 0) > 1, "segments were removed by retention"
    with JournalWriter.open(path, SMALL) as journal:
        assert journal.next_sequence == 21
    assert problems(path) == []
    missing, following, *_ = segments(path)
    content = missing.read_bytes()
    missing.unlink()
    for _ in range(2):  # a refusal changes nothing
        with pytest.raises(JournalCorruptError, match="is missing") as refused:
            JournalWriter.open(path, SMALL)
        assert missing.name in str(refused.value)
    (problem,) = problems(path)
    assert "is missing" in problem
    missing.write_bytes(content)
    with JournalWriter.open(path, SMALL) as journal:
        assert journal.next_sequence == 21
    assert [record.sequence for record in read(path)] == list(range(int(missing.name[:20]), 21))
    assert following.exists()


def test_the_first_segment_is_missing_from_a_journal_that_never_removed_one(path: Path) -> None:
    write(path, [bytes(1_000)] * 20)
    segments(path)[0].unlink()
    with pytest.raises(JournalCorruptError, match="is missing"):
        JournalWriter.open(path, SMALL)
    (path / OLDEST_NAME).unlink()  # it is no longer known whether retention removed it
    with pytest.raises(JournalCorruptError, match="is missing or damaged"):
        JournalWriter.open(path, SMALL)
    (problem,) = problems(path)
    assert OLDEST_NAME in problem


@pytest.mark.parametrize("slot", [0, 1])
def test_a_torn_slot_of_the_oldest_record_leaves_the_other_slot(path: Path, slot: int) -> None:
    """A crash during a removal: the noted oldest record is the one before or after the removal."""
    write(path, [bytes(1_000)] * 20)
    before = [each.read_bytes() for each in segments(path)[:2]]
    names = segments(path)[:2]
    with JournalWriter.open(path, SMALL) as journal:
        journal.remove_before(segment_first(path, 2))
    note = bytearray((path / OLDEST_NAME).read_bytes())
    assert all(decode_oldest(bytes(note), where="")), "both slots are in use"
    note[slot * OLDEST_SLOT_SIZE + 20] ^= 1
    (path / OLDEST_NAME).write_bytes(note)
    for name, content in zip(names, before, strict=True):
        name.write_bytes(content)  # they were not removed yet
    with JournalWriter.open(path, SMALL) as journal:
        assert journal.next_sequence == 21
    assert [record.sequence for record in read(path)] == list(range(1, 21))


def test_segments_are_removed_on_a_disk_that_does_not_grow_a_file(path: Path) -> None:
    """The note of the oldest record has preallocated space."""
    write(path, [bytes(1_000)] * 20)
    size = (path / OLDEST_NAME).stat().st_size
    with JournalWriter.open(path, SMALL) as journal:
        for _ in range(3):
            journal.remove_before(segment_first(path, 1))
            first = segments(path)[0]
            wait_until(lambda first=first: not first.exists())
    assert (path / OLDEST_NAME).stat().st_size == size


def test_an_oldest_record_of_another_version_is_refused(path: Path) -> None:
    write(path, PAYLOADS)
    note = bytearray((path / OLDEST_NAME).read_bytes())
    note[8:12] = (2).to_bytes(4, "little")
    note[44:48] = crc32c(bytes(note[:44])).to_bytes(4, "little")
    (path / OLDEST_NAME).write_bytes(note)
    with pytest.raises(JournalError, match="format version 2"):
        JournalWriter.open(path, SMALL)


def test_all_segments_missing(path: Path) -> None:
    write(path, PAYLOADS)
    segments(path)[0].unlink()
    for call in (lambda: JournalWriter.open(path, SMALL), lambda: read(path)):
        with pytest.raises(JournalCorruptError, match="no segments"):
            call()


def test_a_copy_under_another_number_is_refused(path: Path) -> None:
    write(path, PAYLOADS)
    shutil.copy(segments(path)[0], path / f"{5:020}.journal")
    with pytest.raises(JournalError, match="unlike its name"):
        JournalWriter.open(path, SMALL)
    assert "unlike its name" in problems(path)[0]


def test_segments_of_two_journals_do_not_mix(path: Path, tmp_path: Path) -> None:
    for each in (path, tmp_path / "other"):
        write(each, [bytes(1_000)] * 8)
    shutil.copy(segments(tmp_path / "other")[1], segments(path)[1])
    for call in (lambda: JournalWriter.open(path, SMALL), lambda: read(path)):
        with pytest.raises(JournalError, match="belongs to another journal"):
            call()


@pytest.mark.parametrize("content", [b"", b"hello", bytes(4_096), b"PSJOURN\n" + bytes(100)])
@pytest.mark.parametrize("name", [f"{1:020}.journal", "notes.journal"])
def test_foreign_files_are_refused(path: Path, name: str, content: bytes) -> None:
    path.mkdir()
    (path / name).write_bytes(content)
    with pytest.raises(JournalError):
        JournalWriter.open(path, SMALL)
    assert (path / name).read_bytes() == content


def test_a_damaged_mark_is_ignored(path: Path) -> None:
    write(path, PAYLOADS)
    expected = read(path)
    for content in (b"", b"x", bytes(64), bytes(1_000)):
        (path / MARK_NAME).write_bytes(content)
        assert read(path) == expected
        with JournalWriter.open(path, SMALL) as journal:
            assert journal.next_sequence == len(PAYLOADS) + 1


@pytest.mark.parametrize("durable", [0, 1, 99])
def test_the_mark_of_another_journal_is_ignored(path: Path, durable: int) -> None:
    write(path, PAYLOADS)
    expected = read(path)
    foreign = Mark(journal_id=b"another journal.", boot_id=boot_id(), durable=durable)
    (path / MARK_NAME).write_bytes(encode_mark(foreign))
    assert read(path) == expected
    assert problems(path) == []


def test_a_reader_detects_that_its_journal_was_replaced(path: Path) -> None:
    write(path, PAYLOADS)
    with JournalReader.open(path) as reader:
        assert len(list(reader.read())) == 4
        shutil.rmtree(path)
        write(path, PAYLOADS)
        with pytest.raises(JournalError, match="belongs to another journal"):
            list(reader.read())


def test_a_segment_that_begins_during_the_inspection_is_not_damage(path: Path) -> None:
    with JournalWriter.open(path, SMALL) as journal:

        class Busy(Directory):
            def first_sequences(self) -> list[int]:
                firsts = super().first_sequences()
                journal.append(bytes(3_000))
                journal.commit()
                return firsts

        for _ in range(5):
            assert [report.problem for report in inspect(Busy(path)) if report.problem] == []


def test_segments_that_vanish_during_the_inspection_are_not_damage(path: Path) -> None:
    write(path, [bytes(3_000)] * 5)

    class Shrinking(Directory):
        def open_segment(self, first_sequence: int) -> SegmentFile | None:
            if first_sequence == 2:
                for segment in segments(path)[:2]:
                    segment.unlink()
            return super().open_segment(first_sequence)

    reports = list(inspect(Shrinking(path)))
    assert [(report.first_sequence, report.problem) for report in reports] == [(1, ""), (3, ""), (4, ""), (5, "")]


def test_an_incomplete_segment_is_removed(path: Path) -> None:
    write(path, PAYLOADS)
    (path / f"{5:020}.journal.new").write_bytes(b"half")
    with JournalWriter.open(path, SMALL):
        assert not list(path.glob("*.new"))


def test_an_invalid_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    for call in (lambda: JournalWriter.open(tmp_path / "file"), lambda: JournalReader.open(tmp_path / "file")):
        with pytest.raises(JournalError, match="file"):
            call()
