"""Writing and reading a message router's journal."""

import asyncio
import errno
import threading
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import Mock

import numpy
import pytest
from typing_extensions import Buffer

from disk_kit import FULL, UNSYNCED, broken_disk
from penstock.assured.core.router._records import RECORD_MESSAGE, RECORD_SETTLED
from penstock.assured.core.router.events import (
    Append,
    DiskFailed,
    DiskRecovered,
    DiskTroubled,
    Event,
    ReadRecords,
    RecordsRead,
    Stored,
)
from penstock.assured.live import disk as storing_module
from penstock.assured.live.disk import LiveDisk
from penstock.base.counters import Counters
from penstock.base.errors import JournalError
from penstock.journal import InlineWriter, JournalConfig, JournalWriter
from penstock.journal.core.events import InlineDone
from penstock.journal.live.files import WritableDirectory
from waiting import PATIENCE_SECONDS, wait_until

LOOP = "the loop's"
CONFIG = JournalConfig(preallocate_bytes=0, segment_bytes=65_536, linger_us=100_000)


def test_a_record_that_the_journal_refuses_is_a_failed_disk() -> None:
    """No later record is stored either: the router stops acknowledging, and keeps running."""

    async def append(path: Path) -> list[Event]:
        told: list[Event] = []
        storing = LiveDisk(path, CONFIG, Counters("test"), told.append)
        sizes = numpy.array([17 << 20], numpy.uint32)
        storing.append(Append(bytes(17 << 20), numpy.zeros(1, numpy.uint32), sizes, numpy.zeros(1, numpy.int64), 1, 1))
        assert not storing.is_storing
        await storing.close()
        return told

    with TemporaryDirectory() as directory:
        (failed,) = asyncio.run(append(Path(directory)))
    assert isinstance(failed, DiskFailed)


async def store(
    path: Path,
    patch: pytest.MonkeyPatch,
    appends: list[Append],
    *,
    failing: str = "",
    is_in_turn: bool = False,
) -> list[Any]:
    """The events for the core until all records are on the disk or have failed, and the names of the threads that
    synced. A disk that is `failing` is another device until the failure is noticed."""
    told: asyncio.Queue[Event] = asyncio.Queue()
    found: list[Any] = []
    storing = LiveDisk(path, CONFIG, Counters("test"), told.put_nowait, after_inline_commit=lambda _: None)
    sync, inline_done = WritableDirectory.sync, WritableDirectory.inline_done

    def synced(self: WritableDirectory, first_sequence: int) -> None:
        found.append(threading.current_thread().name)
        sync(self, first_sequence)

    def stored_alone(self: WritableDirectory, written: InlineWriter) -> InlineDone:
        found.append(LOOP)
        return inline_done(self, written)

    def refused(self: WritableDirectory, first_sequence: int, header: bytes, data: Buffer) -> None:
        raise OSError(errno.EIO, failing)

    try:
        storing.append(single(1))  # creates the segment, which takes longer
        assert await asyncio.wait_for(told.get(), PATIENCE_SECONDS) == Stored(1)
        patch.setattr(WritableDirectory, "sync", synced)
        patch.setattr(WritableDirectory, "inline_done", stored_alone)
        with ExitStack() as broken:
            if failing:
                broken.enter_context(broken_disk(storing._writer, failing))
            if failing == UNSYNCED:
                patch.setattr(WritableDirectory, "create", refused)
            for each in appends:
                storing.append(each)
                while is_in_turn and (not found or found[-1] != Stored(each.through)):
                    found.append(await asyncio.wait_for(told.get(), PATIENCE_SECONDS))
            while not found or found[-1] != Stored(appends[-1].through):
                found.append(event := await asyncio.wait_for(told.get(), PATIENCE_SECONDS))
                if isinstance(event, DiskFailed):
                    break
                if isinstance(event, DiskTroubled):
                    broken.close()
    finally:
        patch.undo()
        await storing.close()
    return found


def single(number: int, kind: int = RECORD_MESSAGE, count: int = 1) -> Append:
    offsets = numpy.arange(count, dtype=numpy.uint32) * 64
    sizes = numpy.full(count, 64, numpy.uint32)
    content = bytes([kind]) + bytes(63)
    return Append(content * count, offsets, sizes, numpy.zeros(count, numpy.int64), number, number + count - 1)


def test_a_lone_message_is_synced_in_the_thread_that_received_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REPL-1; it is acknowledged afterwards, like any other."""
    assert asyncio.run(store(tmp_path, monkeypatch, [single(2)])) == [LOOP, Stored(2)]


@pytest.mark.parametrize(
    "appends",
    [[single(2), single(3)], [single(2, count=2)], [single(2, RECORD_SETTLED)]],
    ids=["two", "many", "settled"],
)
def test_records_without_a_lone_waiter_are_synced_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, appends: list[Append]
) -> None:
    found = asyncio.run(store(tmp_path, monkeypatch, appends))
    assert found[-1] == Stored(appends[-1].through)
    assert LOOP not in found


def test_after_a_slow_sync_the_thread_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing_module, "FAST_SYNC_SECONDS", 0.0)
    monkeypatch.setattr(storing_module, "INLINE_PAUSE_FACTOR", 1_000_000)
    found = asyncio.run(store(tmp_path, monkeypatch, [single(2), single(3)], is_in_turn=True))
    assert found == [LOOP, Stored(2), "penstock-assured-disk", Stored(3)]


def test_a_lone_message_on_a_full_disk_is_stored_when_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = asyncio.run(store(tmp_path, monkeypatch, [single(2)], failing=FULL))
    assert found[0] == LOOP
    assert [type(each) for each in found if not isinstance(each, str)] == [DiskTroubled, DiskRecovered, Stored]


def test_a_lone_message_whose_sync_fails_permanently_is_a_failed_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REPL-1: a failed sync acknowledges nothing."""
    found = asyncio.run(store(tmp_path, monkeypatch, [single(2)], failing=UNSYNCED))
    assert isinstance(found[-1], DiskFailed)


@pytest.mark.parametrize("error", [MemoryError(), JournalError("it cannot be lent")])
def test_a_journal_without_inline_commit_is_a_failed_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The router reports it and acknowledges nothing more; it does not wait forever."""

    async def append() -> list[Event]:
        told: asyncio.Queue[Event] = asyncio.Queue()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context["exception"]))
        storing = LiveDisk(tmp_path, CONFIG, Counters("test"), told.put_nowait, after_inline_commit=lambda _: None)
        monkeypatch.setattr(storing._writer, "inline_commit", Mock(side_effect=error))
        try:
            storing.append(single(1))
            found = [await asyncio.wait_for(told.get(), PATIENCE_SECONDS)]
            storing.append(single(2))
            assert not storing.is_storing
            assert not storing.commit_inline(lambda _: True)
        finally:
            await storing.close()
        return found

    seen: list[BaseException] = []
    (failed,) = asyncio.run(append())
    assert isinstance(failed, DiskFailed)
    assert seen == ([error] if isinstance(error, MemoryError) else [])


def test_all_requested_records_are_read_however_far_apart_they_are(tmp_path: Path) -> None:
    fill(tmp_path, 5_000, 100)
    wanted = [1, 2, 400, 401, 2_000, 4_999, 5_000]
    (found,) = asyncio.run(read(tmp_path, wanted))
    assert found.rows["sequence"].tolist() == wanted
    payloads = [bytes(found.data[row["offset"] : row["offset"] + row["size"]]) for row in found.rows]
    assert payloads == [b"%100d" % number for number in wanted]


def test_reading_continues_when_the_place_where_it_stopped_is_gone(tmp_path: Path) -> None:
    """The log is cleaned in between: the next requested record is near, and the records between were removed."""
    fill(tmp_path, 300, 2_000)
    first, second = asyncio.run(read(tmp_path, [1, 2], [200, 201], removed_before=150))
    assert first.rows["sequence"].tolist() == [1, 2]
    assert (second.is_failed, second.rows["sequence"].tolist()) == (False, [200, 201])


def fill(path: Path, count: int, size: int) -> None:
    with JournalWriter.open(path, CONFIG) as journal:
        for number in range(1, count + 1):
            journal.append(b"%*d" % (size, number))
            if number % 20 == 0:
                journal.commit()


def oldest(path: Path) -> int:
    return min(int(each.stem) for each in path.glob("*.journal"))


async def read(path: Path, *portions: list[int], removed_before: int = 1) -> list[RecordsRead]:
    """Two reads in sequence; after the first one some records are removed."""
    told: asyncio.Queue[Event] = asyncio.Queue()
    storing = LiveDisk(path, CONFIG, Counters("test"), told.put_nowait)
    found = []
    try:
        for number, portion in enumerate(portions):
            storing.read(ReadRecords(number, numpy.array(portion, numpy.uint64)))
            answer = await asyncio.wait_for(told.get(), PATIENCE_SECONDS)
            assert isinstance(answer, RecordsRead)
            assert answer.request == number
            found.append(answer)
            storing.remove_before(removed_before)
            wait_until(lambda: oldest(path) + 40 > removed_before, "older segments to go")
    finally:
        await storing.close()
    return found
