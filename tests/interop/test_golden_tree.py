"""Blocks and packets of a distribution tree do not change; they are read here from docs/protocol/tree.md alone."""

import struct
from pathlib import Path
from typing import NamedTuple

import pytest

from interop import packet_decoder
from penstock.topics import InterestTable
from penstock.tree._fanout import Brings, Fanout
from penstock.tree._frame import encode_block
from penstock.tree._number import Numbering, encode_published
from penstock.tree.notices import LegBlock, PublishedBlock

GOLDEN = Path(__file__).parent / "golden" / "tree"
TREE_ID, PUBLISHER_ID, TIME_NS = 0x1122334455667788, 0x0123456789ABCDEF, 1_700_000_000_000_000_000


class Block(NamedTuple):
    kind: int
    leg: int
    packets: list[packet_decoder.Packet]


def decode_block(frame: bytes) -> Block:
    length, kind, zero, zeros, leg, more_zeros = struct.unpack_from("<IBBHII", frame)
    assert (zero, zeros, more_zeros) == (0, 0, 0)
    assert length + 4 == len(frame) <= 131_072
    packets = []
    at = 16
    while at < len(frame):
        (size,) = struct.unpack_from("<I", frame, at + 8)
        packets.append(packet_decoder.decode(frame[at : at + size]))
        at += size
    return Block(kind, leg, packets)


def published() -> bytes:
    return b"".join(
        encode_published(PUBLISHER_ID, number, 2, topic, b"101.25", model_id=3, model_version=2)
        for number, topic in ((5, "md.us.eq.AAPL.quote"), (6, "md.us.eq.IBM.quote"))
    )


def numbered() -> bytes:
    topics = InterestTable()
    topics.add("md.>", 2)
    numbering = Numbering(TREE_ID, 3)
    numbering.open_stream(2, 40)
    return numbering.number(published(), PUBLISHER_ID, 4, TIME_NS, topics=topics).packets


BLOCKS = {
    "published": lambda: encode_block(published(), kind=2),
    "live": lambda: encode_block(numbered()),
    "leg": lambda: encode_block(numbered(), leg=9),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_the_bytes_are_the_golden_ones(name: str) -> None:
    assert BLOCKS[name]().hex() == (GOLDEN / f"{name}.hex").read_text().replace("\n", "")


def test_a_publisher_s_block_is_what_the_document_says() -> None:
    block = decode_block(bytes.fromhex((GOLDEN / "published.hex").read_text()))
    assert (block.kind, block.leg) == (2, 0)
    assert [(each.publisher_id, each.group, each.sequence) for each in block.packets] == [
        (PUBLISHER_ID, 2, 5), (PUBLISHER_ID, 2, 6)
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "leg"), [("live", 0), ("leg", 9)])
def test_a_stream_s_block_is_what_the_document_says(name: str, leg: int) -> None:
    block = decode_block(bytes.fromhex((GOLDEN / f"{name}.hex").read_text()))
    assert (block.kind, block.leg) == (1, leg)
    assert [(each.publisher_id, each.group, each.epoch, each.sequence) for each in block.packets] == [
        (TREE_ID, 2, 3, 41), (TREE_ID, 2, 3, 42)
    ]  # fmt: skip
    for packet, number, topic in zip(block.packets, (5, 6), ("md.us.eq.AAPL.quote", "md.us.eq.IBM.quote"), strict=True):
        (message,) = packet.messages
        assert (message.topic, message.payload, message.model_id) == (topic, b"101.25", 3)
        assert struct.unpack("<Qq", message.extensions[2]) == (3, TIME_NS)
        assert struct.unpack("<IQQ", message.extensions[7]) == (0, PUBLISHER_ID, number)


def test_the_golden_blocks_are_taken() -> None:
    fanout = Fanout(TREE_ID)
    fanout.open_stream(2, term=3, last=40)
    fanout.open_link(1, brings=Brings.PACKETS | Brings.PUBLISHED)
    for name in ("live", "leg", "published"):
        fanout.receive(1, bytes.fromhex((GOLDEN / f"{name}.hex").read_text()))
        fanout.resume(1)
    assert fanout.stream(2).last == 42
    assert [type(each) for each in fanout.notices()] == [LegBlock, PublishedBlock]
