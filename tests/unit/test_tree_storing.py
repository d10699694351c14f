"""A root's disk: when it is full, when journals change under readers, and when one is damaged."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from penstock.base.counters import Counters
from penstock.base.errors import JournalCorruptError, JournalError, JournalFullError, LocalProtocolError
from penstock.journal import JournalConfig
from penstock.journal.core.format import segment_name
from penstock.journal.live.driver import JournalWriter
from penstock.journal.live.files import Directory
from penstock.tree.config import StreamConfig, TreeConfig
from penstock.tree.core.control import OLDEST, StreamInfo
from penstock.tree.core.events import Append, Appended, JournalRead, ReadJournal
from penstock.tree.live import stream_store
from penstock.tree.live.journal_queue import JournalQueue
from penstock.tree.live.stream_store import Portion, StreamStore
from unit.tree_stage import STREAM, Stage

RECORD = b"r" * 500
DISK_FULL = JournalFullError("the disk is full")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StreamStore]:
    opened = StreamStore.open(
        tmp_path,
        "tree",
        [StreamConfig(name="s1", topics=(">",))],
        JournalConfig(segment_bytes=65_536, preallocate_bytes=0),
        Counters("test"),
        tail_half_size=131_072,
    )
    opened.define(StreamInfo(1, "s1", (">",), ((65_536, 0),)))
    yield opened
    opened.close()


def append(store: StreamStore, first: int, count: int = 1) -> None:
    sizes = numpy.full(count, len(RECORD), numpy.uint32)
    offsets = numpy.arange(count, dtype=numpy.uint32) * len(RECORD)
    store.append(1, RECORD * count, offsets, sizes, 1, first=first)


def request(through: int) -> Append:
    return Append(1, RECORD, numpy.zeros(1, numpy.uint32), numpy.full(1, len(RECORD), numpy.uint32), through)


def test_messages_that_a_full_disk_refuses_are_in_the_journal_once_after_the_retry(
    store: StreamStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full = True

    def commit(writer: JournalWriter, through: int | None = None) -> int:
        if is_full:
            raise DISK_FULL
        return real(writer, through)

    real = JournalWriter.commit
    monkeypatch.setattr(JournalWriter, "commit", commit)
    sequence = 0
    with contextlib.suppress(JournalFullError):
        while True:
            append(store, sequence + 1, 10)
            sequence += 10
    for _ in range(3):
        with pytest.raises(JournalFullError):
            append(store, sequence + 1, 10)
    assert store.next_sequence(1) == sequence + 1
    is_full = False
    append(store, sequence + 1, 10)
    assert store.next_sequence(1) == sequence + 11


class ShortOfRoom:
    """A store whose disk has no space for a while."""

    append_size_max = 65_536

    def __init__(self) -> None:
        self.is_full = True
        self.waiting: list[Any] = []

    def append(self, *_: object, **__: object) -> None:
        if self.is_full:
            raise DISK_FULL

    def when_durable(self, stream: int, through: int, call: Any) -> None:
        call(DISK_FULL if self.is_full else None)

    def close(self) -> None:
        pass


def storing(store: Any, told: list[Any], **config: Any) -> JournalQueue:
    return JournalQueue(
        store,
        TreeConfig(name="root", role="root", **config),
        told.append,
        lambda: told.append("hold"),
        lambda: told.append("release"),
        told.append,
    )


async def until(told: list[Any], what: object) -> None:
    async with asyncio.timeout(60):
        while what not in told:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("count", [1, 3])
def test_publishers_continue_when_there_is_space_again_however_few_messages_waited(count: int) -> None:
    async def run() -> list[Any]:
        told: list[Any] = []
        store = ShortOfRoom()
        disk = storing(store, told)
        for number in range(count):
            disk.append(request(number + 1))
        await until(told, "hold")
        was_storing = disk.is_storing
        store.is_full = False
        await until(told, "release")
        assert (was_storing, disk.is_storing) == (False, True)
        await disk.close()
        return [each for each in told if each != "hold"]

    assert asyncio.run(run()) == [*(Appended(1, number + 1) for number in range(count)), "release"]


def test_publishers_wait_until_everything_is_synced() -> None:
    async def run() -> list[Any]:
        told: list[Any] = []
        store = ShortOfRoom()
        store.append = lambda *_, **__: None  # type: ignore[method-assign]  # kept in memory
        disk = storing(store, told, persist="synced")
        disk.append(request(1))
        disk.append(request(2))
        async with asyncio.timeout(60):
            while told.count("hold") < 5:
                await asyncio.sleep(0.005)
        assert "release" not in told
        store.is_full = False
        await until(told, "release")
        await disk.close()
        return [each for each in told if each != "hold"]

    assert asyncio.run(run()) == [Appended(1, 1), Appended(1, 2), "release"]


def test_a_journal_is_not_truncated_while_it_is_read(store: StreamStore, monkeypatch: pytest.MonkeyPatch) -> None:
    append(store, 1, 100)
    is_reading, may_go_on = threading.Event(), threading.Event()
    real, portions = JournalWriter.commit, [Portion(b"", 0, 0)]  # at first no record is reported as durable

    def look(*of: Any) -> Portion:
        return portions.pop() if portions else real_look(*of)

    def commit(writer: JournalWriter, through: int | None = None) -> int:
        if threading.current_thread() is reader:
            is_reading.set()
            may_go_on.wait(60)
        return real(writer, through)

    found: list[Portion | Exception] = []

    def read() -> None:
        try:
            found.append(store.read(1, 0, 10_000_000))
        except LocalProtocolError as error:
            found.append(error)

    reader = threading.Thread(target=read)
    real_look = stream_store._read
    monkeypatch.setattr(stream_store, "_read", look)
    monkeypatch.setattr(JournalWriter, "commit", commit)
    reader.start()
    assert is_reading.wait(60)
    store.define(StreamInfo(2, "s2", ("s2",), ((65_536, 0),)))  # other streams arrive in between
    cutter = threading.Thread(target=store.cut, args=(1, 50))
    cutter.start()
    may_go_on.set()
    for thread in (reader, cutter):
        thread.join(60)
    assert isinstance(found[0], Portion)
    assert found[0].through == 100
    assert store.next_sequence(1) == 51
    assert store.read(1, 0, 10_000_000).through == 50


class Unreadable:
    def __init__(self, error: JournalError) -> None:
        self.error = error

    def read(self, *_: object) -> Portion:
        raise self.error

    def pass_damaged(self, stream: int, after: int) -> int:
        return after + 7

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (DISK_FULL, JournalRead(5, b"", 0, 0, is_failed=True)),
        (JournalCorruptError("a damaged record"), JournalRead(5, b"", 17, 17)),
    ],
)
def test_a_failed_read_is_answered_and_the_root_continues(error: JournalError, answer: JournalRead) -> None:
    async def run() -> list[Any]:
        told: list[Any] = []
        disk = storing(Unreadable(error), told)
        disk.read(ReadJournal(5, 1, 10, None, 1_000))
        await until(told, answer)
        await disk.close()
        return told

    assert asyncio.run(run()) == [answer]


def test_records_after_a_damaged_segment_can_be_read(store: StreamStore, tmp_path: Path) -> None:
    for first in range(1, 400, 50):
        append(store, first, 50)
        store.commit()
    directory = tmp_path / "streams" / "1-s1"
    begins = Directory(directory).first_sequences()
    second = directory / segment_name(begins[1])
    content = bytearray(second.read_bytes())
    content[len(content) // 2] ^= 0xFF
    second.write_bytes(content)
    after, gone = 0, 0
    for _ in range(20):
        try:
            portion = store.read(1, after, 1_000_000)
        except JournalCorruptError:
            gone, after = after, store.pass_damaged(1, after)
            continue
        if not portion.packets:
            break
        after = portion.through
    assert begins[1] < gone < begins[2]
    assert after == 400


@pytest.mark.spec("TREE-5")
def test_a_child_gets_its_past_although_the_disk_cannot_be_read_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    stage.agent("leaf")
    stage.up()
    for _ in range(12):
        stage.publish(20, padding=6_000)
    real, failing = stage.root.disk.read, 6

    def read(asked: ReadJournal) -> JournalRead:
        nonlocal failing
        failing -= 1
        return real(asked) if failing < 0 else JournalRead(asked.request, b"", 0, 0, is_failed=True)

    monkeypatch.setattr(stage.root.disk, "read", read)
    reader = stage.subscriber("reader", "leaf", begin=OLDEST)
    reader.start()
    stage.wait(2_000)
    assert failing < 0
    assert stage.got(reader) == list(range(1, 241))
    assert stage.root.agent.streams.named(STREAM) is not None
    stage.judge()
