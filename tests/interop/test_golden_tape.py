"""The bytes of a tape do not change: a golden file, decoded without code of the product."""

import struct
from collections.abc import Iterator

from penstock.convert import SourceBatch
from penstock.feed.core.lines.events import SessionStarted, SourceLost, SourceReady
from penstock.feed.recorded.tape import encode

GOLDEN = bytes.fromhex(
    "0201000003000000070000000000000000000000000000006461 79"
    "010000000700000007000000000000000040e20100000000 0002 4142 0001 43"
    "010000000200000009000000000000000140e20100000000 0000"
    "03000000060000000a000000000000000c00000000000000 77696e646f77"
)


def entries(tape: bytes) -> Iterator[tuple[int, int, int, int, bytes]]:
    while tape:
        kind, flags, reserved, size, sequence, number = struct.unpack_from("<BBHIQq", tape)
        assert reserved == 0
        yield kind, flags, sequence, number, tape[24 : 24 + size]
        tape = tape[24 + size :]


def test_encoded_bytes_equal_the_golden_ones() -> None:
    batch = SourceBatch()
    batch.point_at(b"ABC")
    batch.append(7, 0, 2, 31_604_736)
    batch.append(8, 2, 1, 31_604_736)
    batch.append(9, 3, 0, 31_604_737)
    events = (SessionStarted("day", 7, True), SourceReady(batch), SourceLost(10, 12, "window"))
    assert b"".join(encode(event) for event in events).hex(" ") == GOLDEN.hex(" ")
    assert list(entries(GOLDEN)) == [
        (2, 1, 7, 0, b"day"),
        (1, 0, 7, 31_604_736, b"\0\2AB\0\1C"),
        (1, 0, 9, 31_604_737, b"\0\0"),
        (3, 0, 10, 12, b"window"),
    ]
