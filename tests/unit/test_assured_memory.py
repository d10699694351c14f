"""The promises of a voter for the lease of a pair are on its disk before it votes (REPL-14)."""

import asyncio
import os
from pathlib import Path

import pytest

from penstock.assured.core.lease.protocol import LeaseConfig, Memory
from penstock.assured.live import lease_memory
from penstock.assured.live.lease_memory import LOCK_NAME, MEMORY_NAME, LeaseMemory
from penstock.base.counters import Counters
from penstock.base.errors import ConfigurationError, LeaseMemoryError
from unit.net_kit import run

LEASE = LeaseConfig(routers=("east", "west"), witness="tower")
PROMISED = Memory(3, "east", "east", 2)

pytestmark = pytest.mark.spec("REPL-14")


def memory_of(directory: Path, voter: str = "tower", lease: LeaseConfig = LEASE) -> LeaseMemory:
    return LeaseMemory(directory, voter, lease, Counters("test"))


async def keep(directory: Path, memory: Memory) -> None:
    disk = memory_of(directory)
    disk.open()
    is_kept = asyncio.Event()
    disk.keep(memory, is_kept.set)
    await is_kept.wait()
    await disk.close()


async def reopened(directory: Path) -> Memory:
    disk = memory_of(directory)
    memory = disk.open()
    await disk.close()
    return memory


def test_a_new_voter_has_promised_nothing_and_a_restarted_one_loads_its_last_promise(tmp_path: Path) -> None:
    assert run(reopened(tmp_path / "new")) == Memory()
    run(keep(tmp_path, Memory(1, "east")))
    run(keep(tmp_path, PROMISED))
    assert run(reopened(tmp_path)) == PROMISED
    assert {path.name for path in tmp_path.iterdir()} == {"new", MEMORY_NAME, LOCK_NAME}


def test_a_damaged_promise_file_is_refused_wherever_it_is_damaged(tmp_path: Path) -> None:
    """A voter that took the file for empty would vote twice."""
    run(keep(tmp_path, PROMISED))
    path = tmp_path / MEMORY_NAME
    whole = path.read_bytes()
    pieces = [whole[:size] for size in range(len(whole))]
    flipped = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]
    for damaged in [*pieces, *flipped, whole + b"x", b"\xff" * 10, whole * 100]:
        path.write_bytes(damaged)
        with pytest.raises(LeaseMemoryError):
            memory_of(tmp_path).open()
    path.write_bytes(whole)
    assert run(reopened(tmp_path)) == PROMISED


def test_a_voter_whose_promise_file_is_missing_is_not_a_new_voter(tmp_path: Path) -> None:
    run(keep(tmp_path, PROMISED))
    (tmp_path / MEMORY_NAME).unlink()
    with pytest.raises(LeaseMemoryError, match="is missing"):
        memory_of(tmp_path).open()


def test_the_promise_file_of_another_voter_or_pair_is_refused(tmp_path: Path) -> None:
    run(keep(tmp_path, PROMISED))
    with pytest.raises(LeaseMemoryError, match="tower's"):
        memory_of(tmp_path, "east").open()
    with pytest.raises(LeaseMemoryError, match="east and west"):
        memory_of(tmp_path, lease=LeaseConfig(routers=("west", "east"), witness="tower")).open()


def test_two_processes_cannot_vote_with_one_promise_file(tmp_path: Path) -> None:
    async def both() -> None:
        first = memory_of(tmp_path)
        first.open()
        with pytest.raises(LeaseMemoryError, match="another process"):
            memory_of(tmp_path).open()
        await first.close()
        assert await reopened(tmp_path) == Memory()

    run(both())


def test_a_failed_write_is_repeated_and_nothing_is_reported_as_stored_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_memory, "RETRY_SECONDS", 0.001)
    failures: list[Exception] = [ConfigurationError("cannot be written: no space"), OSError(5, "input/output error")]
    replace = lease_memory.replace_private

    def failing(path: Path, data: bytes) -> None:
        if failures:
            raise failures.pop()
        replace(path, data)

    async def keep_on_it() -> None:
        disk = memory_of(tmp_path)
        disk.open()
        monkeypatch.setattr(lease_memory, "replace_private", failing)
        is_kept = asyncio.Event()
        disk.keep(PROMISED, is_kept.set)
        while disk.is_storing:
            assert not is_kept.is_set()
            await asyncio.sleep(0)
        await is_kept.wait()
        assert disk.is_storing
        assert not failures
        await disk.close()
        assert await reopened(tmp_path) == PROMISED

    run(keep_on_it())


def test_the_next_promise_can_follow_at_once(tmp_path: Path) -> None:
    async def keep_two() -> None:
        disk = memory_of(tmp_path)
        disk.open()
        is_kept = asyncio.Event()
        disk.keep(Memory(1, "east"), lambda: disk.keep(PROMISED, is_kept.set))
        await is_kept.wait()
        await disk.close()
        assert await reopened(tmp_path) == PROMISED

    run(keep_two())


def test_an_unwritable_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LeaseMemoryError):
        memory_of(tmp_path / "file" / "below").open()


def test_only_the_owner_can_read_the_promise_file(tmp_path: Path) -> None:
    run(keep(tmp_path, PROMISED))
    assert os.stat(tmp_path / MEMORY_NAME).st_mode & 0o077 == 0
