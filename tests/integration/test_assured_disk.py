"""A message router's disk: full for a while, or until consumers have made room."""

import resource
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.assured_kit import RouterProcess, client_of, router_config, router_process
from integration.pair_kit import PairOfRouters, state_of
from penstock.assured.client import AssuredEndpoint
from penstock.base.errors import RefusedError
from penstock.journal import JournalConfig
from waiting import PATIENCE_SECONDS, wait_until


def health(router: RouterProcess) -> str:
    try:
        with urllib.request.urlopen(f"{router.facts['url']}/health", timeout=PATIENCE_SECONDS) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()


@pytest.mark.spec("REPL-1")
def test_while_the_disk_is_full_publishers_are_refused_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    journal = JournalConfig(preallocate_bytes=0, segment_bytes=65_536, gather_bytes_max=65_536, retry_ms=20)
    config = router_config(tmp_path / "state", journal=journal)
    stored: list[int] = []
    with router_process(config, tmp_path) as router, client_of(router.place) as client:
        publisher = client.publisher(window=16)

        def publish(number: int) -> bool:
            try:
                publisher.publish("orders.new", b"%d" % number, timeout=PATIENCE_SECONDS)
            except RefusedError:
                return False
            stored.append(number)
            return True

        assert all(publish(number) for number in range(10))
        _, hard = resource.prlimit(router.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(router.pid, resource.RLIMIT_FSIZE, (16_384, hard))
        filler = client.publisher(window=256)

        def fill() -> None:
            for number in range(10, 2_000):
                filler.send("orders.new", b"%d" % number)

        filling = threading.Thread(target=fill, daemon=True)
        filling.start()
        wait_until(lambda: "the disk accepts no data" in health(router), "the report of the full disk")
        resource.prlimit(router.pid, resource.RLIMIT_FSIZE, (hard, hard))
        wait_until(lambda: "the disk accepts no data" not in health(router), "the disk to accept data again")
        filling.join(PATIENCE_SECONDS)
        try:
            assert filler.flush(PATIENCE_SECONDS)
        except RefusedError:
            assert filler.refused
        refused = {number for first, last, _ in filler.refused for number in range(first, last + 1)}
        stored += [9 + number for number in range(1, 1_991) if number not in refused]
        wait_until(lambda: publish(2_000 + len(stored)), "the router to accept messages again")
        router.kill()
        router.start()
        with client.endpoint("orders", prefetch=4_096) as queue:
            found: list[int] = []
            while len(found) < len(stored) and (more := queue.take(4_096, PATIENCE_SECONDS)):
                found += [int(each.payload) for each in more]
                queue.ack(more)
        assert found == stored, "every acknowledged message once, in order"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of eight megabytes, where mounting one is permitted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounting.returncode:
        pytest.skip("mounting a small file system is not permitted here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.spec("REPL-1", "REPL-12")
def test_consumers_relieve_a_full_disk_by_settling(tmp_path: Path, small_disk: Path) -> None:
    """Settlements are logged in reserved space, also after kill -9; compaction returns the rest of the space."""
    journal = JournalConfig(preallocate_bytes=65_536, segment_bytes=262_144, retry_ms=20)
    config = router_config(small_disk / "state", journal=journal, section_bytes=65_536, reserve_bytes=2**20)
    stored = []
    with router_process(config, tmp_path) as router, client_of(router.place) as client:
        publisher = client.publisher(window=64)

        def is_stored(number: int) -> bool:
            try:
                return publisher.publish("orders.new", b"%06d" % number * 1_000, timeout=PATIENCE_SECONDS) == "stored"
            except RefusedError:
                return False

        while is_stored(len(stored)):
            stored.append(len(stored))
        assert len(stored) > 500
        assert "the disk accepts no data" in health(router)
        with client.endpoint("orders", prefetch=64) as queue:
            first = [each for _ in range(2) for each in _settled(queue)]
            router.kill()
            router.start()
            assert not is_stored(-1), "the disk is full after a restart, too"
            rest = []
            while not rest or rest[-1] != stored[-1]:
                rest += _settled(queue)
        assert sorted({*first, *rest}) == stored
        wait_until(lambda: is_stored(len(stored)), "room for new messages")
        assert "the disk accepts no data" not in health(router)
        for number in range(len(stored) + 1, len(stored) + 100):
            assert is_stored(number)


def _settled(queue: AssuredEndpoint) -> list[int]:
    messages = queue.take(64, PATIENCE_SECONDS)
    queue.ack(messages)
    return [int(bytes(each.payload)[:6]) for each in messages]


@pytest.mark.spec("REPL-8")
def test_a_router_that_stands_by_with_a_full_disk_recovers_by_what_is_consumed(
    tmp_path: Path, small_disk: Path
) -> None:
    """The active router continues, degraded; when its consumers have settled enough, the other router has room
    again."""
    journal = JournalConfig(preallocate_bytes=65_536, segment_bytes=262_144, retry_ms=20)
    router = {"journal": journal, "section_bytes": 65_536}
    second = {"state_directory": str(small_disk / "state"), "reserve_bytes": 2**20}
    values = {"router": router, "second": second, "window_bytes": 65_536, "degrade_after_ms": 2_000}
    with PairOfRouters(tmp_path, **values) as pair, client_of(*pair.places) as client:
        with client.publisher() as publisher:
            count = 0
            while publisher.publish("orders.new", b"%06d" % count * 1_000, timeout=PATIENCE_SECONDS) == "synchronous":
                count += 1
            assert count > 500
            for _ in range(200):
                publisher.send("orders.new", b"%06d" % count * 1_000)
            assert publisher.flush(PATIENCE_SECONDS)
        wait_until(lambda: "disk of two accepts no data" in health(pair.one), "the report at the active router")
        assert [state_of(each) for each in pair.routers] == ["degraded", "degraded"]
        with client.endpoint("orders", prefetch=64) as queue:
            left = count + 201
            while left:
                left -= len(_settled(queue))
        pair.wait_in_step()
        assert "accepts no data" not in health(pair.two)
        with client.publisher() as publisher:
            assert publisher.publish("orders.new", b"at both") == "synchronous"
