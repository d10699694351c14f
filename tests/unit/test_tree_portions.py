"""Many children that are far behind: portions of the past are queued and bounded (TREE-5, TREE-10)."""

import pytest

from penstock.base.core import Tick
from penstock.base.errors import ConfigurationError
from penstock.net.core.framing import encode_frame
from penstock.tree.config import TreeConfig
from penstock.tree.core.catch_up import PORTIONS_SIZE_MAX, READS_MAX
from penstock.tree.core.control import TREE, Fetch, Fetched, Position, Subscribe, Unsubscribe, Want
from penstock.tree.core.events import Append, Instruction, JournalRead, Noticed, ReadJournal
from penstock.tree.core.kernel._frame import KIND_PUBLISHED, encode_block, split_packets
from penstock.tree.core.kernel._number import encode_published
from penstock.tree.core.portion_scheduler import PORTIONS_PER_TURN, RECHECK_NS
from unit.tree_core_kit import RootCore

MIB = 1024 * 1024
PORTION = 65_536
START = Position("sequence", 0)
SOURCE = 1


def filled(megabytes: float, portion: int = PORTION) -> tuple[RootCore, bytes]:
    """A root that has published this many messages, and its packets; a history of one MiB."""
    root = RootCore(history_bytes=MIB, fetch_bytes_max=portion, legs_max=256)
    root.arrive(SOURCE, "source", "publisher", publisher_id=5)
    packets = b""
    number = 0
    while len(packets) < megabytes * MIB:
        block = b"".join(encode_published(5, number + each, 0, "s.a", bytes(900)) for each in range(1, 101))
        number += 100
        out = root.receive_bytes(SOURCE, encode_block(block, kind=KIND_PUBLISHED))
        packets += b"".join(bytes(each.packets) for each in out if isinstance(each, Append))
    root.said(SOURCE)
    return root, packets


def fetch(root: RootCore, link: int, legs: int) -> list[Instruction]:
    root.arrive(link, f"child-{link}")
    numbers = range(1, legs + 1)
    out = root.receive(link, *(Subscribe(number, "s", (Want(("s.>",)),), START) for number in numbers))
    root.said(link)
    return out + root.receive(link, *(Fetch(number, 1 << 30) for number in numbers))


def words(root: RootCore, link: int) -> int:
    return root.core.fanout.link(link).control


def reads(out: list[Instruction]) -> list[ReadJournal]:
    return [each for each in out if isinstance(each, ReadJournal)]


@pytest.mark.spec("TREE-5", "TREE-10")
def test_portions_of_one_link_wait_until_earlier_ones_were_sent() -> None:
    root, _ = filled(0.5)
    fetch(root, 2, 60)
    fetched = []
    while len(fetched) < 60:
        assert words(root, 2) <= PORTIONS_SIZE_MAX + PORTION
        found = [each.number for each in root.said(2) if isinstance(each, Fetched)]
        assert found, "the next portions follow when the earlier ones were sent"
        fetched += found
        root.now_ns += RECHECK_NS
        root.handle(Tick())
    assert fetched == list(range(1, 61))
    assert root.closed == set(), "no child is disconnected for its request"


@pytest.mark.spec("TREE-10")
def test_a_turn_gives_a_few_portions_and_then_timers_run() -> None:
    root, _ = filled(0.5)
    for link in range(2, 40):
        root.arrive(link, f"child-{link}")
        root.receive(link, Subscribe(1, "s", (Want(("s.>",)),), START))
        root.said(link)
    frame = encode_frame(TREE.encode(Fetch(1, PORTION), 100))
    for link in range(2, 40):
        root.core.fanout.receive(link, frame)
    served: list[int] = []
    root.core.handle(Noticed(), root.now_ns)
    while True:
        now = [link for link in range(2, 40) if words(root, link) > 0]
        assert len(now) - len(served) <= PORTIONS_PER_TURN
        served = now
        if root.core.next_deadline_ns() != root.now_ns:
            break
        root.core.handle(Tick(), root.now_ns)
    assert len(served) == 38


@pytest.mark.spec("TREE-5", "TREE-10")
def test_the_journal_is_read_for_a_few_children_at_a_time() -> None:
    root, packets = filled(3)
    asked: list[ReadJournal] = []
    for link in range(2, 22):
        asked += reads(fetch(root, link, 5))
    assert len(asked) == READS_MAX
    assert all(each.bytes_max <= PORTION for each in asked)
    rows = split_packets(packets)
    answered = 0
    while asked:
        request = asked.pop(0)
        through = min(request.after + 50, len(rows))
        part = b"".join(rows[request.after : through])
        asked += reads(root.handle(JournalRead(request.request, part, request.after, through)))
        answered += 1
        for link in range(2, 22):
            root.said(link)
        if not asked:
            root.now_ns += RECHECK_NS
            asked += reads(root.handle(Tick()))
        assert len(asked) <= READS_MAX
    assert answered == 100, "each leg of each child got its portion"


@pytest.mark.spec("TREE-5")
def test_a_leg_that_ends_during_its_read_leaves_its_turn_to_the_next() -> None:
    root, packets = filled(3, 2 * MIB)
    (request,) = reads(fetch(root, 2, 2))
    root.receive(2, Unsubscribe(1))
    root.now_ns += RECHECK_NS
    (other,) = reads(root.handle(Tick()))
    assert other.after == request.after == 0
    root.handle(JournalRead(request.request, packets[:0], 0, 0))
    root.handle(JournalRead(other.request, b"".join(split_packets(packets)[:9]), 0, 9))
    assert [each.number for each in root.said(2) if isinstance(each, Fetched)] == [2]


def test_a_portion_is_at_most_two_mebibytes() -> None:
    with pytest.raises(ConfigurationError):
        TreeConfig(name="root", role="root", fetch_bytes_max=3 * MIB)
