"""Frames of a party harm neither an agent's core nor other parties."""

from pathlib import Path

import numpy
import pytest

from penstock.base.counters import Counters
from penstock.base.errors import JournalFailedError, PacketError
from penstock.journal import JournalConfig
from penstock.security.core.token import Grant
from penstock.tree.config import StreamConfig
from penstock.tree.core.agent import DistributionAgent
from penstock.tree.core.control import (
    OLDEST,
    Fetch,
    Held,
    Position,
    Published,
    Refused,
    StreamInfo,
    Subscribe,
    Unsubscribe,
    Want,
    Welcome,
)
from penstock.tree.core.coverage import Coverage, aggregated
from penstock.tree.core.events import Append, Appended, Connected, LinkClosed, Noticed
from penstock.tree.core.kernel._frame import BLOCK_HEADER_SIZE, BLOCK_LEG_AT, FRAME_LENGTH_SIZE, split_packets
from penstock.tree.core.root.publisher_positions import FORGOTTEN_AFTER_NS, PublisherPositions
from penstock.tree.live.journal_queue import parts_of
from penstock.tree.live.stream_store import StreamStore
from penstock.wire import decode
from tree_kit import packet
from unit.tree_core_kit import RootCore
from unit.tree_stage import Stage

TERM_MAX = 2**32 - 1
WHOLE = (Want(("s.>",)),)


def refusals(root: RootCore, link: int) -> list[str]:
    return [each.code for each in root.said(link) if isinstance(each, Refused)]


@pytest.mark.spec("TREE-11")
@pytest.mark.parametrize(
    ("role", "tree", "name", "code"),
    [
        ("publisher", "another", "p", "tree"),
        ("publisher", "tree", "p", "stale"),
        ("agent", "another", "a", "tree"),
        ("agent", "tree", "stranger", "not-allowed"),
    ],
)
def test_only_agents_of_the_tree_can_fence_a_root(role: str, tree: str, name: str, code: str) -> None:
    root = RootCore(agents=("a",))
    root.arrive(1, "reader")
    root.arrive(2, name, role, tree=tree, publisher_id=5 if role == "publisher" else 0, term=TERM_MAX)
    assert root.role == "root"
    assert root.closed == {2}
    assert refusals(root, 2) == [code]


@pytest.mark.spec("TREE-11")
def test_an_agent_with_a_newer_term_fences_a_root() -> None:
    root = RootCore(agents=("a",))
    root.arrive(1, "reader")
    root.arrive(2, "a", "agent", term=TERM_MAX)
    assert root.role == "fenced"
    assert root.closed == {1, 2}


@pytest.mark.parametrize(("tree", "role"), [("another", "root"), ("tree", "fenced")])
def test_the_welcome_of_another_tree_has_no_effect_on_terms(tree: str, role: str) -> None:
    root = RootCore(standby="there:1")
    root.handle(Connected(1, 9, "there"))
    root.receive(9, Welcome("there", tree, TERM_MAX, ("there",), True))
    assert root.role == role
    assert root.closed == {9}


@pytest.mark.spec("TREE-5")
def test_a_position_beyond_the_end_means_the_end_and_harms_no_other() -> None:
    stage = Stage()
    leaf = stage.agent("leaf")
    lost = stage.subscriber("lost", "leaf", begin=Position("sequence", 1_000_000))
    at_root = stage.subscriber("at_root", "root", begin=Position("sequence", 1_000_000))
    stage.up()
    stage.wait(300)
    assert set(leaf.agent.upstream.legs_of(1).coverage.values()) == {0}
    other = stage.subscriber("other", "leaf")
    other.start()
    stage.wait(500)
    stage.publish(10)
    stage.wait(2_000)
    assert stage.got(other) == stage.got(lost) == stage.got(at_root) == list(range(1, 11))
    assert stage.accepted(leaf) == 10
    stage.judge()


@pytest.mark.spec("TREE-11")
def test_a_standby_may_close_a_leg() -> None:
    root = RootCore(replicate="synchronous")
    root.arrive(1, "p", "publisher", publisher_id=5)
    root.arrive(2, "spare", "standby")
    root.receive(2, Subscribe(1, "s", WHOLE, Position("sequence", 0)))
    root.publish(1, 5, 1)
    root.receive(2, Unsubscribe(1))
    root.publish(1, 5, 2)
    assert root.appended == [(1, 1), (2, 2)]
    assert root.core.fanout.stream(1).last == 2  # no publisher waits for it


def test_a_failure_on_one_link_is_handled_on_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """No input is known that causes this failure; an unknown one must not do more harm."""
    root = RootCore()
    root.arrive(1, "bad")
    root.arrive(2, "good")
    control = DistributionAgent._control

    def failing(agent: DistributionAgent, link: int, payload: bytes) -> None:
        if link == 1:
            raise PacketError("is odd", cause="length")
        control(agent, link, payload)

    monkeypatch.setattr(DistributionAgent, "_control", failing)
    root.core.fanout.receive(1, b"\x01\x00\x00\x00\x80")
    root.receive(2, Subscribe(1, "s", WHOLE))
    root.handle(Noticed())
    assert root.closed == {1}
    assert [each.number for each in root.said(2) if isinstance(each, Held)] == [1]


@pytest.mark.spec("TREE-1")
def test_a_publisher_beyond_the_limit_uses_up_no_sequence_number() -> None:
    root = RootCore(publishers_max=1)
    root.arrive(1, "one", "publisher", publisher_id=11)
    root.arrive(2, "two", "publisher", publisher_id=22)
    root.publish(1, 11, 1, 2)
    root.publish(2, 22, 1)
    assert root.closed == {2}
    assert "limit" in refusals(root, 2)
    root.publish(1, 11, 3)
    assert root.appended == [(1, 2), (3, 3)]


@pytest.mark.spec("TREE-1")
def test_publishers_without_activity_are_evicted() -> None:
    root = RootCore(publishers_max=2)
    for link, publisher_id in enumerate((11, 22, 33), start=1):
        root.arrive(link, f"p{publisher_id}", "publisher", publisher_id=publisher_id)
    root.publish(1, 11, 1)
    root.publish(2, 22, 1)
    root.handle(LinkClosed(2))
    root.publish(3, 33, 1)
    assert root.closed == {3}  # none was inactive for long
    root.now_ns += FORGOTTEN_AFTER_NS
    root.arrive(4, "p44", "publisher", publisher_id=44)
    root.publish(4, 44, 1)
    assert list(root.core.sequencer.replica.publishers.through) == [11, 44]
    root.publish(1, 11, 2)  # it published first, and is still there
    assert root.appended == [(1, 1), (2, 2), (3, 3), (4, 4)]


def test_a_standby_keeps_no_more_publishers_than_its_root() -> None:
    marks = PublisherPositions({1: 10, 2: 20})
    marks.note_numbers(1, [11])
    marks.note_numbers(3, [1])
    marks.trim(2)
    assert marks.through == {1: 11, 3: 1}


@pytest.mark.spec("TREE-5")
def test_a_root_does_not_truncate_its_journal_at_a_hole(tmp_path: Path) -> None:
    streams = [StreamConfig(name="s", topics=("s.>",))]
    store = StreamStore.open(tmp_path, "tree", streams, JournalConfig(), Counters("tree"), tail_half_size=131_072)
    sizes, offsets = numpy.array([4], numpy.uint32), numpy.array([0], numpy.uint32)
    try:
        store.define(StreamInfo(1, "s", ("s.>",), ((1, 0),)))
        store.begin_term(1, is_root=True)
        store.append(1, b"test", offsets, sizes, 1, first=1)
        with pytest.raises(JournalFailedError):
            store.append(1, b"test", offsets, sizes, 1, first=3)
        assert store.recovered()[0].last == 1
        store.begin_term(2, is_root=False)
        store.append(1, b"test", offsets, sizes, 1, first=3)  # a standby begins with the existing messages
        assert store.recovered()[0].last == 3
    finally:
        store.close()


GRANTS = tuple(Grant(pattern=f"s.some.longer.topic.{each}.>", action="receive") for each in range(60))


@pytest.mark.spec("TREE-6")
def test_interests_that_exceed_a_message_after_narrowing_to_the_grants_are_refused() -> None:
    root = RootCore()
    root.arrive(1, "reader", grants=GRANTS)
    root.receive(1, Subscribe(1, "s", (Want((">",)),) * 4_000, OLDEST))  # repetitions do not add up
    different = tuple(Want((">",), f"level >= {each}") for each in range(4_000))
    root.receive(1, Subscribe(2, "s", different, OLDEST))
    assert root.closed == set()
    assert refusals(root, 1) == ["limit"]
    assert [len(each.wants) for each in root.core.children[1].legs.values()] == [1]


def test_a_link_with_too_much_to_send_ends() -> None:
    root = RootCore()
    root.arrive(1, "reader")
    root.core.outbox.send(1, Held(1, 1, 0, 1, False, (Want(("s." + "x" * 2_000,) * 4_000),)))
    root.handle(Noticed())
    assert root.closed == {1}


@pytest.mark.spec("TREE-2")
def test_too_many_interests_become_the_whole_stream() -> None:
    whole = Want(("s.>",))
    wants = [Want((f"s.a{each}.x",)) for each in range(40)]
    assert set(aggregated(wants, Coverage(dict.fromkeys(wants, 1)), whole, 64)) == set(wants)
    assert aggregated(wants, Coverage(dict.fromkeys(wants, 1)), whole, 32) == (whole,)
    long = [Want(tuple(f"s.{'x' * 200}.{each}.{one}" for one in range(4_000))) for each in "ab"]
    assert aggregated(long, Coverage(dict.fromkeys(long, 1)), whole, 32) == (whole,)


@pytest.mark.spec("TREE-2", "TREE-5")
def test_an_agent_with_too_many_interests_below_gets_the_whole_stream_and_no_subscriber_misses_messages() -> None:
    stage = Stage()
    leaf = stage.agent("leaf", legs_max=4)
    stage.up()
    topics = "abcdefg"
    readers = []
    for topic in topics:  # so slowly that their legs become one in between
        readers.append(stage.subscriber(f"r{topic}", "leaf", topic=topic))
        readers[-1].start()
        stage.wait(100)
        for each in topics:
            stage.publish(1, each)
        stage.wait(1_500)
    feed = leaf.agent.upstream.legs_of(1)
    assert [want.topics for want in feed.coverage] == [leg.wants[0].topics for leg in feed.legs.values()] == [(">",)]
    assert [len(stage.got(each)) for each in readers] == [7, 6, 5, 4, 3, 2, 1]
    stage.judge()


def test_a_publisher_id_stays_with_its_client(tmp_path: Path) -> None:
    root = RootCore()
    root.arrive(1, "a", "publisher", publisher_id=5, subject="alice")
    root.arrive(2, "b", "publisher", publisher_id=6, subject="alice")
    root.publish(1, 5, 1, 2)
    root.handle(LinkClosed(1))
    root.handle(LinkClosed(2))
    root.arrive(3, "a", "publisher", publisher_id=5, subject="bob")
    assert refusals(root, 3) == ["publisher"]
    root.arrive(4, "b", "publisher", publisher_id=6, subject="bob")
    assert refusals(root, 4) == [], "a client that has not published owns no id"
    root.arrive(5, "elsewhere", "publisher", publisher_id=5, subject="alice")
    (welcome,) = [each for each in root.said(5) if isinstance(each, Welcome)]
    assert welcome.published_through == 2
    marks = root.core.sequencer.replica.publishers
    assert marks.bearers == {5: "alice"}
    config = (StreamConfig(name="s", topics=("s.>",)),)
    with_marks = StreamStore.open(tmp_path, "tree", config, JournalConfig(), Counters("journal"))
    with_marks.note_publishers(marks)
    with_marks.close()
    again = StreamStore.open(tmp_path, "tree", config, JournalConfig(), Counters("journal"))
    assert again.publishers.bearers == {5: "alice"}, "and survives a restart"
    again.close()
    marks.trim(0)
    assert marks.bearers == {}


@pytest.mark.spec("TREE-5")
def test_messages_that_wait_for_the_disk_are_not_reported_as_stored_to_a_returning_publisher() -> None:
    root = RootCore()
    root.arrive(1, "p", "publisher", publisher_id=5)
    root.publish(1, 5, 1)
    root.is_disk_quick = False
    root.publish(1, 5, 2, 3)
    root.handle(LinkClosed(1))
    root.arrive(2, "p", "publisher", publisher_id=5)
    (welcome,) = [each for each in root.said(2) if isinstance(each, Welcome)]
    assert welcome.published_through == 1
    root.publish(2, 5, 2, 3)
    assert not [each for each in root.said(2) if isinstance(each, Published)]
    root.handle(Appended(1, 3))
    assert [each.through for each in root.said(2) if isinstance(each, Published)] == [3], "in its position"
    assert root.core.fanout.stream(1).last == 3, "and once"


@pytest.mark.spec("TREE-11")
def test_truncated_messages_do_not_return_from_the_tail(tmp_path: Path) -> None:
    def opened() -> StreamStore:
        streams = [StreamConfig(name="s", topics=("s.>",))]
        return StreamStore.open(tmp_path, "tree", streams, JournalConfig(), Counters("tree"), tail_half_size=131_072)

    def append(store: StreamStore, sequence: int, term: int) -> None:
        data = packet(sequence, term=term)
        sizes, offsets = numpy.array([len(data)], numpy.uint32), numpy.array([0], numpy.uint32)
        store.append(1, data, offsets, sizes, 1, first=sequence)

    store = opened()
    store.define(StreamInfo(1, "s", ("s.>",), ((1, 0),)))
    for sequence in range(1, 6):
        append(store, sequence, 1)
    store.cut(1, 1)
    store.define(StreamInfo(1, "s", ("s.>",), ((1, 0), (2, 1))))
    append(store, 2, 2)
    store.close()
    again = opened()
    assert again.recovered()[0].last == 2
    again.close()


@pytest.mark.parametrize(("size_max", "counts"), [(10_000, [6]), (100, [6]), (45, [2, 2, 2]), (1, [1] * 6)])
def test_an_append_is_divided_into_parts_that_fit_into_the_tail(size_max: int, counts: list[int]) -> None:
    sizes = numpy.array([10, 20, 20, 15, 30, 5], numpy.uint32)
    offsets = (numpy.cumsum(sizes) - sizes).astype(numpy.uint32)
    packets = bytes(range(100))
    parts = parts_of(Append(7, packets, offsets, sizes, 16, cut_after=9), size_max)
    assert [len(each.sizes) for each in parts] == counts
    assert [each.through for each in parts] == list(10 + numpy.cumsum(counts))
    assert [each.cut_after for each in parts] == [9] + [None] * (len(counts) - 1)
    joined = [packets[at : at + size] for each in parts for at, size in zip(each.offsets, each.sizes, strict=True)]
    assert b"".join(joined) == packets


@pytest.mark.spec("TREE-11")
@pytest.mark.parametrize("published", [0, 5])
def test_a_standby_that_has_caught_up_is_fed_before_further_messages_are_distributed(published: int) -> None:
    """Whether its leg became live at once or after a portion: the standby would not store live messages."""
    root = RootCore(replicate="asynchronous")
    root.arrive(1, "source", "publisher", publisher_id=5)
    for number in range(1, published + 1):
        root.publish(1, 5, number)
    root.arrive(2, "standby", "standby")
    root.receive(
        2, Subscribe(1, "s", (Want((">",)),), Position("sequence", 0, root.core.membership.term)), Fetch(1, 65_536)
    )
    root.said(2)
    root.publish(1, 5, published + 1)
    frames = root.core.fanout.take(2, 1 << 20)
    size = FRAME_LENGTH_SIZE + int.from_bytes(frames[:FRAME_LENGTH_SIZE], "little")
    assert size == len(frames), "delivered once"
    assert int.from_bytes(frames[BLOCK_LEG_AT : BLOCK_LEG_AT + 4], "little") == 1, "on the leg, not live"
    assert [decode(each).sequence for each in split_packets(frames[BLOCK_HEADER_SIZE:])] == [published + 1]
