"""The root's intake: most messages are processed without Python, with the same result."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.middleware.core.reserved_topics import SESSION_TOPIC
from penstock.security.core.access import AdminAccess
from penstock.security.core.token import Grant
from penstock.topics import InterestTable
from penstock.tree.config import AgentConfig, StreamConfig
from penstock.tree.core.control import Published, Refused
from penstock.tree.core.events import Append, Appended, Instruction, Noticed, Revoke
from penstock.tree.core.infostream import id_of
from penstock.tree.core.kernel._frame import ACKNOWLEDGE, KIND_PUBLISHED, encode_block, split_packets
from penstock.tree.core.kernel._number import Numbering, encode_published
from penstock.tree.core.kernel._tail import TailMemory
from penstock.tree.live.tail import Tail
from penstock.wire import decode
from unit.tree_core_kit import RootCore

PUBLISHER, OTHER = 5, 6
LINK, SECOND = 1, 2
HALF = 65_536


@pytest.fixture
def tail() -> TailMemory:
    return TailMemory(bytearray(2 * HALF), HALF)


@pytest.fixture
def root(tail: TailMemory) -> RootCore:
    """A root with a publisher that has published its first message, which Python always handles."""
    return with_publisher(RootCore(tail))


def with_publisher(root: RootCore, link: int = LINK, publisher_id: int = PUBLISHER, name: str = "p") -> RootCore:
    root.arrive(link, name, "publisher", publisher_id=publisher_id)
    root.publish(link, publisher_id, 1)
    root.said(link)
    return root


def block(*numbers: int, publisher_id: int = PUBLISHER, topic: str = "s.a", payload: bytes = b"x") -> bytes:
    packets = b"".join(encode_published(publisher_id, number, 0, topic, payload) for number in numbers)
    return encode_block(packets, kind=KIND_PUBLISHED)


def send(root: RootCore, data: bytes, link: int = LINK) -> None:
    """Publish without the core."""
    root.core.fanout.receive(link, data, root.now_ns)


def last(root: RootCore) -> int:
    """The distributed packets."""
    return root.core.streams.last(1)


def by_the_intake(instructions: list[Instruction]) -> list[bool]:
    return [each.is_in_tail for each in instructions if isinstance(each, Append)]


@pytest.mark.spec("TREE-1", "TREE-5")
def test_messages_are_distributed_at_once_and_acknowledged_when_the_journal_has_them(root: RootCore) -> None:
    root.is_disk_quick = False
    send(root, block(2, 3))
    assert last(root) == 3, "before the core processes them"
    instructions = root.handle(Noticed())
    assert by_the_intake(instructions) == [True]
    assert root.appended == [(1, 1), (2, 3)]
    assert root.said(LINK) == []
    root.handle(Appended(1, 3))
    root.now_ns += 10_000_000
    root.handle(Noticed())
    assert root.said(LINK)[-1] == Published(3)


def hurried(*numbers: int) -> bytes:
    packets = b"".join(encode_published(PUBLISHER, number, 0, "s.a", b"x") for number in numbers)
    return encode_block(packets, kind=KIND_PUBLISHED, leg=ACKNOWLEDGE)


@pytest.mark.spec("TREE-1", "TREE-5")
def test_a_publisher_that_requests_it_is_acknowledged_when_the_tail_has_its_messages(root: RootCore) -> None:
    root.is_disk_quick = False
    send(root, hurried(2, 3))
    assert root.said(LINK) == [Published(3)], "before the core processes them"
    send(root, hurried())
    assert root.said(LINK) == [], "no new message"
    send(root, block(4))
    assert root.said(LINK) == [], "this publisher has not requested it"
    send(root, hurried())
    assert root.said(LINK) == [Published(4)]


def test_messages_that_the_intake_does_not_accept_are_not_acknowledged_at_once(root: RootCore) -> None:
    root.is_disk_quick = False
    send(root, hurried(2, 9))  # 9 is not the next number: Python decides
    assert root.said(LINK) == []
    root.handle(Noticed())
    root.handle(Appended(1, 2))
    root.now_ns += 10_000_000
    root.handle(Noticed())
    assert all(not isinstance(each, Published) or each.through <= 2 for each in root.said(LINK))


def test_the_packets_equal_those_that_python_builds(root: RootCore) -> None:
    numbering = Numbering(id_of(root.core.environment.config.tree), root.core.membership.term)
    numbering.open_stream(1, 1)
    topics = InterestTable()
    topics.add("s.>", 1)
    given = b"".join(encode_published(PUBLISHER, number, 0, f"s.{number}", b"y" * number) for number in range(2, 40))
    send(root, encode_block(given, kind=KIND_PUBLISHED))
    wall_ns = root.now_ns + root.core.sequencer.wall_offset_ns
    appended = [each for each in root.handle(Noticed()) if isinstance(each, Append)]
    assert appended[0].packets == numbering.number(given, PUBLISHER, 1, wall_ns, topics=topics).packets
    assert [decode(each).sequence for each in split_packets(appended[0].packets)] == list(range(2, 40))


@pytest.mark.spec("TREE-5")
def test_distributed_messages_survive_the_process(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "tail", HALF, lambda: None)
    root = with_publisher(RootCore(tail.memory))
    send(root, block(2, 3, 4))
    assert last(root) == 4
    after = Tail(tmp_path / "tail", HALF, lambda: None)
    assert sorted(each.sequence for each in after.packets()) == [2, 3, 4]
    after.close()
    tail.close()


def test_messages_of_several_streams_go_to_their_own_journals(root: RootCore) -> None:
    root.core.sequencer.define("t", ("t.>",))
    for number in range(2, 8):
        send(root, block(number, topic="t.a" if number % 2 else "s.a"))
    appended = [each for each in root.handle(Noticed()) if isinstance(each, Append)]
    assert [(each.stream, each.through) for each in appended] == [(1, 4), (2, 3)]
    for each in appended:
        rows = zip(each.offsets.tolist(), each.sizes.tolist(), strict=True)
        assert [decode(each.packets[at : at + size]).group for at, size in rows] == [each.stream] * 3


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (block(4), "publish"),
        (block(3, topic="unknown.a"), "publish"),
        (block(3, publisher_id=OTHER), "publish"),
        (block(3)[:-8] + bytes(8), "publish"),
    ],
    ids=["number", "topic", "publisher", "damaged"],
)
def test_unusual_messages_are_handled_by_python_as_before(root: RootCore, data: bytes, code: str) -> None:
    send(root, block(2))
    root.receive_bytes(LINK, data)
    assert last(root) == 2
    assert [each.code for each in root.said(LINK) if isinstance(each, Refused)] == [code]


@pytest.mark.spec("TREE-5")
def test_repeated_messages_are_accepted_once(root: RootCore) -> None:
    send(root, block(2, 3))
    root.receive_bytes(LINK, block(2, 3, 4))
    root.receive_bytes(LINK, block(5))
    assert (last(root), root.counters["messages_suppressed"]) == (5, 2)
    assert root.appended == [(1, 1), (2, 3), (4, 4), (5, 5)]


@pytest.mark.spec("TREE-5")
def test_a_returning_publisher_continues_after_the_accepted_messages(root: RootCore) -> None:
    send(root, block(2, 3))
    root.arrive(SECOND, "p", "publisher", publisher_id=PUBLISHER)
    root.publish(SECOND, PUBLISHER, 3, 4)
    send(root, block(4, 5))
    assert last(root) == 4, "its old link is no longer valid"
    send(root, block(5), SECOND)
    assert last(root) == 5


def test_messages_beyond_the_free_half_of_the_tail_go_to_python(root: RootCore, tail: TailMemory) -> None:
    ways: list[bool] = []
    for number in range(2, 60):
        send(root, block(number, payload=bytes(5_000)))
        out = root.core.handle(Noticed(), root.now_ns)
        for each in out:
            if isinstance(each, Append):
                ways.append(each.is_in_tail)
                if not each.is_in_tail:  # like a store
                    tail.turn()
                    tail.write(each.packets)
                root.handle(Appended(1, each.through))
    assert last(root) == 59
    assert 2 <= ways.count(False) <= 6


def test_publishers_wait_while_the_disk_is_behind(root: RootCore) -> None:
    root.is_disk_quick = False
    send(root, block(2))
    root.handle(Noticed())
    send(root, block(3))
    root.handle(Noticed())
    assert not root.core.fanout.receive(LINK, block(4), root.now_ns), "reading from it is paused"
    root.handle(Noticed())
    assert last(root) == 3
    root.handle(Appended(1, 2))
    assert last(root) == 3
    root.handle(Appended(1, 3))
    assert last(root) == 4, "it continued by itself"
    assert root.core.fanout.is_taking(LINK)


def test_a_fragmented_frame_of_a_publisher_waits_as_a_whole(root: RootCore) -> None:
    root.is_disk_quick = False
    for number in (2, 3):
        send(root, block(number))
        root.handle(Noticed())
    data = block(4, 5) + block(6)
    for at in range(0, len(data), 7):
        send(root, data[at : at + 7])
    assert last(root) == 3
    root.handle(Appended(1, 3))
    assert last(root) == 6


@pytest.mark.spec("TREE-6")
def test_a_revoked_right_takes_effect_at_once(tail: TailMemory) -> None:
    root = RootCore(tail)
    root.arrive(LINK, "p", "publisher", publisher_id=PUBLISHER, grants=(Grant("s.>", "send"),))
    root.publish(LINK, PUBLISHER, 1)
    send(root, block(2))
    assert last(root) == 2, "by its grants"
    root.handle(Revoke("p", ("s.b",), "test"))
    root.receive_bytes(LINK, block(3))
    send(root, block(4))
    assert last(root) == 4
    root.receive_bytes(LINK, block(5, topic="s.b"))
    assert last(root) == 4
    assert [each.code for each in root.said(LINK) if isinstance(each, Refused)] == ["publish"]


@pytest.mark.spec("DAY-3", "TREE-6")
@pytest.mark.parametrize("grants", [(Grant(">", "send"),), None])
def test_a_token_does_not_allow_reports_of_sessions(grants: tuple[Grant, ...] | None) -> None:
    root = RootCore(streams=(StreamConfig(name="s", topics=("s.>", SESSION_TOPIC)),))
    root.arrive(LINK, "p", "publisher", publisher_id=PUBLISHER, grants=grants)
    root.publish(LINK, PUBLISHER, 1)
    root.receive_bytes(LINK, block(2, topic=SESSION_TOPIC))
    assert last(root) == (1 if grants else 2)
    assert [each.code for each in root.said(LINK) if isinstance(each, Refused)] == (["publish"] if grants else [])


def test_streams_with_messages_of_the_feeds_have_their_sessions() -> None:
    streams = {"eq": "md.us.eq.>", "one": "md.us.eq.AAPL.quote", "fut": "md.us.fut.>", "desk": "app.>", "all": ">"}
    config = AgentConfig(
        name="root",
        role="root",
        streams=tuple(StreamConfig(name=name, topics=(topic,)) for name, topic in streams.items()),
        subscribe=("md.us.eq.>", "!md.us.fut.>"),
        admin=AdminAccess(url="penstock://127.0.0.1:7400", credentials="root.toml"),
        state_directory="state",
    )
    added = {each.name: each.topics[1:] for each in config.with_session_topics().streams}
    named = (SESSION_TOPIC,)
    assert added == {"eq": named, "one": named, "fut": (), "desk": (), "all": ()}, "the stream has the topic anyway"
    assert config.topics_on_use("md") == ("md.>", "md", SESSION_TOPIC)
    assert config.topics_on_use("app") == ("app.>", "app")


@pytest.mark.spec("TREE-11")
def test_a_standby_has_messages_before_they_are_distributed(tail: TailMemory) -> None:
    root = with_publisher(RootCore(tail, replicate="asynchronous"))
    root.is_disk_quick = False
    root.arrive(SECOND, "standby", "standby")
    send(root, block(2))
    assert last(root) == 1
    assert by_the_intake(root.handle(Noticed())) == [False]


def test_messages_that_must_be_synced_go_to_python(tail: TailMemory) -> None:
    root = with_publisher(RootCore(tail, persist="synced"))
    send(root, block(2))
    assert last(root) == 1
    assert by_the_intake(root.handle(Noticed())) == [False]


def test_a_replaced_root_accepts_nothing(root: RootCore) -> None:
    send(root, block(2))
    root.core._fence(root.core.membership.term + 65_536, "elsewhere:1")
    send(root, block(3))
    assert by_the_intake(root.handle(Noticed())) == [True], "distributed messages are kept"
    assert last(root) == 2


@pytest.fixture
def halves() -> Iterator[TailMemory]:
    memory = TailMemory(bytearray(256), 128)
    yield memory
    memory.release()


def test_released_memory_has_no_space(halves: TailMemory) -> None:
    assert halves.has_room(32)
    halves.release()
    assert not halves.has_room(32)
    assert halves.take_untold() == b""
