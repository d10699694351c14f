"""A message router, a real process, and faults that must not harm it: a disk whose syncs fail, damaged segments,
messages that are too large, and acknowledgements of messages that were never delivered."""

import asyncio
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from integration.assured_kit import RouterProcess, client_of, router_config, router_process
from integration.command_kit import running
from integration.failing_syncs import failing_syncs
from integration.test_assured_rubbish import Stranger, said
from penstock.assured.client import Assured
from penstock.assured.wire.control import ASSURED, Login, OpenFlow
from penstock.assured.wire.frames import encode_settle
from penstock.base.counters import Counters
from penstock.base.errors import LimitError, RefusedError
from penstock.journal import JournalConfig
from penstock.net.config import ControlConfig
from penstock.net.live.link import connect_link
from penstock.net.place import parse_place
from waiting import PATIENCE_SECONDS, wait_until


def health(router: RouterProcess) -> tuple[bool, str]:
    try:
        with urllib.request.urlopen(f"{router.facts['url']}/health", timeout=PATIENCE_SECONDS) as answer:
            return True, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return False, error.read().decode()


def found_in(router: RouterProcess) -> list[bytes]:
    """The payloads in the queue."""
    with client_of(router.place) as client:
        count = client.endpoints("orders")[0].messages
        with client.endpoint("orders", prefetch=4_096) as queue:
            found: list[bytes] = []
            while len(found) < count and (more := queue.take(count, PATIENCE_SECONDS)):
                found += [each.payload for each in more]
            return found


@pytest.mark.spec("REPL-1")
def test_when_syncs_fail_nothing_more_is_acknowledged_and_everybody_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REPL-1: after a failed sync, the content of the disk is unknown; no message that may be missing is acknowledged,
    not even when syncs seem to succeed again."""
    failing = failing_syncs(tmp_path, monkeypatch)
    config = router_config(tmp_path / "state")
    stored: list[bytes] = []
    with router_process(config, tmp_path) as router:
        with client_of(router.place) as client:
            publisher = client.publisher()
            for number in range(20):
                stored.append(b"%d" % number)
                assert publisher.publish("orders.new", stored[-1], timeout=PATIENCE_SECONDS) == "stored"
            failing.touch()
            publisher.send("orders.new", b"lost, or not")
            wait_until(lambda: not health(router)[0], "the report of the failure")
            assert "the disk accepts no data" in health(router)[1]
            with pytest.raises(RefusedError, match="disk accepts no data"):
                client.publisher().publish("orders.new", b"refused", timeout=PATIENCE_SECONDS)
            failing.unlink()
            with pytest.raises(RefusedError, match="disk accepts no data"):
                client.publisher().publish("orders.new", b"refused, too", timeout=PATIENCE_SECONDS)
            assert publisher.unacknowledged == 1
        router.kill()
        router.start()
        assert [each for each in found_in(router) if each != b"lost, or not"] == stored


@pytest.mark.spec("REPL-1", "PROOF-1")
def test_a_damaged_or_missing_segment_is_told_and_nothing_is_passed_over_in_silence(tmp_path: Path) -> None:
    journal = JournalConfig(preallocate_bytes=0, segment_bytes=65_536)
    config = router_config(tmp_path / "state", journal=journal)
    with router_process(config, tmp_path) as router:
        with client_of(router.place) as client, client.publisher() as publisher:
            for number in range(500):
                publisher.send("orders.new", b"%500d" % number)
        router.kill()
        segments = sorted((tmp_path / "state" / "journal").glob("*.journal"))
        assert len(segments) >= 3
        content = bytearray(segments[1].read_bytes())
        content[len(content) // 2] ^= 0xFF
        segments[1].write_bytes(content)
        with running("router", "run", "--config", str(router.path)) as refused:
            assert refused.process.wait(PATIENCE_SECONDS) != 0
            assert segments[1].name in refused.err, "the error names the damaged segment"
        assert segments[1].read_bytes() == content, "the damaged segment is unchanged"
        content[len(content) // 2] ^= 0xFF
        segments[1].write_bytes(content)
        kept = segments[0].read_bytes()
        segments[0].unlink()
        with running("router", "run", "--config", str(router.path)) as refused:
            assert refused.process.wait(PATIENCE_SECONDS) != 0
            assert segments[0].name in refused.err, "the error names the missing segment"
        segments[0].write_bytes(kept)
        router.start()
        assert found_in(router) == [b"%500d" % number for number in range(500)]


def test_a_message_that_is_too_large_is_refused_and_the_others_go_on(tmp_path: Path) -> None:
    limits = {"message_bytes_max": 1_000, "transaction_bytes_max": 4_096}
    with router_process(router_config(tmp_path / "state", **limits), tmp_path) as router:
        with client_of(router.place) as client, client.publisher() as publisher:
            assert publisher.publish("orders.new", bytes(1_000), timeout=PATIENCE_SECONDS) == "stored"
            with pytest.raises(LimitError, match=r"a payload of 1,001 bytes \(at most 1,000 \(message_bytes_max\)\)"):
                publisher.publish("orders.new", bytes(1_001), timeout=PATIENCE_SECONDS)
            publisher._window.payload_size_max = 2_000  # like messages of another router with a higher limit
            with pytest.raises(LimitError, match=r"too large \(at most 2,000 bytes \(message_bytes_max\)\)"):
                publisher.publish("orders.new", bytes(1_001), timeout=PATIENCE_SECONDS)
            assert publisher.publish("orders.new", b"small", timeout=PATIENCE_SECONDS) == "stored"
            with pytest.raises(RefusedError):
                publish_as_one(client, 10 * [bytes(1_000)])
        assert [len(each) for each in found_in(router)] == [1_000, 5]


def publish_as_one(client: Assured, payloads: list[bytes]) -> None:
    with client.transaction() as transaction:
        for payload in payloads:
            transaction.publish("orders.new", payload)


def test_acknowledgements_of_what_was_never_delivered_do_nothing(tmp_path: Path) -> None:
    """Acknowledgements of queued messages, of messages of other consumers, and of messages that never existed."""
    with router_process(router_config(tmp_path / "state"), tmp_path) as router, client_of(router.place) as client:
        with client.publisher() as publisher:
            for number in range(100):
                publisher.send("orders.new", b"%d" % number)
        with client.endpoint("orders", prefetch=10) as queue:
            held: list[int] = []
            while len(held) < 10:
                held += [each.id for each in queue.take(10, PATIENCE_SECONDS)]
            asyncio.run(settle_everything(router.place, held[0]))
            assert client.endpoints("orders")[0].messages == 100
        assert found_in(router) == [b"%d" % number for number in range(100)]


async def settle_everything(place: str, first: int) -> None:
    """A flow without credit accepts any settlements."""
    stranger = Stranger()
    options = {"node": "stranger", "secret": None, "tls": None, "config": ControlConfig(), "counters": Counters("test")}
    link = await connect_link(ASSURED, *parse_place(place), stranger, **options)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await stranger.has_opened.wait()
        link.write(said(Login("stranger")) + said(OpenFlow(1, "orders", 0)))
        while stranger.answers < 2:
            await asyncio.sleep(0.001)
        for what in (1, 2, 3):
            link.write(encode_settle(1, [(first, first + 3, what), (first + 50, 2**63, what)]))
        link.write(encode_settle(77, [(1, 2**63, 1)]) + said(OpenFlow(2, "orders", 0)))
        while stranger.answers < 3 and not link.is_over:
            await asyncio.sleep(0.001)
        link.close()
        await link.over
