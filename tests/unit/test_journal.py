"""Journal writer and reader on real files."""

import asyncio
import errno
import os
import threading
from concurrent.futures import Future
from pathlib import Path

import numpy
import pytest

from penstock.base.counters import Counters
from penstock.base.errors import JournalCorruptError, JournalGoneError, LimitError, LocalProtocolError
from penstock.journal import FollowConfig, JournalConfig, JournalReader, JournalWriter
from penstock.journal.core.format import MARK_NAME
from penstock.journal.live.files import Directory, SegmentFile, WritableDirectory
from penstock.journal.live.verify import inspect
from unit.journal_kit import SMALL, read, segments, write

PATIENCE_SECONDS = 120


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def test_records_keep_order_content_and_time_across_segments_and_restarts(path: Path) -> None:
    payloads = [bytes([number % 256]) * (number * 37 % 900) for number in range(1, 101)]
    write(path, payloads[:50])
    with JournalWriter.open(path, SMALL) as journal:
        assert journal.next_sequence == 51
        for number, payload in enumerate(payloads[50:], start=51):
            assert journal.append(payload, number * 10) == number
        assert journal.commit() == 100
    assert read(path) == [(number, number * 10, payload) for number, payload in enumerate(payloads, start=1)]
    assert len(segments(path)) > 5


def test_a_reader_can_start_at_any_record(path: Path) -> None:
    write(path, [bytes(200)] * 60)
    with JournalReader.open(path, FollowConfig(chunk_bytes=4_096)) as reader:
        for _ in range(2):  # the second time from cached positions
            for number in range(1, 61):
                assert [each.sequence for each in reader.read(from_sequence=number)] == list(range(number, 61))
                for time_ns in (number * 10 - 9, number * 10):
                    found = [each.sequence for each in reader.read(from_time_ns=time_ns)]
                    assert found == list(range(number, 61))
        assert list(reader.read(from_time_ns=601)) == []
        assert list(reader.read(from_sequence=61)) == []
        assert next(reader.read(from_time_ns=-(2**63))).sequence == 1


@pytest.mark.parametrize("rows_max", [1, 7])
def test_skipped_records_are_not_read_one_by_one(path: Path, monkeypatch: pytest.MonkeyPatch, rows_max: int) -> None:
    """Otherwise a router that fetches one message of a long log would read all records before it."""
    size_read = 0
    read_segment = SegmentFile.read

    def counted(self: SegmentFile, offset: int, size: int) -> bytes:
        nonlocal size_read
        data = read_segment(self, offset, size)
        size_read += len(data)
        return data

    with JournalWriter.open(path) as journal:
        journal.append_batch([bytes(100)] * 5_000)
        journal.commit()
    monkeypatch.setattr(SegmentFile, "read", counted)
    with JournalReader.open(path, FollowConfig(chunk_bytes=65_536)) as reader:
        reader.seek(4_900)
        assert reader.read_batch(rows_max).rows["sequence"].tolist() == list(range(4_900, 4_900 + rows_max))
    assert size_read <= 2 * (path / segments(path)[-1]).stat().st_size


def test_a_journal_is_listed_again_only_at_its_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = 0
    first_sequences = Directory.first_sequences

    def counted(self: Directory) -> list[int]:
        nonlocal listed
        listed += 1
        return first_sequences(self)

    monkeypatch.setattr(Directory, "first_sequences", counted)
    write(path, [bytes(1_000)] * 100)
    assert len(segments(path)) > 20
    listed = 0
    with JournalReader.open(path, FollowConfig(chunk_bytes=4_096)) as reader:
        assert len(list(reader.read())) == 100
        assert listed < 10
        write(path, [bytes(1_000)] * 10)
        assert [each.sequence for each in reader.read()] == list(range(101, 111))


def test_a_segment_that_is_removed_during_a_read_is_read_to_its_end(path: Path) -> None:
    write(path, [bytes(500)] * 30)
    with JournalReader.open(path) as reader:
        first = reader.read_batch(rows_max=2)
        assert first.rows["sequence"].tolist() == [1, 2]
        files = segments(path)
        end = int(files[1].stem)
        files[0].unlink()
        assert reader.read_batch().rows["sequence"].tolist() == list(range(3, end))
        files[1].unlink()
        with pytest.raises(JournalGoneError) as gone:
            reader.read_batch()
        assert gone.value.first_sequence == int(files[2].stem)


def test_a_record_can_be_longer_than_a_chunk(path: Path) -> None:
    payloads = [b"x", bytes(50_000), b"y"]
    write(path, payloads)
    with JournalReader.open(path, FollowConfig(chunk_bytes=4_096)) as reader:
        assert [each.payload for each in reader.read()] == payloads


def test_batches_have_one_buffer_and_rows(path: Path) -> None:
    write(path, [b"one", b"two", b"three"])
    with JournalReader.open(path) as reader:
        batch = reader.read_batch(rows_max=2)
        assert len(batch) == 2
        assert [each.payload for each in batch] == [b"one", b"two"]
        assert [each.payload for each in reader.read_batch()] == [b"three"]
        assert len(reader.read_batch()) == 0


def test_an_empty_journal_has_no_records(path: Path) -> None:
    JournalWriter.open(path).close()
    assert read(path) == []
    assert segments(path) == [], "a segment is created for the first record"
    with JournalReader.open(path) as reader:
        reader.seek(5)
        reader.seek_time(5)
        assert reader.first_sequence == 1


def test_invalid_positions_are_refused(path: Path) -> None:
    write(path, [b"x"])
    with JournalReader.open(path) as reader:
        for sequence in (0, -1, 2**63):
            with pytest.raises(LocalProtocolError):
                reader.seek(sequence)
        with pytest.raises(LocalProtocolError, match="exclude each other"):
            next(reader.read(from_sequence=1, from_time_ns=1))


def test_packed_batches(path: Path) -> None:
    with JournalWriter.open(path) as journal:
        offsets, sizes = numpy.array([0, 3, 6], numpy.uint32), numpy.array([3, 3, 5], numpy.uint32)
        times = numpy.array([5, 6, 7], numpy.int64)
        assert journal.append_packed(b"onetwothree", offsets, sizes, times) == range(1, 4)
        assert journal.append_batch([b"four", bytearray(b"five")], 8) == [4, 5]
    assert read(path) == [(1, 5, b"one"), (2, 6, b"two"), (3, 7, b"three"), (4, 8, b"four"), (5, 8, b"five")]


def test_appends_wait_for_the_disk_when_memory_is_full(path: Path) -> None:
    config = JournalConfig(gather_bytes_max=4_096, linger_us=1_000_000, preallocate_bytes=0)
    with JournalWriter.open(path, config) as journal:
        for number in range(1, 1_001):
            assert journal.append(bytes(100)) == number
        journal.append_batch([bytes(1_000)] * 100)
    assert len(read(path)) == 1_100


def test_futures(path: Path) -> None:
    with JournalWriter.open(path) as journal:
        sequence = journal.append(b"x")
        future = journal.when_durable(sequence)
        assert future.result(PATIENCE_SECONDS) >= sequence
        assert journal.when_durable(sequence).result(PATIENCE_SECONDS) >= sequence
        cancelled = journal.when_durable(journal.append(b"y"))
        cancelled.cancel()
        with pytest.raises(LocalProtocolError, match="was not appended"):
            journal.when_durable(99)


def test_the_callback_of_a_future_may_append(path: Path) -> None:
    done: Future[int] = Future()
    with JournalWriter.open(path) as journal:
        future = journal.when_durable(journal.append(b"x"))
        future.add_done_callback(lambda _: done.set_result(journal.append(b"y")))
        assert done.result(PATIENCE_SECONDS) == 2
    assert len(read(path)) == 2


def test_asyncio(path: Path) -> None:
    async def main() -> list[int]:
        with JournalWriter.open(path) as journal:
            futures = [asyncio.wrap_future(journal.when_durable(journal.append(b"x"))) for _ in range(50)]
            return await asyncio.wait_for(asyncio.gather(*futures), PATIENCE_SECONDS)

    assert all(durable >= number for number, durable in enumerate(asyncio.run(main()), start=1))


def test_misuse_is_refused(path: Path) -> None:
    journal = JournalWriter.open(path)
    with pytest.raises(LocalProtocolError, match="was not appended"):
        journal.commit(through=1)
    with pytest.raises(TypeError):
        journal.append("text")  # type: ignore[arg-type]
    with pytest.raises(LimitError):
        journal.append(bytes(17 * 1024 * 1024))
    journal.append(b"x")
    journal.close()
    journal.close()
    with pytest.raises(LocalProtocolError, match="closed"):
        journal.append(b"y")
    assert len(read(path)) == 1


def test_the_names_of_all_created_directories_are_synced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    original = os.fsync

    def fsync(fd: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")))
        original(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    deep = path / "made" / "for" / "it"
    JournalWriter.open(deep).close()
    assert {path.parent, *deep.parents[:3]} <= set(synced)
    synced.clear()
    JournalWriter.open(deep).close()
    assert deep.parent in synced, "the process that created it may have been killed before it was synced"


def test_preallocated_space_is_freed_at_close(path: Path) -> None:
    write(path, [bytes(1_000)] * 10, JournalConfig(segment_bytes=4_096, preallocate_bytes=1_000_000))
    assert sum(segment.stat().st_size for segment in segments(path)) < 20_000
    with JournalWriter.open(path) as journal:
        journal.append(b"x")
        journal.commit()
        assert segments(path)[-1].stat().st_size > 1_000_000
        assert len(read(path)) == 11


@pytest.mark.parametrize("failing", ["write", "sync"])
def test_after_a_disk_error_the_journal_continues_in_a_new_segment(
    path: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [OSError(errno.EIO, "failed")]
    original = getattr(WritableDirectory, failing)

    def fail_once(self: WritableDirectory, *arguments: object) -> None:
        if self.path == path and arguments[0] == 1 and journal_is_open and errors:
            raise errors.pop()
        original(self, *arguments)

    journal_is_open = False
    monkeypatch.setattr(WritableDirectory, failing, fail_once)
    counters = Counters("journal")
    with JournalWriter.open(path, counters=counters) as journal:
        journal.append(b"one")
        journal.commit()
        journal_is_open = True
        journal.append_batch([b"two", b"three"])
        assert journal.commit() == 3
    assert counters.by_cause("disk_failures") == {"EIO": 1}
    assert [segment.name[:20] for segment in segments(path)] == [f"{1:020}", f"{2:020}"]
    assert [record.payload for record in read(path)] == [b"one", b"two", b"three"]
    assert [report.problem for report in inspect(Directory(path))] == ["", ""]


def test_an_interrupted_commit_has_a_definite_outcome(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C during a sync: the outcome of the sync cannot be known, so its segment is abandoned."""
    interrupts = [KeyboardInterrupt()]
    original = WritableDirectory.sync

    def interrupted(self: WritableDirectory, first_sequence: int) -> None:
        if threading.current_thread() is threading.main_thread() and interrupts:
            raise interrupts.pop()
        original(self, first_sequence)

    with JournalWriter.open(path, JournalConfig(linger_us=1_000_000)) as journal:
        journal.append(b"zero")
        journal.commit()
        monkeypatch.setattr(WritableDirectory, "sync", interrupted)
        journal.append(b"one")
        with pytest.raises(KeyboardInterrupt):
            journal.commit()
        assert journal.durable_sequence == 1
        assert journal.commit() == 2
    assert [record.payload for record in read(path)] == [b"zero", b"one"]


def test_a_reader_survives_a_change_of_writers(path: Path) -> None:
    write(path, [b"one"])
    with JournalReader.open(path) as reader:
        assert [each.payload for each in reader.read()] == [b"one"]
        write(path, [b"two"])
        assert [each.payload for each in reader.read()] == [b"two"]


def test_a_mark_beyond_the_records_is_damage(path: Path) -> None:
    write(path, [b"one"])
    mark = (path / MARK_NAME).read_bytes()
    with JournalWriter.open(path, SMALL) as journal:
        journal.append(b"two")
        journal.commit()
        late = (path / MARK_NAME).read_bytes()
    assert mark != late
    segment = segments(path)[0]
    content = segment.read_bytes()
    segment.write_bytes(content[:-40])
    with JournalReader.open(path) as reader, pytest.raises(JournalCorruptError, match="record 2"):
        list(reader.read())
