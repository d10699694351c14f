"""Links that send random bytes: each ends with a cause, or its valid frames are accepted, for any division into
reads."""

import random

from penstock.topics import InterestTable
from penstock.tree.core.kernel._fanout import Brings, Fanout
from penstock.tree.core.kernel._frame import encode_block
from penstock.tree.core.kernel._history import HISTORY_SIZE_MIN
from penstock.tree.core.kernel._number import Numbering, encode_published
from tree_kit import TREE_ID, block, packet

PARENT, CHILD = 1, 2


def rubbish(chance: random.Random) -> bytes:
    parts = []
    for number in range(1, chance.randint(2, 8)):
        topic, stream = f"md.{chance.randrange(3)}", chance.choice((0, 1, 9))
        good = packet(number, topic, chance.randbytes(chance.randrange(50)), stream=stream)
        frames = (block(good, packet(number + 1)), block(good, leg=2), b"\x02\x00\x00\x00\x80\x01")
        frame = bytearray(chance.choice(frames))
        if chance.random() < 0.5:
            for _ in range(chance.randint(1, 3)):
                frame[chance.randrange(len(frame))] = chance.randrange(256)
        if chance.random() < 0.1:
            del frame[chance.randrange(len(frame)) :]
        parts.append(bytes(frame))
    return b"".join(parts)


def outcome(data: bytes, cuts: list[int]) -> tuple[object, ...]:
    fanout = Fanout(TREE_ID, history_size=HISTORY_SIZE_MIN, streams_max=4, links_max=4, legs_max=8, wants_max=8)
    fanout.open_stream(1, term=1)
    fanout.open_link(PARENT, brings=Brings.PACKETS | Brings.INFO)
    fanout.open_link(CHILD)
    fanout.open_leg(CHILD, 1, 1, [(["md.>"], None)], is_live=True)
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        fanout.receive(PARENT, data[start:end])
        for _ in range(10):  # more than there are portions of a leg's past, each of which pauses the link
            fanout.resume(PARENT)
    return fanout.notices(), fanout.stream(1), fanout.take(CHILD, 1 << 20), fanout.link(PARENT).dropped


def test_random_bytes_on_a_link(soak: bool) -> None:
    chance = random.Random(8)
    kinds = set()
    for _ in range(20_000 if soak else 400):
        data = rubbish(chance)
        whole = outcome(data, [])
        cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(6)))
        assert outcome(data, cuts) == whole, data.hex()
        kinds |= {type(each).__name__ for each in whole[0]}  # type: ignore[attr-defined]
    assert outcome(data, list(range(1, len(data)))) == whole
    assert kinds >= {"LinkEnded", "ControlFrame", "LegBlock", "InfoPacket"}


def test_random_bytes_of_a_publisher(soak: bool) -> None:
    chance = random.Random(9)
    topics = InterestTable()
    topics.add("md.>", 1)
    reasons = set()
    for _ in range(20_000 if soak else 500):
        numbering = Numbering(TREE_ID, 1)
        numbering.open_stream(1, 0)
        data = bytearray(b"".join(encode_published(7, number, 1, "md.a", bytes(9)) for number in range(1, 5)))
        for _ in range(chance.randrange(3)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        numbered = numbering.number(bytes(data), 7, 0, 1, topics=topics)
        assert numbering.last(1) == numbered.through == len(numbered.sizes)
        reasons.add(numbered.refused)
    assert "" in reasons
    assert len(reasons) > 1


def test_random_bytes_as_packets() -> None:
    chance = random.Random(10)
    fanout = Fanout(TREE_ID, history_size=HISTORY_SIZE_MIN)
    fanout.open_link(PARENT, brings=Brings.PUBLISHED)
    for _ in range(300):
        fanout.open_link(3, brings=Brings.PACKETS | Brings.INFO | Brings.PUBLISHED)
        data = chance.randbytes(chance.randrange(300))
        fanout.receive(3, len(data).to_bytes(4, "little") + data)
        fanout.notices()
        fanout.close_link(3)
    fanout.receive(PARENT, encode_block(packet(1), kind=2))
    assert len(fanout.notices()) == 1
