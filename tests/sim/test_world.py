"""The simulator's own parts: time, network and disk behave as real ones may, and in no other way."""

import errno

import pytest

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import SimulationError
from penstock.middleware.core.epoch import encode_epoch, next_epoch, slot_offset
from penstock.sim import Disk, DiskFaults, LinkFaults, Network, Node, World


def test_actions_run_at_their_times_and_ties_are_broken_by_the_seed() -> None:
    def order(seed: int) -> list[int]:
        world, seen = World(seed), list[int]()
        for n in range(8):
            world.at(100, lambda n=n: seen.append(n))
        world.at(50, lambda: seen.append(-1))
        world.run_until(99)
        assert seen == [-1]
        world.run_until(200)
        assert world.now_ns() == 200
        return seen

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(5)}) > 1


def network(world: World, **faults: float) -> tuple[Network, list[bytes]]:
    net, seen = Network(world, LinkFaults(**faults)), list[bytes]()
    net.attach(("b", 1), lambda data, source: seen.append(data))
    net.join(("b", 1), 7)
    return net, seen


def test_a_perfect_network_delivers_once_to_members_but_not_to_the_sender() -> None:
    world = World(1)
    net, seen = network(world)
    net.join(("a", 1), 7)
    net.attach(("a", 1), lambda data, source: pytest.fail("the sender heard itself"))
    net.multicast(("a", 1), 7, b"x")
    net.unicast(("a", 1), ("b", 1), b"y")
    net.unicast(("a", 1), ("nobody", 1), b"z")
    world.run_until(NS_PER_SECOND)
    assert sorted(seen) == [b"x", b"y"]


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("loss", lambda net, seen: 0 < len(seen) < 400 and net.statistics.lost == 400 - len(seen)),
        ("duplicate", lambda net, seen: len(seen) == 400 + net.statistics.duplicated > 400),
        ("corrupt", lambda net, seen: sum(len(each) != 2 or each[1:] != b"." for each in seen) > 0),
        ("reorder", lambda net, seen: seen != sorted(seen) and net.statistics.delayed > 0),
    ],
)
def test_faults_happen_and_are_counted(fault: str, check: object) -> None:
    world = World(2)
    net, seen = network(world, **{fault: 0.3}, delay_min_ns=10, delay_max_ns=10)
    for n in range(400):
        world.at(n * 100, lambda n=n: net.unicast(("a", 1), ("b", 1), bytes([n % 256]) + b"."))
    world.run_until(NS_PER_SECOND)
    assert check(net, seen)  # type: ignore[operator]


def test_a_cut_link_carries_nothing_until_it_is_repaired() -> None:
    world = World(3)
    net, seen = network(world)
    net.cut("a", "b")
    net.cut("b", "c")  # one way only: c still reaches b
    net.unicast(("a", 1), ("b", 1), b"lost")
    net.unicast(("c", 1), ("b", 1), b"other")
    net.mend("a", "b")
    net.unicast(("a", 1), ("b", 1), b"found")
    world.run_until(NS_PER_SECOND)
    assert sorted(seen) == [b"found", b"other"]
    assert net.statistics.cut == 1


def synced(world: World, disk: Disk, path: str = "f") -> bool | None:
    results = list[bool]()
    disk.fsync(path, results.append)
    world.run_until(world.now_ns() + 10 * NS_PER_SECOND)
    return results[0] if results else None


def test_synced_data_survives_every_crash() -> None:
    for seed in range(50):
        world = World(seed)
        disk = Disk(world, "d", DiskFaults())
        disk.append("f", b"durable")
        assert synced(world, disk) is True
        disk.append("f", b"-pending")
        assert disk.read("f") == b"durable-pending"
        disk.crash()
        content = disk.read("f")
        assert content.startswith(b"durable")
        assert b"durable-pending".startswith(content)


def test_crashes_lose_tear_and_keep() -> None:
    results = set()
    for seed in range(60):
        world = World(seed)
        disk = Disk(world, "d", DiskFaults())
        disk.append("f", b"12345678")
        disk.crash()
        results.add({0: "lost", 8: "kept"}.get(len(disk.read("f")), "torn"))
    assert results == {"lost", "kept", "torn"}


def test_a_failed_fsync_promises_nothing() -> None:
    kept = set()
    for seed in range(40):
        world = World(seed)
        disk = Disk(world, "d", DiskFaults(fsync_failure=1.0))
        disk.append("f", b"doubt")
        assert synced(world, disk) is False
        disk.faults.fsync_failure = 0.0
        assert synced(world, disk) is True  # a later fsync does not bring the forgotten write back
        disk.crash()
        kept.add(disk.read("f") == b"doubt")
    assert kept == {True, False}


def test_writes_keep_their_order_for_any_result_of_their_fsyncs() -> None:
    world = World(1)
    disk = Disk(world, "d", DiskFaults())
    for content in (b"A", b"B", b"A"):
        disk.write("f", 0, content)
        if content == b"A":
            disk.fsync("f", lambda is_durable: None)
    world.run_until(NS_PER_SECOND)
    assert disk.read("f") == b"A"
    disk.faults.fsync_failure = 1.0
    disk.write("f", 0, b"old")
    assert synced(world, disk) is False
    disk.faults.fsync_failure = 0.0
    disk.write("f", 0, b"new")
    assert synced(world, disk) is True
    assert disk.read("f") == b"new"
    disk.crash()
    assert disk.read("f") == b"new"


def test_a_crash_drops_the_answer_of_an_fsync() -> None:
    world = World(1)
    disk, results = Disk(world, "d", DiskFaults()), list[bool]()
    disk.append("f", b"x")
    disk.fsync("f", results.append)
    disk.crash()
    world.run_until(NS_PER_SECOND)
    assert results == []


def test_slow_fsync_and_full_disk() -> None:
    world = World(1)
    disk, results = Disk(world, "d", DiskFaults(slow_fsync=1.0, size_max=4)), list[bool]()
    disk.append("f", b"1234")
    disk.fsync("f", results.append)
    world.run_until(NS_PER_SECOND)
    assert results == []
    world.run_until(3 * NS_PER_SECOND)
    assert results == [True]
    with pytest.raises(OSError, match="no space left") as caught:
        disk.append("f", b"5")
    assert caught.value.errno == errno.ENOSPC
    assert disk.read("f") == b"1234"


def test_epochs_grow_over_torn_writes_and_failed_syncs() -> None:
    for seed in range(200):
        world = World(seed)
        disk = Disk(world, "d", DiskFaults(fsync_failure=0.4, torn_write=0.9))
        used = list[int]()
        for _ in range(6):
            content = disk.read("epoch")
            epoch = next_epoch(content)
            disk.write("epoch", slot_offset(content), encode_epoch(epoch))
            if world.randomness.chance(0.7) and synced(world, disk, "epoch"):
                used.append(epoch)
            if world.randomness.chance(0.6):
                disk.crash()
        assert used == sorted(set(used)), f"seed {seed}"


def test_a_core_without_progress_is_detected() -> None:
    class Stuck:
        def handle(self, event: object, now_ns: int) -> list[object]:
            return []

        def next_deadline_ns(self) -> int | None:
            return 5

    class StuckNode(Node):
        def on_start(self) -> None:
            self.run(Stuck())

    world = World(1)
    StuckNode(world, "stuck", "test").start()
    with pytest.raises(SimulationError, match="stuck requests the same deadline"):
        world.run_until(10)
