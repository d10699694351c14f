"""Blocks, packets and control messages of a distribution tree do not change; the decoder is written from
docs/reference/protocol/tree.md alone."""

import struct
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from interop import packet_decoder
from interop.golden_messages import check_golden
from penstock.topics import InterestTable
from penstock.tree.core.control import (
    MESSAGE_SIZE_MAX,
    TREE,
    Bearers,
    Fetch,
    Fetched,
    Held,
    Login,
    Message,
    Order,
    Ordered,
    Position,
    Published,
    Refused,
    RenewToken,
    Stored,
    StreamInfo,
    Subscribe,
    Unsubscribe,
    Want,
    Welcome,
)
from penstock.tree.core.kernel._fanout import Brings, Fanout
from penstock.tree.core.kernel._frame import encode_block
from penstock.tree.core.kernel._number import Numbering, encode_published
from penstock.tree.core.kernel.notices import LegBlock, PublishedBlock

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
def test_encoded_blocks_equal_the_golden_ones(name: str) -> None:
    assert BLOCKS[name]().hex() == (GOLDEN / f"{name}.hex").read_text().replace("\n", "")


def test_a_block_of_a_publisher_has_the_documented_fields() -> None:
    block = decode_block(bytes.fromhex((GOLDEN / "published.hex").read_text()))
    assert (block.kind, block.leg) == (2, 0)
    assert [(each.publisher_id, each.group, each.sequence) for each in block.packets] == [
        (PUBLISHER_ID, 2, 5), (PUBLISHER_ID, 2, 6)
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "leg"), [("live", 0), ("leg", 9)])
def test_a_block_of_a_stream_has_the_documented_fields(name: str, leg: int) -> None:
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


def test_the_golden_blocks_are_accepted() -> None:
    fanout = Fanout(TREE_ID)
    fanout.open_stream(2, term=3, last=40)
    fanout.open_link(1, brings=Brings.PACKETS | Brings.PUBLISHED)
    for name in ("live", "leg", "published"):
        fanout.receive(1, bytes.fromhex((GOLDEN / f"{name}.hex").read_text()))
        fanout.resume(1)
    assert fanout.stream(2).last == 42
    assert [type(each) for each in fanout.notices()] == [LegBlock, PublishedBlock]


# Control messages

WANTED = (Want(("md.us.>", "!md.us.IBM.>"), "price > 100"),)
MESSAGES: dict[str, tuple[Message, dict[str, Any]]] = {
    "login": (
        Login("leaf", "agent", "demo", "a token", "10.0.0.1:7422", "mid-1", 2**63 + 5, "conflating", 65_537),
        {"name": "leaf", "role": "agent", "tree": "demo", "token": "a token", "place": "10.0.0.1:7422",
         "home": "mid-1", "publisher_id": 2**63 + 5, "cls": "conflating", "term": 65_537},
    ),
    "subscribe": (
        Subscribe(7, "md", WANTED, Position("sequence", 901, 65_536)),
        {"number": 7, "stream": "md", "wants": [[["md.us.>", "!md.us.IBM.>"], "price > 100"]],
         "after": ["sequence", 901, 65_536]},
    ),
    "fetch": (Fetch(7, 1_048_576), {"number": 7, "bytes_max": 1_048_576}),
    "unsubscribe": (Unsubscribe(7), {"number": 7}),
    "stored": (Stored(2, 2**40), {"stream": 2, "through": 2**40}),
    "renew": (RenewToken("newer"), {"token": "newer"}),
    "order": (
        Order(1, "revoke", "bob", "10.0.0.2:7423", ("md.us.>",), "not paid"),
        {"number": 1, "action": "revoke", "party": "bob", "place": "10.0.0.2:7423", "topics": ["md.us.>"],
         "reason": "not paid"},
    ),
    "welcome": (
        Welcome("mid-1", "demo", 65_537, ("root", "mid-1"), True,
                (StreamInfo(1, "md", ("md.>",), ((65_536, 0), (65_537, 900))),), 41),
        {"agent": "mid-1", "tree": "demo", "term": 65_537, "path": ["root", "mid-1"], "is_rooted": True,
         "streams": [{"number": 1, "name": "md", "topics": ["md.>"], "begins": [[65_536, 0], [65_537, 900]]}],
         "published_through": 41},
    ),
    "held": (
        Held(7, 1, 901, 65_536, False, WANTED),
        {"number": 7, "stream": 1, "after": 901, "term": 65_536, "is_live": False,
         "wants": [[["md.us.>", "!md.us.IBM.>"], "price > 100"]]},
    ),
    "fetched": (Fetched(7, 1_000, True), {"number": 7, "through": 1_000, "is_live": True}),
    "published": (Published(300, is_degraded=True), {"through": 300, "is_degraded": True}),
    "bearers": (Bearers(((7, "alice"), (2**63, "bob"))), {"bearers": [[7, "alice"], [2**63, "bob"]]}),
    "ordered": (Ordered(1), {"number": 1}),
    "refused": (
        Refused("not-root", "publishers go to the root", 0, "10.0.0.9:7420"),
        {"code": "not-root", "reason": "publishers go to the root", "number": 0, "place": "10.0.0.9:7420"},
    ),
}  # fmt: skip
"""By type: the message, and the fields that an independent reader finds in it."""


def test_control_messages_equal_the_golden_ones() -> None:
    check_golden(TREE, Message, MESSAGES, GOLDEN / "control.txt", MESSAGE_SIZE_MAX)
