"""A message router's disk: full for a while."""

import resource
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from integration.assured_kit import RouterProcess, client_of, router_config, router_process
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
        wait_until(lambda: "the disk takes nothing" in health(router), "the trouble to be told")
        resource.prlimit(router.pid, resource.RLIMIT_FSIZE, (hard, hard))
        wait_until(lambda: "the disk takes nothing" not in health(router), "it to be well again")
        filling.join(PATIENCE_SECONDS)
        try:
            assert filler.flush(PATIENCE_SECONDS)
        except RefusedError:
            assert filler.refused
        refused = {number for first, last, _ in filler.refused for number in range(first, last + 1)}
        stored += [9 + number for number in range(1, 1_991) if number not in refused]
        wait_until(lambda: publish(2_000 + len(stored)), "messages to be taken again")
        router.kill()
        router.start()
        with client.endpoint("orders", prefetch=4_096) as queue:
            found: list[int] = []
            while len(found) < len(stored) and (more := queue.take(4_096, PATIENCE_SECONDS)):
                found += [int(each.payload) for each in more]
                queue.ack(more)
        assert found == stored, "what was acknowledged, once and in order"
