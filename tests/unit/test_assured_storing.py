"""A message router's journal as it is read."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy

from penstock.assured.events import Append, DiskFailed, Event, ReadRecords, RecordsRead
from penstock.assured.storing import Storing
from penstock.base.counters import Counters
from penstock.journal import JournalConfig, JournalWriter
from waiting import PATIENCE_SECONDS

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
    with JournalWriter.open(tmp_path, CONFIG) as journal:
        for number in range(1, 5_001):
            journal.append(b"%d" % number)
    wanted = numpy.array([1, 2, 400, 401, 2_000, 4_999, 5_000], numpy.uint64)

    async def read() -> RecordsRead:
        told: asyncio.Queue[Event] = asyncio.Queue()
        storing = Storing(tmp_path, CONFIG, Counters("test"), told.put_nowait)
        try:
            storing.read(ReadRecords(7, wanted))
            found = await asyncio.wait_for(told.get(), PATIENCE_SECONDS)
        finally:
            await storing.close()
        assert isinstance(found, RecordsRead)
        return found

    found = asyncio.run(read())
    assert found.request == 7
    assert found.rows["sequence"].tolist() == wanted.tolist()
    payloads = [bytes(found.data[row["offset"] : row["offset"] + row["size"]]) for row in found.rows]
    assert payloads == [b"%d" % number for number in wanted]
