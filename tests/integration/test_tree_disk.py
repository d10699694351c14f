"""A root's disk: full for a while, with room for the newest messages only, and with slow syncs."""

import math
import resource
from pathlib import Path

import pytest

from integration.tree_kit import (
    AgentHere,
    AgentProcess,
    Reader,
    agent_here,
    agent_process,
    publish,
    publisher,
    root_config,
)
from penstock.journal import JournalConfig, JournalReader
from penstock.tree.client import StreamPublisher
from penstock.tree.client.operator import give_order
from penstock.tree.config import StreamConfig
from waiting import PATIENCE_SECONDS, wait_until

COUNT = 3_000
PORTION = 250


def stored_bytes(segments: Path) -> float:
    try:
        return sum(each.stat().st_size for each in segments.glob("*.journal"))
    except FileNotFoundError:  # a segment was removed meanwhile
        return math.inf


def reports_full_disk(root: AgentProcess) -> bool:
    try:
        return "the disk accepts no data" in root.page("/health")
    except ConnectionError:  # asked again: what matters here is that the failure is reported
        return False


def publish_in_portions(source: StreamPublisher, numbers: range) -> None:
    """The journal of a synced root has several segments then: one write never spans two."""
    for first in range(0, len(numbers), PORTION):
        publish(source, numbers[first : first + PORTION])
        assert source.flush(PATIENCE_SECONDS)


@pytest.mark.spec("TREE-5")
def test_while_the_disk_is_full_publishers_wait_and_nothing_is_lost(tmp_path: Path) -> None:
    journal = JournalConfig(preallocate_bytes=0, segment_bytes=65_536, gather_bytes_max=65_536, retry_ms=20)
    with (
        agent_process(root_config(tmp_path / "root", journal=journal), tmp_path) as root,
        Reader(root.place) as reader,
        publisher(root.place) as source,
    ):
        reader.wait_live()
        publish(source, range(1, 11))
        assert reader.wait_for(10) == list(range(1, 11))
        _, hard = resource.prlimit(root.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(root.process.pid, resource.RLIMIT_FSIZE, (1, hard))  # not even a new segment has room
        publish(source, range(11, COUNT + 1))
        wait_until(lambda: reports_full_disk(root), "the report of the failure")
        resource.prlimit(root.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        assert source.flush(120)
        assert reader.wait_for(COUNT) == list(range(1, COUNT + 1))
        wait_until(lambda: "the disk accepts no data" not in root.page("/health"), "the end of the failure")
        with Reader(root.place, since="oldest") as late:
            assert late.wait_for(COUNT) == list(range(1, COUNT + 1))


@pytest.mark.spec("TREE-5")
def test_what_the_root_keeps_no_longer_is_told(tmp_path: Path) -> None:
    """A subscription that begins before the oldest stored message gets a loss receipt for the missing ones, then the
    stored messages."""
    stream = StreamConfig(name="md", topics=("md.>",), retain="1h", retain_bytes=65_536)
    journal = JournalConfig(preallocate_bytes=0, segment_bytes=16_384)
    config = root_config(
        tmp_path / "root", streams=(stream,), journal=journal, history_bytes=1024 * 1024, persist="synced"
    )
    with agent_here(config) as root, publisher(root.place) as source:
        publish_in_portions(source, range(1, 20_001))
        segments = tmp_path / "root" / "streams" / "1-md"
        wait_until(lambda: stored_bytes(segments) <= 65_536, "the removal of the oldest segments")
        with Reader(root.place, since=5) as reader:
            got = reader.wait_for(20_000)
            (receipt,) = reader.stream.losses
            assert (receipt.stream, receipt.cause, receipt.first) == ("md", "gone", 6)
            assert receipt.last > 6
            assert got == list(range(receipt.last + 1, 20_001))
            assert "gone" in reader.kinds()
        with Reader(root.place, since="oldest") as oldest:
            kept = oldest.wait_for(20_000)
            assert kept == list(range(kept[0], 20_001))
            assert kept[0] > receipt.last
            assert oldest.stream.losses == [], "its position was available"


@pytest.mark.spec("TREE-5")
def test_what_a_synced_root_acknowledges_is_on_the_disk(tmp_path: Path) -> None:
    """The journal would otherwise not be written for a second."""
    journal = JournalConfig(linger_us=1_000_000)
    with (
        agent_here(root_config(tmp_path / "root", journal=journal, persist="synced")) as root,
        Reader(root.place) as reader,
        publisher(root.place) as source,
    ):
        reader.wait_live()
        for number in range(1, 4):
            publish(source, range(number, number + 1))
            assert source.flush(60)
            with JournalReader.open(tmp_path / "root" / "streams" / "1-md") as kept:
                assert kept.find_end() - 1 == number
        assert reader.wait_for(3) == [1, 2, 3]


@pytest.mark.spec("TREE-11", "TREE-5")
def test_a_standby_begins_with_the_oldest_that_the_root_still_has(tmp_path: Path) -> None:
    """One standby is new; the other one returns after the root has deleted the messages that follow its position."""
    stream = StreamConfig(name="md", topics=("md.>",), retain="1h", retain_bytes=65_536)
    journal = JournalConfig(preallocate_bytes=0, segment_bytes=16_384)
    common = {"streams": (stream,), "journal": journal, "history_bytes": 1024 * 1024}
    config = root_config(tmp_path / "root", replicate="asynchronous", persist="synced", **common)

    def last(standby: AgentHere) -> list[int]:
        return [each.last for each in standby.agent.status().streams]

    with agent_here(config) as root, publisher(root.place, name="source") as source:
        as_standby = root_config(tmp_path / "standby", name="standby", role="standby", parent=root.place, **common)
        for count in (10_000, 20_000):
            publish_in_portions(source, range(count - 9_999, count + 1))
            with agent_here(as_standby) as standby:
                standby.wait_rooted()
                wait_until(lambda: last(standby) == [count], "the replica")  # noqa: B023
                lost = standby.agent._core.environment.counters.by_cause("messages_lost")
                assert 0 < lost["gone"] < count, "the missing messages are reported"
        with agent_here(as_standby) as standby:
            standby.wait_rooted()
            give_order(standby.place, "promote", reason="maintenance")
            wait_until(lambda: standby.agent.status(0).state == "root", "the takeover")
            with Reader(standby.place, since="oldest") as reader:
                kept = reader.wait_for(20_000)
                assert kept == list(range(kept[0], 20_001))
                assert reader.seqs[-1] == 20_000


@pytest.mark.spec("TREE-5")
def test_the_smallest_tail_takes_whatever_a_publisher_sends(tmp_path: Path) -> None:
    config = root_config(tmp_path / "root", tail_bytes=4 * 65_536)
    with (
        agent_here(config) as root,
        Reader(root.place) as reader,
        publisher(root.place) as source,
    ):
        reader.wait_live()
        for _ in range(100):
            source.publish("md.us.IBM.trade", bytes(60_000))
        publish(source, range(1, COUNT + 1))
        assert source.flush(60)
        reader.wait_for(COUNT)
        assert reader.seqs[-1] == COUNT + 100
