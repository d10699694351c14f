"""A message router's journal as it is read."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy

from penstock.assured.events import Append, DiskFailed, Event, ReadRecords, RecordsRead
from penstock.assured.storing import Storing
from penstock.base.counters import Counters
from penstock.journal import JournalConfig, JournalWriter
from waiting import PATIENCE_SECONDS, wait_until

CONFIG = JournalConfig(preallocate_bytes=0, segment_bytes=65_536)


def test_what_a_journal_does_not_take_is_a_failed_disk() -> None:
    """Nothing that comes after it is stored either: the router stops acknowledging, and lives."""

    async def append(path: Path) -> list[Event]:
        told: list[Event] = []
        storing = Storing(path, CONFIG, Counters("test"), told.append)
        sizes = numpy.array([17 << 20], numpy.uint32)
        storing.append(Append(bytes(17 << 20), numpy.zeros(1, numpy.uint32), sizes, numpy.zeros(1, numpy.int64), 1, 1))
        assert not storing.is_storing
        await storing.close()
        return told

    with TemporaryDirectory() as directory:
        (failed,) = asyncio.run(append(Path(directory)))
    assert isinstance(failed, DiskFailed)


def test_all_records_that_are_asked_for_are_read_however_far_apart_they_are(tmp_path: Path) -> None:
    fill(tmp_path, 5_000, 100)
    wanted = [1, 2, 400, 401, 2_000, 4_999, 5_000]
    (found,) = asyncio.run(read(tmp_path, wanted))
    assert found.rows["sequence"].tolist() == wanted
    payloads = [bytes(found.data[row["offset"] : row["offset"] + row["size"]]) for row in found.rows]
    assert payloads == [b"%100d" % number for number in wanted]


def test_reading_goes_on_when_the_place_where_it_stopped_is_gone(tmp_path: Path) -> None:
    """The log is cleaned meanwhile: what is asked for next is near, and what lies between is no longer there."""
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
    """One after the other; after the first some records go."""
    told: asyncio.Queue[Event] = asyncio.Queue()
    storing = Storing(path, CONFIG, Counters("test"), told.put_nowait)
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
