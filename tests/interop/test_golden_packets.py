"""The format's bytes do not change: the encoder makes the golden packets, and both decoders read them."""

import re
from pathlib import Path

import pytest

from interop import packet_decoder
from penstock.wire import (
    Extension,
    Hop,
    MessageFlag,
    Origin,
    Packer,
    PacketFlag,
    Seal,
    decode,
    decode_destination,
    decode_hops,
    decode_interest_mask,
    decode_origin,
    decode_seal,
    decode_tags,
    encode_destination,
    encode_extensions,
    encode_gone,
    encode_hops,
    encode_interest_mask,
    encode_nack,
    encode_origin,
    encode_seal,
    encode_tags,
)

GOLDEN = Path(__file__).parent / "golden"
PUBLISHER_ID, GROUP, EPOCH = 0x0123456789ABCDEF, 0xEF010203, 7
STREAM = (PUBLISHER_ID, GROUP, EPOCH)

ORIGIN = Origin(stream_id=9, term=515, message_index=2, flags=1, source_sequence=1_000_000, message_sequence=77)
HOPS = [Hop(stage=1, time_ns=1_700_000_000_000_000_000), Hop(stage=2, time_ns=-1)]
SEAL = Seal(key_id=5, nonce=bytes(range(12)))
MASK = 1 << 64 | 0b101
DESTINATION = 0x1122334455667788
CONTENT = bytes(range(256)) + bytes(reversed(range(256))) + b"end"
TAGS = ["opening", "größe"]


def single_message() -> list[bytes]:
    packer = Packer(*STREAM)
    packer.add("md.us.eq.AAPL.quote", b"101.25", model_id=3, model_version=2)
    return _flushed(packer)


def several_messages() -> list[bytes]:
    packer = Packer(*STREAM, first_sequence=41)
    packer.add("a", b"")
    packer.add("12345678", b"12345678")
    packer.add("grün", b"x", flags=MessageFlag.SEALED)
    return _flushed(packer)


def keep_alive() -> list[bytes]:
    return [Packer(*STREAM, first_sequence=2).empty(PacketFlag.KEEP_ALIVE)]


def goodbye() -> list[bytes]:
    return [Packer(*STREAM, first_sequence=2**64 - 1).empty(PacketFlag.KEEP_ALIVE | PacketFlag.GOODBYE)]


def fragments() -> list[bytes]:
    packer = Packer(*STREAM, packet_size_max=328)
    closed = packer.add("md.book", CONTENT, model_id=4, model_version=1)
    return [*closed, *_flushed(packer)]


def all_extensions() -> list[bytes]:
    packer = Packer(*STREAM)
    bodies = {
        Extension.ORIGIN: encode_origin(ORIGIN),
        Extension.HOPS: encode_hops(HOPS),
        Extension.SEAL: encode_seal(SEAL),
        Extension.INTEREST_MASK: encode_interest_mask(MASK),
        Extension.DESTINATION: encode_destination(DESTINATION),
        Extension.TAGS: encode_tags(TAGS),
    }
    packer.add("", b"to one", flags=MessageFlag.DIRECT | MessageFlag.SEALED, extensions=encode_extensions(bodies))
    return _flushed(packer)


def nack() -> list[bytes]:
    return [encode_nack(*STREAM, [(3, 3), (5, 2**64 - 1)], requester=0x1020304050607080, number=9)]


def gone() -> list[bytes]:
    return [encode_gone(*STREAM, [(1, 2)])]


PACKETS = {
    make.__name__: make
    for make in (single_message, several_messages, keep_alive, goodbye, fragments, all_extensions, nack, gone)
}


def _flushed(packer: Packer) -> list[bytes]:
    packet = packer.flush()
    assert packet is not None
    return [packet]


def golden(name: str) -> list[bytes]:
    """The packets of a golden file: hexadecimal digits, a blank line between two packets, # before a comment."""
    text = re.sub("#.*", "", (GOLDEN / f"{name}.hex").read_text())
    return [bytes.fromhex(packet) for packet in re.split(r"\n\s*\n", text) if packet.strip()]


def test_every_golden_file_has_a_generator() -> None:
    assert {path.stem for path in GOLDEN.glob("*.hex")} == set(PACKETS)


@pytest.mark.spec("FILT-1")
@pytest.mark.parametrize("name", PACKETS)
def test_the_encoder_writes_the_golden_bytes(name: str) -> None:
    assert [packet.hex() for packet in PACKETS[name]()] == [packet.hex() for packet in golden(name)]


@pytest.mark.spec("FILT-1")
@pytest.mark.parametrize("name", PACKETS)
def test_both_decoders_read_the_same(name: str) -> None:
    for data in golden(name):
        ours, theirs = decode(data), packet_decoder.decode(data)
        assert (ours.kind, ours.flags, ours.publisher_id, ours.group, ours.epoch, ours.sequence, ours.gap) == theirs[:7]
        assert ours.extensions == theirs.extensions
        assert ours.ranges == theirs.ranges
        assert [
            (m.topic, bytes(m.payload), m.flags, m.model_id, m.model_version, m.extensions) for m in ours
        ] == theirs.messages


def test_the_golden_packets_have_the_expected_fields() -> None:
    (single,) = map(packet_decoder.decode, golden("single_message"))
    assert single.messages == [packet_decoder.Message("md.us.eq.AAPL.quote", b"101.25", 0, 3, 2, {})]
    (several,) = map(packet_decoder.decode, golden("several_messages"))
    assert [(m.topic, m.payload, m.flags) for m in several.messages] == [
        ("a", b"", 0),
        ("12345678", b"12345678", 0),
        ("grün", b"x", 4),
    ]
    (last,) = map(packet_decoder.decode, golden("goodbye"))
    assert (last.flags, last.sequence, last.messages) == (17, 2**64 - 1, [])
    (request,) = map(packet_decoder.decode, golden("nack"))
    assert (request.kind, request.ranges) == (2, [(3, 3), (5, 2**64 - 1)])
    assert packet_decoder.request_number(request) == (0x1020304050607080, 9)
    (answer,) = map(packet_decoder.decode, golden("gone"))
    assert (answer.kind, answer.ranges) == (3, [(1, 2)])


@pytest.mark.spec("FILT-2")
def test_golden_fragments_join_to_the_message() -> None:
    packets = [packet_decoder.decode(data) for data in golden("fragments")]
    parts = [packet.messages[0] for packet in packets]
    assert [part.flags for part in parts] == [2, 3, 1]
    assert [packet.sequence for packet in packets] == [1, 2, 3]
    assert {(part.topic, part.model_id, part.model_version) for part in parts} == {("md.book", 4, 1)}
    assert b"".join(part.payload for part in parts) == CONTENT


def test_the_extensions_have_the_encoded_values() -> None:
    (data,) = golden("all_extensions")
    extensions = decode(data)[0].extensions
    assert decode_origin(extensions[Extension.ORIGIN]) == ORIGIN
    assert decode_hops(extensions[Extension.HOPS]) == HOPS
    assert decode_seal(extensions[Extension.SEAL]) == SEAL
    assert decode_interest_mask(extensions[Extension.INTEREST_MASK]) == MASK
    assert decode_destination(extensions[Extension.DESTINATION]) == DESTINATION
    assert decode_tags(extensions[Extension.TAGS]) == TAGS


def test_the_documents_example_is_the_golden_packet(project: Path) -> None:
    document = (project / "docs/reference/protocol/packet.md").read_text()
    example = document.split("<!-- example: single_message -->")[1].split("```")[1]
    rows = [line.split("|")[0].split(maxsplit=1) for line in example.strip().splitlines()[1:]]
    data = b"".join(bytes.fromhex(row[1]) for row in rows)
    assert data.hex() == golden("single_message")[0].hex()
    offsets = [int(row[0]) for row in rows]
    sizes = [len(bytes.fromhex(row[1])) for row in rows]
    assert offsets == [sum(sizes[:index]) for index in range(len(sizes))]
