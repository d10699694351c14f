"""Records on a simulated disk: which records survive a crash, and when a sync ends."""

import pytest

from penstock.sim import World
from penstock.sim.record_store import SimulatedRecords

SYNC_NS_MAX = 1_000


def make(world: World, *, has_group_commit: bool = False) -> SimulatedRecords[str]:
    return SimulatedRecords(world, world.randomness.fork("disk"), SYNC_NS_MAX, has_group_commit=has_group_commit)


def test_records_are_numbered_from_one_without_a_hole() -> None:
    store = make(World(1))
    store.append(["a", "b", "c"])
    assert (store.first, store.last) == (1, 3)
    assert store[2] == "b"
    assert 3 in store
    assert 4 not in store
    assert store.records() == ["a", "b", "c"]
    assert store.records(2, 2) == ["b"]
    assert store.records(0, 0) == []


@pytest.mark.parametrize("seed", range(20))
def test_a_crash_keeps_synced_records_and_a_beginning_of_the_others(seed: int) -> None:
    world, synced = World(seed), list[int]()
    store = make(world)
    store.append(["a", "b"])
    store.sync(synced.append)
    world.run_until(SYNC_NS_MAX)
    store.append(["c", "d", "e"])
    store.sync(synced.append)
    store.crash()
    world.run_until(3 * SYNC_NS_MAX)
    assert synced == [2], "a sync that a crash cut short never ends"
    assert store.records() == ["a", "b", "c", "d", "e"][: store.last]
    assert store.last >= 2
    assert store.torn == 5 - store.last
    assert store.durable == store.last


def test_waiting_syncs_are_combined() -> None:
    world, synced = World(2), list[int]()
    store = make(world, has_group_commit=True)
    for record in "abc":
        store.append([record])
        store.sync(synced.append)
    world.run_until(SYNC_NS_MAX)
    store.stall(10 * SYNC_NS_MAX)
    assert synced[0] == 1
    world.run_until(12 * SYNC_NS_MAX)
    assert synced == [1, 2, 3]


def test_a_stalled_disk_completes_no_sync() -> None:
    world, synced = World(3), list[int]()
    store = make(world)
    store.stall(5 * SYNC_NS_MAX)
    store.append(["a"])
    store.sync(synced.append)
    world.run_until(5 * SYNC_NS_MAX - 1)
    assert not synced
    world.run_until(6 * SYNC_NS_MAX)
    assert synced == [1]


def test_oldest_and_newest_records_are_removed() -> None:
    store = make(World(4))
    store.append("abcdef")
    assert store.remove_before(3) == ["a", "b"]
    store.cut_after(4)
    assert (store.first, store.last, store.records()) == (3, 4, ["c", "d"])
    assert store.remove_before(99) == ["c", "d"]
    assert (store.first, store.last) == (5, 4)
    store.restart_at(10)
    store.append(["x"])
    assert (store.first, store.last, store[10]) == (10, 10, "x")
