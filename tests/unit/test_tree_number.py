"""The root assigns every message its position, once."""

import pytest

from penstock.base.errors import LimitError, LocalProtocolError, PacketError
from penstock.topics import InterestTable
from penstock.tree.core.kernel._frame import EXTENSION_PUBLISHED, split_packets
from penstock.tree.core.kernel._number import Numbering, encode_published, published_through
from penstock.wire import Extension, Hop, Packer, decode, decode_hops, encode_extensions, encode_hops
from tree_kit import TREE_ID

PUBLISHER, TIME_NS = 0xABCD, 1_700_000_000_000_000_000


@pytest.fixture
def numbering() -> Numbering:
    made = Numbering(TREE_ID, 3)
    made.open_stream(1, 10)
    made.open_stream(2, 0)
    return made


@pytest.fixture
def topics() -> InterestTable:
    table = InterestTable()
    table.add("md.>", 1)
    table.add("news.>", 2)
    return table


def published(*topics: str, first: int = 1, stream: int = 0) -> bytes:
    return b"".join(
        encode_published(PUBLISHER, number, stream, topic, topic.encode(), model_id=4, model_version=2)
        for number, topic in enumerate(topics, first)
    )


def test_every_message_gets_its_position(numbering: Numbering, topics: InterestTable) -> None:
    given = published("md.a", "md.b", "news.a", "md.c")
    numbered = numbering.number(given, PUBLISHER, 0, TIME_NS, topics=topics)
    packets = [decode(each) for each in split_packets(numbered.packets)]
    assert [(each.publisher_id, each.group, each.epoch, each.sequence) for each in packets] == [
        (TREE_ID, 1, 3, 11), (TREE_ID, 1, 3, 12), (TREE_ID, 2, 3, 1), (TREE_ID, 1, 3, 13)
    ]  # fmt: skip
    assert [(each[0].topic, bytes(each[0].payload), each[0].model_id) for each in packets] == [
        (topic, topic.encode(), 4) for topic in ("md.a", "md.b", "news.a", "md.c")
    ]
    assert [(run.stream, run.first, run.start, run.count) for run in numbered.runs] == [
        (1, 11, 0, 2), (2, 1, 2, 1), (1, 13, 3, 1)
    ]  # fmt: skip
    for offset, size, each in zip(numbered.offsets, numbered.sizes, split_packets(numbered.packets), strict=True):
        assert numbered.packets[offset : offset + size] == each
    assert (numbered.through, numbered.duplicates, numbered.refused) == (4, 0, "")
    assert (numbering.last(1), numbering.last(2)) == (13, 1)
    extensions = packets[3][0].extensions
    assert decode_hops(extensions[Extension.HOPS]) == [Hop(3, TIME_NS)]
    assert extensions[EXTENSION_PUBLISHED] == bytes(4) + PUBLISHER.to_bytes(8, "little") + (4).to_bytes(8, "little")
    assert published_through(numbered.packets) == {PUBLISHER: 4}


@pytest.mark.spec("TREE-5")
def test_a_message_that_was_accepted_before_is_accepted_once(numbering: Numbering, topics: InterestTable) -> None:
    given = published("md.a", "md.b", "md.c")
    numbered = numbering.number(given + given, PUBLISHER, 1, TIME_NS, topics=topics)
    assert [decode(each)[0].topic for each in split_packets(numbered.packets)] == ["md.b", "md.c"]
    assert (numbered.through, numbered.duplicates) == (3, 4)


def test_other_extensions_stay_and_hops_are_continued(numbering: Numbering, topics: InterestTable) -> None:
    forged = bytes(4) + (1).to_bytes(8, "little") + (2**63).to_bytes(8, "little")
    extensions = encode_extensions(
        {Extension.TAGS: b"x", Extension.HOPS: encode_hops([Hop(1, 5)]), EXTENSION_PUBLISHED: forged}
    )
    given = encode_published(PUBLISHER, 1, 1, "md.a", b"", extensions=extensions)
    numbered = numbering.number(given, PUBLISHER, 0, TIME_NS, topics=topics)
    found = decode(numbered.packets)[0].extensions
    assert found[Extension.TAGS] == b"x"
    assert decode_hops(found[Extension.HOPS]) == [Hop(1, 5), Hop(3, TIME_NS)]
    assert published_through(numbered.packets) == {PUBLISHER: 1}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (published("md.b", first=3), "missing"),
        (published("other.b", first=2), "no stream"),
        (published("news.b", first=2, stream=1), "no stream"),
        (published("md.b", first=2, stream=7), "no stream"),
        (encode_published(PUBLISHER + 1, 2, 0, "md.b", b""), "another publisher"),
        (published("md.b", first=2)[:-8], "damaged"),
        (b"rubbish", "damaged"),
    ],
)
def test_invalid_messages_are_refused(numbering: Numbering, topics: InterestTable, given: bytes, reason: str) -> None:
    numbered = numbering.number(published("md.a") + given, PUBLISHER, 0, TIME_NS, topics=topics)
    assert reason in numbered.refused
    assert (numbered.through, numbering.last(1)) == (1, 11)
    again = numbering.number(published("md.x", first=2), PUBLISHER, 1, TIME_NS, topics=topics)
    assert decode(again.packets).sequence == 12


def test_topics_without_a_grant_are_refused(numbering: Numbering, topics: InterestTable) -> None:
    allowed = InterestTable()
    allowed.add("md.a", 0)
    numbered = numbering.number(published("md.a", "md.b"), PUBLISHER, 0, TIME_NS, topics=topics, allowed=allowed)
    assert numbered.through == 1
    assert "may not" in numbered.refused


def test_a_packet_with_two_messages_is_not_from_a_publisher(numbering: Numbering, topics: InterestTable) -> None:
    packer = Packer(PUBLISHER, 0, 0)
    packer.add("md.a", b"")
    packer.add("md.b", b"")
    packet = packer.flush()
    assert packet is not None
    assert "damaged" in numbering.number(packet, PUBLISHER, 0, TIME_NS, topics=topics).refused


def test_a_message_must_fit_a_packet(numbering: Numbering, topics: InterestTable) -> None:
    with pytest.raises(LimitError):
        encode_published(PUBLISHER, 1, 0, "md.a", bytes(65_400))
    with pytest.raises(LimitError):
        encode_published(PUBLISHER, 1, 0, "md.a", bytes(70_000))
    largest = encode_published(PUBLISHER, 1, 0, "md.a", bytes(65_376))
    assert len(numbering.number(largest, PUBLISHER, 0, TIME_NS, topics=topics).packets) <= 65_507


def test_streams_are_opened_once(numbering: Numbering) -> None:
    with pytest.raises(LocalProtocolError):
        numbering.open_stream(1, 0)
    numbering.close_stream(1)
    with pytest.raises(LocalProtocolError):
        numbering.last(1)
    with pytest.raises(PacketError):
        published_through(b"rubbish" * 20)
