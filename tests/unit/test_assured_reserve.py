"""REPL-12: the disk reserve of a router, and its use when the disk is full."""

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import Buffer

from penstock.assured.core.router.events import DiskRecovered, DiskTroubled, Event, Stored
from penstock.assured.live.disk import LiveDisk
from penstock.assured.live.reserve import Reserve, reserve_of
from penstock.base.counters import Counters
from penstock.journal.live.files import WritableDirectory
from unit.test_assured_storing import CONFIG, single
from waiting import PATIENCE_SECONDS

SIZE = 65_536


class Disk:
    """A disk that is full until the reserve is freed, and has space again when the test says so."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.has_room = True
        self.is_full = False
        self.reserve: Reserve | None = None
        write, free = WritableDirectory.write, os.statvfs

        def written(directory: WritableDirectory, first_sequence: int, offset: int, data: Buffer) -> None:
            if self.is_full and (self.reserve is None or self.reserve.is_held):
                raise OSError(errno.ENOSPC, "no space")
            write(directory, first_sequence, offset, data)

        def room(path: Any) -> Any:
            return free(path) if self.has_room else os.statvfs_result((1,) * 10)

        patch.setattr(WritableDirectory, "write", written)
        patch.setattr(os, "statvfs", room)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_a_reserve_takes_space_and_frees_it_also_across_restarts(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "reserve"
    reserve = Reserve(path, SIZE)
    assert reserve.is_held
    assert path.stat().st_blocks * 512 >= SIZE
    assert Reserve(path, SIZE).is_held
    reserve.give_back()
    disk.has_room = False
    assert path.stat().st_size == 0
    again = Reserve(path, SIZE)
    assert (again.is_held, again.is_given_back, again.take()) == (False, True, False)
    disk.has_room = True
    assert again.take()
    assert not again.is_given_back
    assert reserve_of(path, 0) is None
    assert not path.exists()


def test_without_space_for_it_there_is_no_reserve_and_no_message_is_refused(tmp_path: Path, disk: Disk) -> None:
    disk.has_room = False
    reserve = Reserve(tmp_path / "reserve", SIZE)
    assert (reserve.is_held, reserve.is_given_back) == (False, False)
    assert not (tmp_path / "reserve").exists()


async def _until(told: "asyncio.Queue[Event]", kind: type[Event]) -> Event:
    while not isinstance(event := await asyncio.wait_for(told.get(), PATIENCE_SECONDS), kind):
        pass
    return event


def test_a_full_disk_uses_the_reserve_until_there_is_space_for_it_again(tmp_path: Path, disk: Disk) -> None:
    async def fill() -> None:
        told: asyncio.Queue[Event] = asyncio.Queue()
        disk.reserve = Reserve(tmp_path / "reserve", SIZE)
        storing = LiveDisk(tmp_path / "journal", CONFIG, Counters("test"), told.put_nowait, reserve=disk.reserve)
        try:
            storing.append(single(1))
            await _until(told, Stored)
            disk.is_full, disk.has_room = True, False
            storing.append(single(2))
            troubled = await _until(told, DiskTroubled)
            assert isinstance(troubled, DiskTroubled)
            assert troubled.is_relieved
            assert await _until(told, Stored) == Stored(2), "writes go into the space of the reserve"
            assert not storing.is_storing
            disk.is_full, disk.has_room = False, True
            await _until(told, DiskRecovered)
            assert storing.is_storing
            assert disk.reserve.is_held
        finally:
            await storing.close()

    asyncio.run(fill())


def test_the_reserve_is_still_used_up_after_a_restart(tmp_path: Path, disk: Disk) -> None:
    async def fill() -> None:
        told: asyncio.Queue[Event] = asyncio.Queue()
        disk.reserve = Reserve(tmp_path / "reserve", SIZE)
        storing = LiveDisk(tmp_path / "journal", CONFIG, Counters("test"), told.put_nowait, reserve=disk.reserve)
        storing.append(single(1))
        await _until(told, Stored)
        await storing.close()
        disk.has_room = False
        disk.reserve.give_back()
        gone = Reserve(tmp_path / "reserve", SIZE)
        storing = LiveDisk(tmp_path / "journal", CONFIG, Counters("test"), told.put_nowait, reserve=gone)
        troubled = await _until(told, DiskTroubled)
        assert getattr(troubled, "is_relieved", False)
        disk.has_room = True
        await _until(told, DiskRecovered)
        await storing.close()

    asyncio.run(fill())
