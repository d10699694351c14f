"""A party that sends too many control frames is paused; other parties are not."""

import pytest

from penstock.base.clock import NS_PER_MS
from penstock.base.core import Tick
from penstock.net.core.control import Ping
from penstock.net.core.framing import encode_frame
from penstock.tree.core.agent import NOTICES_PER_TURN
from penstock.tree.core.control import TREE, Unsubscribe
from penstock.tree.core.events import Noticed
from penstock.tree.core.infostream import Infostream, Load
from penstock.tree.core.kernel._fanout import Brings, Fanout
from penstock.tree.core.kernel._history import HISTORY_SIZE_MIN
from penstock.tree.core.kernel.notices import ControlFrame, InfoPacket, LinkEnded
from tree_kit import TREE_ID, block
from unit.test_tree_lane import rig
from unit.tree_core_kit import RootCore

NOTED_MAX = 256
FLOOD, OTHER = 1, 2


def word(number: int, size: int = 8) -> bytes:
    return encode_frame(b"\x80" + number.to_bytes(4, "little") + bytes(size - 5))


def opened(brings: int = 0) -> Fanout:
    made = Fanout(TREE_ID, history_size=HISTORY_SIZE_MIN)
    made.open_link(FLOOD, brings=brings)
    made.open_link(OTHER)
    return made


def numbers(fanout: Fanout, link: int, count_max: int = 65_536) -> list[int]:
    frames = [each for each in fanout.notices(count_max) if isinstance(each, ControlFrame) and each.link == link]
    return [int.from_bytes(each.payload[1:5], "little") for each in frames]


@pytest.mark.spec("TREE-10")
def test_a_link_is_paused_after_too_many_control_frames_and_continues_in_order() -> None:
    fanout = opened()
    assert not fanout.receive(FLOOD, b"".join(map(word, range(1_000))))
    assert not fanout.receive(FLOOD, b"".join(map(word, range(1_000, 1_010)))), "frames in between are kept"
    assert fanout.receive(OTHER, word(7))
    assert numbers(fanout, OTHER) == [7]
    assert fanout.notices() == [], "nothing more before the release"
    seen = NOTED_MAX
    while fanout.release_held():
        found = numbers(fanout, FLOOD)
        assert found == list(range(seen, seen + len(found)))
        assert len(found) <= NOTED_MAX
        seen += len(found)
    assert seen == 1_010
    assert fanout.is_taking(FLOOD)
    assert set(fanout.ready()) == {FLOOD}, "its reader is notified"


@pytest.mark.spec("TREE-10")
def test_unread_frames_do_not_accumulate() -> None:
    fanout = opened()
    fanout.receive(FLOOD, b"".join(map(word, range(1_000))))
    assert numbers(fanout, FLOOD, 100) == list(range(100))
    assert fanout.release_held()
    assert numbers(fanout, FLOOD) == list(range(100, NOTED_MAX))


@pytest.mark.spec("TREE-10")
def test_long_frames_pause_a_link_earlier() -> None:
    fanout = opened()
    fanout.receive(FLOOD, b"".join(word(number, 40_000) for number in range(10)))
    assert numbers(fanout, FLOOD) == [0, 1]
    assert fanout.release_held()
    assert numbers(fanout, FLOOD) == [2, 3]


@pytest.mark.spec("TREE-10")
def test_the_infostream_of_an_agent_is_limited_likewise() -> None:
    fanout = opened(Brings.INFO)
    said = Infostream("a")
    fanout.receive(FLOOD, b"".join(block(said.encode(Load("a", 5), 1)) for _ in range(1_000)))
    assert 0 < len([each for each in fanout.notices() if isinstance(each, InfoPacket)]) <= NOTED_MAX
    assert not fanout.is_taking(FLOOD)


@pytest.mark.spec("TREE-10")
def test_a_party_that_keeps_sending_to_a_paused_link_is_disconnected() -> None:
    fanout = opened()
    fanout.receive(FLOOD, b"".join(map(word, range(300))))
    megabyte = bytes(1024 * 1024)
    for _ in range(9):
        fanout.receive(FLOOD, megabyte)
    assert [each.link for each in fanout.notices() if isinstance(each, LinkEnded)] == [FLOOD]
    fanout.close_link(FLOOD)
    assert not fanout.release_held()


@pytest.mark.spec("TREE-10")
def test_the_lane_stops_reading_a_paused_link() -> None:
    with rig() as each:
        flooding, other = each.connect(FLOOD), each.connect(OTHER)
        flooding.setblocking(False)
        words = b"".join(map(word, range(2_000)))
        sent = flooding.send(words)
        first = [each.notice(ControlFrame) for _ in range(NOTED_MAX)]
        assert {notice.link for notice in first} == {FLOOD}
        other.sendall(word(1))
        assert each.notice(ControlFrame).link == OTHER, "and not one more of the other"
        seen = NOTED_MAX
        while seen < sent // len(word(0)):
            each.fanout.release_held()
            each.lane.wake()
            each.notice(ControlFrame)
            seen += 1


@pytest.mark.spec("TREE-10")
def test_timers_and_other_links_have_their_turn_during_a_flood_of_one_child() -> None:
    root = RootCore(heartbeat_ms=10, silence_ms=100)
    root.arrive(FLOOD, "flood")
    root.arrive(OTHER, "other")
    root.said(OTHER)
    root.core.fanout.receive(FLOOD, encode_frame(TREE.encode(Unsubscribe(9), 100)) * 20_000)
    beats = turns = 0
    root.core.handle(Noticed(), root.now_ns)
    while (due_ns := root.core.next_deadline_ns()) is not None and due_ns <= root.now_ns:
        root.now_ns += NS_PER_MS
        root.core.handle(Tick(), root.now_ns)
        turns += 1
        beats += sum(isinstance(each, Ping) for each in root.said(OTHER))
    assert turns >= 20_000 // NOTICES_PER_TURN
    assert beats >= turns // 20
    assert root.closed == set()
