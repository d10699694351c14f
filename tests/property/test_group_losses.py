"""With any losses and any order of the packets of a group, a node ends with the newest record of each item that was
sent, and never returns to an older one."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine import EventKind, TransmissionClass, make_event
from penstock.plant.core.event_blocks import Cut, blocks_of, cut_events, joined
from penstock.plant.core.incoming import Incoming, Updated
from penstock.plant.live.group_sender import NewestSent

ITEMS = 4


def update(item: int, version: int) -> bytes:
    body = struct.pack("<Q", version)
    cls = TransmissionClass.ADAPTIVE
    return make_event(EventKind.UPDATE, item=item, cls=cls, version=version, number=version, body=body)


class NodeBelow:
    """The newest version of each item that the node has received."""

    def __init__(self) -> None:
        self.versions: dict[bytes, int] = {}
        self._incoming = Incoming(lambda number: ())
        self._incoming.begin(is_again=False, is_split=True)

    def take(self, data: bytes, *, is_group: bool) -> None:
        read = self._incoming.read_fresh(data, is_group=True) if is_group else self._incoming.read(data)
        for each in read:
            assert isinstance(each, Updated)
            assert each.version > self.versions.get(each.topic, 0), "an older version overwrites a newer one"
            self.versions[each.topic] = each.version

    def define(self, item: int) -> None:
        self.take(make_event(EventKind.DEFINE, item=item, body=b"t%d" % item), is_group=False)


@pytest.mark.spec("ADPT-9")
@given(
    packets=st.lists(st.lists(st.integers(0, ITEMS - 1), max_size=3, unique=True), min_size=1, max_size=20),
    lost=st.sets(st.integers(1, 20)),
    told_late=st.booleans(),
    to_all=st.booleans(),
    defined_at=st.integers(0, 20),
)
def test_every_loss_is_made_up_for(
    packets: list[list[int]], lost: set[int], told_late: bool, to_all: bool, defined_at: int
) -> None:
    sent, node, counts = NewestSent(), NodeBelow(), [0] * ITEMS
    missing: list[int] = []
    sequence = 0

    def send(block: list[Cut]) -> None:
        nonlocal sequence
        sequence += 1
        for each in block:
            sent.note(each, sequence, sequence)
        if sequence in lost:
            missing.append(sequence)
        else:
            node.take(joined(block), is_group=True)

    def make_up() -> None:
        while missing:
            number = missing.pop(0)
            if lacking := sent.missed(number, number):
                send(lacking) if to_all else node.take(joined(lacking), is_group=False)

    for at, items in enumerate(packets):
        if at == defined_at or (at == 0 and defined_at >= len(packets)):
            for item in range(ITEMS):
                node.define(item)
        for item in items:
            counts[item] += 1
        send(list(cut_events(b"".join(update(item, counts[item]) for item in items))))
        if not told_late and at >= defined_at:
            make_up()
    make_up()
    assert node.versions == {b"t%d" % item: count for item, count in enumerate(counts) if count}


@given(
    sends=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), max_size=40),
    first=st.integers(0, 120),
    length=st.integers(0, 120),
)
def test_what_is_missed_is_what_was_sent_last_in_these_packets(
    sends: list[tuple[int, int]], first: int, length: int
) -> None:
    sent = NewestSent()
    newest: dict[int, tuple[int, int]] = {}
    sequence = 1
    for number, (item, packets) in enumerate(sends, 1):
        (cut,) = cut_events(update(item, number))
        sent.note(cut, sequence, sequence + packets - 1)
        newest[item] = (sequence, sequence + packets - 1)
        sequence += packets
    last = first + length
    expected = sorted((span, item) for item, span in newest.items() if span[0] <= last and span[1] >= first)
    assert [each.item for each in sent.missed(first, last)] == [item for _, item in expected]


@given(sizes=st.lists(st.integers(0, 300), max_size=30), size_max=st.integers(1, 1_000))
def test_blocks_hold_every_event_once_in_order(sizes: list[int], size_max: int) -> None:
    data = b"".join(make_event(EventKind.UPDATE, item=at, body=bytes(size)) for at, size in enumerate(sizes))
    blocks = list(blocks_of(cut_events(data), size_max))
    assert b"".join(map(joined, blocks)) == data
    assert all(len(joined(block)) <= size_max or len(block) == 1 for block in blocks)
