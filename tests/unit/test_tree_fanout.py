"""Cases beyond the oracle tests: limits, classes, terms, and invalid frames of a link."""

import pytest

from penstock.base.counters import Cause
from penstock.base.errors import LimitError, LocalProtocolError, PacketError, TopicError
from penstock.filter.core.kernel._condition import Condition
from penstock.middleware.core.reserved_topics import SESSION_TOPIC
from penstock.tree.core.kernel._fanout import Brings, Fanout, LinkClass
from penstock.tree.core.kernel._frame import (
    BLOCK_HEADER_SIZE,
    BLOCK_SIZE_MAX,
    encode_block,
    split_packets,
)
from penstock.tree.core.kernel._history import HISTORY_SIZE_MIN
from penstock.tree.core.kernel.notices import (
    ControlFrame,
    InfoPacket,
    LeftLive,
    LegBlock,
    LinkEnded,
    NewerTerm,
    PublishedBlock,
)
from penstock.wire import decode
from tree_kit import TREE_ID, block, packet

PARENT, CHILD, OTHER = 1, 2, 3
ALL = [([">"], None)]
WORD = b"\x07\x00\x00\x00\x80a word"


@pytest.fixture
def fanout() -> Fanout:
    return opened()


def opened(history_size: int = HISTORY_SIZE_MIN, **bounds: int) -> Fanout:
    made = Fanout(TREE_ID, history_size=history_size, **bounds)
    made.open_stream(1, term=1)
    made.open_link(PARENT, brings=Brings.PACKETS | Brings.INFO)
    made.open_link(CHILD)
    return made


def sequences(frames: bytes) -> list[int]:
    found = []
    while frames:
        length = int.from_bytes(frames[:4], "little")
        found += [decode(each).sequence for each in split_packets(frames[BLOCK_HEADER_SIZE : 4 + length])]
        frames = frames[4 + length :]
    return found


def test_a_run_of_packets_is_forwarded_unchanged(fanout: Fanout) -> None:
    fanout.open_leg(CHILD, 1, 1, ALL, is_live=True)
    frame = block(*(packet(number) for number in range(1, 40)))
    for at in range(len(frame)):
        fanout.receive(PARENT, frame[at : at + 1])
    assert fanout.ready() == [CHILD]
    assert fanout.take(CHILD, 1 << 20) == frame
    assert fanout.take(CHILD, 1 << 20) == b""
    assert fanout.stream(1).accepted == 39


def test_packets_on_both_sides_of_the_end_of_the_history_are_forwarded_unchanged() -> None:
    """The packets fill the history exactly, so the positions of the last and the first are adjacent."""
    sent = [packet(number, payload=bytes([number]) * 20_000) for number in range(1, 62)]
    fanout = opened(history_size=60 * len(sent[0]))
    fanout.open_leg(CHILD, 1, 1, ALL, is_live=True)
    for each in sent[:59]:
        fanout.receive(PARENT, block(each))
        assert fanout.take(CHILD, 1 << 20) == block(each)
    fanout.receive(PARENT, block(sent[59]))
    fanout.receive(PARENT, block(sent[60]))
    assert fanout.take(CHILD, 1 << 20) == block(*sent[59:])


def test_frames_stay_below_the_frame_limit(fanout: Fanout) -> None:
    fanout.open_leg(CHILD, 1, 1, ALL, is_live=True)
    for number in range(1, 9):
        fanout.receive(PARENT, block(packet(number, payload=bytes(40_000))))
    frames = b""
    while more := fanout.take(CHILD, 1):
        assert len(more) <= BLOCK_SIZE_MAX
        frames += more
    assert sequences(frames) == list(range(1, 9))


@pytest.mark.spec("TREE-2")
def test_a_condition_is_applied_here(fanout: Fanout) -> None:
    fanout.open_leg(CHILD, 1, 1, [(["md.>"], Condition(b"wanted"))], is_live=True)
    fanout.receive(PARENT, block(packet(1, payload=b"wanted"), packet(2, payload=b"not"), packet(3, payload=b"wanted")))
    assert sequences(fanout.take(CHILD, 1 << 20)) == [1, 3]
    fanout.open_leg(CHILD, 2, 1, [(["md.>"], Condition(b"not"))], is_live=False)
    portion = fanout.fetch(CHILD, 2, 0, 1 << 20)
    assert portion is not None
    assert [decode(each).sequence for each in split_packets(portion.packets)] == [2]


def test_expressions_are_matched_too(fanout: Fanout) -> None:
    fanout.open_leg(CHILD, 1, 1, [(["/md\\.[ac]/"], None)], is_live=True)
    fanout.receive(PARENT, block(packet(1, "md.a"), packet(2, "md.b"), packet(3, "md.c")))
    assert sequences(fanout.take(CHILD, 1 << 20)) == [1, 3]


def test_control_messages_keep_their_position(fanout: Fanout) -> None:
    fanout.open_leg(CHILD, 1, 1, ALL, is_live=True)
    word = b"\x02\x00\x00\x00\x80\x81"
    fanout.receive(PARENT, block(packet(1)))
    fanout.say(CHILD, word)
    fanout.receive(PARENT, block(packet(2)))
    assert fanout.take(CHILD, 1 << 20) == block(packet(1)) + word + block(packet(2))


def test_control_messages_are_bounded() -> None:
    fanout = opened(control_size_max=100)
    fanout.say(CHILD, bytes(60))
    with pytest.raises(LimitError):
        fanout.say(CHILD, bytes(41))
    assert fanout.take(CHILD, 1000) == bytes(60)
    fanout.say(CHILD, bytes(41))


@pytest.mark.spec("TREE-10")
def test_a_leg_that_the_history_would_overwrite_leaves_live() -> None:
    fanout = opened(queue_packets_max=1_000_000)
    fanout.open_link(OTHER)
    fanout.open_leg(CHILD, 1, 1, ALL, is_live=True)
    fanout.open_leg(OTHER, 1, 1, ALL, is_live=True)
    fanout.receive(PARENT, block(packet(1)))
    assert sequences(fanout.take(CHILD, 1 << 20)) == [1]
    fanout.say(CHILD, b"\x01\x00\x00\x00\x80")
    got = sequences(fanout.take(OTHER, 1 << 20))
    left = []
    for number in range(2, 80):
        fanout.receive(PARENT, block(packet(number, payload=bytes(30_000))))
        got += sequences(fanout.take(OTHER, 1 << 20))
        left += [each for each in fanout.notices() if isinstance(each, LeftLive)]
    assert left == [LeftLive(CHILD, 1, 1)]
    assert got == list(range(1, 80))
    assert fanout.take(CHILD, 1 << 20) == b"\x01\x00\x00\x00\x80"
    assert fanout.fetch(CHILD, 1, 1, 1 << 20) is None
    kept_after = fanout.stream(1).kept_after
    assert kept_after > 1
    portion = fanout.fetch(CHILD, 1, kept_after, 1 << 22)
    assert portion is not None
    assert [decode(each).sequence for each in split_packets(portion.packets)] == list(range(kept_after + 1, 80))
    assert portion.is_live


@pytest.mark.spec("TREE-10")
def test_a_conflating_child_gets_the_newest_messages_in_order() -> None:
    fanout = opened()
    fanout.open_link(OTHER, cls=LinkClass.CONFLATING)
    fanout.open_leg(OTHER, 1, 1, ALL, is_live=True)
    topics = [f"md.{number}" for number in range(100)]
    for number in range(1, 1_001):
        fanout.receive(PARENT, block(packet(number, topics[number % 100])))
    got = sequences(fanout.take(OTHER, 1 << 24))
    assert got == sorted(got)
    assert got == [*range(1, 257), *range(901, 1_001)]
    assert fanout.link(OTHER).conflated == 1_000 - len(got)
    fanout.receive(PARENT, block(packet(1_001)))
    fanout.say(OTHER, b"\x01\x00\x00\x00\x80")
    assert fanout.take(OTHER, 1 << 24) == block(packet(1_001)) + b"\x01\x00\x00\x00\x80"


@pytest.mark.spec("TREE-10")
def test_a_conflating_child_with_a_small_queue_gets_the_newest_messages_and_stays_live() -> None:
    fanout = opened(queue_packets_max=5)
    fanout.open_link(OTHER, cls=LinkClass.CONFLATING)
    fanout.open_leg(OTHER, 1, 1, ALL, is_live=True)
    for number in range(1, 101):
        fanout.receive(PARENT, block(packet(number, f"md.{number % 3}")))
    assert fanout.notices() == []
    assert sequences(fanout.take(OTHER, 1 << 20)) == [*range(1, 6), 98, 99, 100]
    assert fanout.link(OTHER).conflated == 92


@pytest.mark.spec("DAY-3", "TREE-10")
def test_all_session_events_for_a_conflating_child_are_kept_in_order() -> None:
    fanout = opened(queue_packets_max=16)
    fanout.open_link(OTHER, cls=LinkClass.CONFLATING)
    fanout.open_leg(OTHER, 1, 1, ALL, is_live=True)
    topics = {20: SESSION_TOPIC, 30: SESSION_TOPIC, 40: SESSION_TOPIC}
    for number in range(1, 61):
        fanout.receive(PARENT, block(packet(number, topics.get(number, f"md.{number % 3}"))))
    assert fanout.notices() == []
    assert sequences(fanout.take(OTHER, 1 << 20)) == [*range(1, 17), 20, 30, 40, 58, 59, 60]
    assert fanout.link(OTHER).conflated == 60 - 22


@pytest.mark.spec("DAY-3", "TREE-10")
def test_too_many_session_events_of_a_conflating_child_end_live_delivery() -> None:
    fanout = opened(queue_packets_max=16, topics_waiting_max=10)
    fanout.open_link(OTHER, cls=LinkClass.CONFLATING)
    fanout.open_leg(OTHER, 1, 1, ALL, is_live=True)
    for number in range(1, 28):
        fanout.receive(PARENT, block(packet(number, SESSION_TOPIC)))
    assert fanout.notices() == [LeftLive(OTHER, 1, 0)]


def test_control_messages_to_a_conflating_child_follow_waiting_data() -> None:
    fanout = opened()
    fanout.open_link(OTHER, cls=LinkClass.CONFLATING)
    fanout.open_leg(OTHER, 1, 1, ALL, is_live=True)
    for number in range(1, 401):
        fanout.receive(PARENT, block(packet(number, f"md.{number % 7}")))
    fanout.say(OTHER, WORD)
    fanout.receive(PARENT, block(packet(401)))
    frames = fanout.take(OTHER, 1 << 24)
    before, word, behind = frames.partition(WORD)
    assert word
    assert sequences(before)[-7:] == list(range(394, 401))
    assert sequences(behind) == [401]


def test_too_many_topics_of_a_conflating_child_end_live_delivery() -> None:
    fanout = opened(topics_waiting_max=10)
    fanout.open_link(OTHER, cls=LinkClass.CONFLATING)
    fanout.open_leg(OTHER, 1, 1, ALL, is_live=True)
    for number in range(1, 300):
        fanout.receive(PARENT, block(packet(number, f"md.{number}")))
    assert fanout.notices() == [LeftLive(OTHER, 1, 0)]
    assert fanout.take(OTHER, 1 << 20) == b""


@pytest.mark.spec("TREE-10")
def test_a_child_of_the_disconnect_class() -> None:
    fanout = opened(queue_packets_max=5)
    fanout.open_link(OTHER, cls=LinkClass.DISCONNECT)
    fanout.open_leg(OTHER, 1, 1, ALL, is_live=True)
    for number in range(1, 10):
        fanout.receive(PARENT, block(packet(number)))
    (ended,) = fanout.notices()
    assert isinstance(ended, LinkEnded)
    assert (ended.link, ended.cause) == (OTHER, Cause.SLOW)


def test_a_newer_term_waits_for_the_core(fanout: Fanout) -> None:
    fanout.open_leg(CHILD, 1, 1, ALL, is_live=True)
    fanout.receive(PARENT, block(packet(1), packet(2), packet(3)))
    info = packet(1, "infostream.root", stream=0)
    whole = block(packet(4), info, packet(2, term=2), packet(3, term=2)) + block(packet(4, term=2))
    fanout.receive(PARENT, whole[:-5])
    assert fanout.notices() == [InfoPacket(PARENT, info), NewerTerm(PARENT, 1, 2, 2)]
    fanout.receive(PARENT, whole[-5:])
    assert fanout.stream(1).last == 4
    fanout.set_stream(1, term=2, last=1)
    fanout.resume(PARENT)
    assert fanout.notices() == []
    assert fanout.stream(1)[:3] == (2, 4, 0)
    assert sequences(fanout.take(CHILD, 1 << 20)) == [1, 2, 3, 4, 2, 3, 4]
    fanout.receive(PARENT, block(packet(5, term=1)))
    assert fanout.link(PARENT).dropped == 1
    fanout.open_leg(CHILD, 2, 1, ALL, is_live=False)
    portion = fanout.fetch(CHILD, 2, 0, 1 << 20)
    assert portion is not None
    assert [(decode(each).sequence, decode(each).epoch) for each in split_packets(portion.packets)] == [
        (1, 1), (2, 2), (3, 2), (4, 2)
    ]  # fmt: skip


def test_useless_packets_are_dropped(fanout: Fanout) -> None:
    fanout.receive(PARENT, block(packet(1, stream=9), packet(1, tree_id=5), packet(1)))
    assert fanout.link(PARENT).dropped == 2
    assert fanout.stream(1).last == 1
    assert fanout.notices() == []


@pytest.mark.parametrize(
    ("brings", "frame", "cause"),
    [
        (Brings.NOTHING, block(packet(1)), Cause.UNEXPECTED),
        (Brings.PUBLISHED, block(packet(1)), Cause.UNEXPECTED),
        (Brings.PACKETS, encode_block(packet(1), kind=2), Cause.UNEXPECTED),
        (Brings.PUBLISHED, encode_block(packet(1, stream=0), kind=1), Cause.UNEXPECTED),
        (Brings.PACKETS, block(packet(1, stream=0)), Cause.REFUSED),
        (Brings.INFO, block(packet(1)), Cause.UNEXPECTED),
        (Brings.PACKETS, b"\x00\x00\x00\x00", Cause.LENGTH),
        (Brings.PACKETS, b"\xff\xff\xff\xff\x80", Cause.LENGTH),
        (Brings.PACKETS, b"\x04\x00\x00\x00\x01\x00\x00\x00", Cause.LENGTH),
        (Brings.PACKETS, b"\x04\x00\x00\x00\x07\x00\x00\x00", Cause.LENGTH),
        (Brings.PACKETS, block(packet(1))[:-1] + b"\x55", Cause.CHECKSUM),
        (Brings.PACKETS, b"\x15\x00\x00\x00\x01" + bytes(20), Cause.CHECKSUM),
        (Brings.PUBLISHED, b"\x15\x00\x00\x00\x02" + bytes(20), Cause.CHECKSUM),
        (Brings.PACKETS, b"\x15\x00\x00\x00\x01" + bytes(3) + b"\x01" + bytes(16), Cause.CHECKSUM),
    ],
)
@pytest.mark.spec("TREE-3")
def test_invalid_frames_end_the_link(fanout: Fanout, brings: int, frame: bytes, cause: Cause) -> None:
    fanout.open_link(OTHER, brings=brings)
    fanout.receive(OTHER, frame)
    (ended,) = fanout.notices()
    assert isinstance(ended, LinkEnded)
    assert (ended.link, ended.cause) == (OTHER, cause)
    fanout.receive(OTHER, frame)
    assert fanout.notices() == []
    assert fanout.stream(1).last == 0
    fanout.say(OTHER, b"\x01\x00\x00\x00\x80")
    assert fanout.take(OTHER, 100) == b"\x01\x00\x00\x00\x80"


def test_control_frames_reach_the_core_in_order(fanout: Fanout) -> None:
    fanout.open_link(OTHER, brings=Brings.PUBLISHED)
    fanout.receive(PARENT, b"\x01\x00\x00\x00\x80" + block(packet(7), leg=3) + b"\x02\x00\x00\x00\x81\x82")
    fanout.receive(OTHER, encode_block(packet(1), kind=2))
    fanout.receive(OTHER, encode_block(packet(2), kind=2))
    assert fanout.notices() == [
        ControlFrame(PARENT, b"\x80"),
        LegBlock(PARENT, 3, packet(7)),
        PublishedBlock(OTHER, packet(1) + packet(2)),
    ]
    fanout.resume(PARENT)
    assert fanout.notices() == [ControlFrame(PARENT, b"\x81\x82")]
    assert fanout.stream(1).last == 0


@pytest.mark.spec("TREE-5")
def test_live_packets_wait_for_the_portion_of_the_past_before_them(fanout: Fanout) -> None:
    fanout.open_leg(CHILD, 1, 1, ALL, is_live=True)
    fanout.receive(PARENT, block(packet(1), packet(2), leg=3) + block(packet(3)))
    fanout.receive(PARENT, block(packet(4)))
    (portion,) = fanout.notices()
    assert isinstance(portion, LegBlock)
    assert fanout.stream(1).last == 0
    fanout.absorb(portion.packets, PARENT)
    fanout.resume(PARENT)
    assert sequences(fanout.take(CHILD, 1 << 20)) == [1, 2, 3, 4]
    assert fanout.stream(1).duplicates == 0


def test_own_packets_are_absorbed(fanout: Fanout) -> None:
    fanout.open_leg(CHILD, 1, 1, ALL, is_live=True)
    assert fanout.absorb(packet(1) + packet(2) + packet(2)) == 2
    assert fanout.absorb(packet(3, term=4), PARENT) == 1
    assert fanout.stream(1)[:2] == (4, 3)
    assert sequences(fanout.take(CHILD, 1 << 20)) == [1, 2, 3]
    with pytest.raises(PacketError):
        fanout.absorb(packet(4)[:-1])


def test_streams_links_and_legs_are_opened_once_and_bounded() -> None:
    fanout = opened(links_max=2, streams_max=2, legs_max=2, wants_max=3)
    with pytest.raises(LimitError):
        fanout.open_link(OTHER)
    with pytest.raises(LocalProtocolError):
        fanout.open_link(CHILD)
    fanout.open_stream(2)
    with pytest.raises(LimitError):
        fanout.open_stream(3)
    with pytest.raises(LocalProtocolError):
        fanout.open_stream(2)
    with pytest.raises(TopicError):
        fanout.open_leg(CHILD, 1, 1, [(["a..b"], None)], is_live=True)
    with pytest.raises(LimitError):
        fanout.open_leg(CHILD, 1, 1, ALL * 4, is_live=True)
    fanout.open_leg(CHILD, 1, 1, ALL, is_live=True)
    fanout.open_leg(CHILD, 2, 2, ALL * 2, is_live=True)
    with pytest.raises(LimitError):
        fanout.open_leg(CHILD, 3, 1, ALL, is_live=True)
    fanout.close_stream(2)
    with pytest.raises(LocalProtocolError):
        fanout.fetch(CHILD, 2, 0, 100)
    fanout.open_leg(CHILD, 3, 1, ALL * 2, is_live=True)
    fanout.close_link(CHILD)
    fanout.close_link(CHILD)
    fanout.open_link(OTHER)
    fanout.open_leg(OTHER, 1, 1, ALL * 3, is_live=True)
    assert fanout.links() == [PARENT, OTHER]
    fanout.receive(PARENT, block(packet(1)))
    assert sequences(fanout.take(OTHER, 1 << 20)) == [1]


def test_a_leg_can_change(fanout: Fanout) -> None:
    fanout.open_leg(CHILD, 1, 1, [(["md.a"], None)], is_live=True)
    fanout.receive(PARENT, block(packet(1, "md.a"), packet(2, "md.b")))
    assert fanout.change_leg(CHILD, 1, [(["md.b"], None)]) == 2
    fanout.receive(PARENT, block(packet(3, "md.a"), packet(4, "md.b")))
    assert sequences(fanout.take(CHILD, 1 << 20)) == [1, 4]


def test_a_stream_advances_past_messages_without_an_interest(fanout: Fanout) -> None:
    fanout.receive(PARENT, block(packet(1)))
    fanout.advance(1, 50)
    fanout.advance(1, 20)
    assert fanout.stream(1)[:3] == (1, 50, 0)
    fanout.open_leg(CHILD, 1, 1, ALL, is_live=False)
    portion = fanout.fetch(CHILD, 1, 0, 1 << 20)
    assert portion is not None
    assert (portion.through, portion.is_live) == (50, True)


def test_a_stopped_link_is_not_read(fanout: Fanout) -> None:
    fanout.open_leg(CHILD, 1, 1, ALL, is_live=True)
    fanout.receive(PARENT, block(packet(1)))
    fanout.say(CHILD, b"\x01\x00\x00\x00\x80")
    fanout.stop(CHILD)
    fanout.receive(CHILD, b"\x01\x00\x00\x00\x80")
    fanout.receive(PARENT, block(packet(2)))
    assert fanout.take(CHILD, 1 << 20) == b"\x01\x00\x00\x00\x80"
    assert fanout.notices() == []


def test_blocks_are_divided_between_packets() -> None:
    packets = b"".join(packet(number, payload=bytes(50_000)) for number in range(1, 6))
    frames = encode_block(packets, leg=7)
    assert sequences(frames) == [1, 2, 3, 4, 5]
    assert int.from_bytes(frames[:4], "little") + 4 <= BLOCK_SIZE_MAX
    assert encode_block(b"") == b""
    with pytest.raises(LocalProtocolError):
        encode_block(packets, kind=9)


@pytest.mark.spec("TREE-10")
def test_a_ping_does_not_end_conflation_of_waiting_messages() -> None:
    fanout = opened()
    fanout.open_link(OTHER, cls=LinkClass.CONFLATING)
    fanout.open_leg(OTHER, 1, 1, ALL, is_live=True)
    for number in range(1, 1_001):
        fanout.receive(PARENT, block(packet(number, f"md.{number % 100}")))
        if number % 50 == 0:
            fanout.say(OTHER, WORD, is_behind=False)
    frames = b"".join(iter(lambda: fanout.take(OTHER, 1 << 24), b""))
    assert frames.count(WORD) == 20
    assert sequences(frames.replace(WORD, b"")) == [*range(1, 257), *range(901, 1_001)]
    assert fanout.link(OTHER).conflated == 1_000 - 356


@pytest.mark.spec("TREE-10")
def test_ordered_messages_for_a_conflating_child_do_not_let_its_queue_grow_without_limit() -> None:
    fanout = opened(queue_packets_max=100, topics_waiting_max=100)
    fanout.open_link(OTHER, cls=LinkClass.CONFLATING)
    fanout.open_leg(OTHER, 1, 1, ALL, is_live=True)
    for number in range(1, 1_001):
        fanout.receive(PARENT, block(packet(number, f"md.{number % 50}")))
        if number % 50 == 0:
            fanout.say(OTHER, WORD)
    (left,) = fanout.notices()
    assert isinstance(left, LeftLive)
    assert left.through == 0
    assert fanout.take(OTHER, 1 << 24) == WORD * 20
