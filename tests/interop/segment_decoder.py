"""Decodes rings and regions without code of the product; written from protocol/shared-memory.md alone."""

import struct
from typing import NamedTuple

POLYNOMIAL = 0x82F63B78


class Ring(NamedTuple):
    capacity: int
    event_size_max: int
    token: int
    events: list[tuple[int, bytes]]
    """(sequence, payload) of each event from the base on."""
    end: str
    """The header after the last event: blank or closed."""


class Record(NamedTuple):
    generation: int
    times_ns: tuple[int, int, int]
    parts: list[tuple[int, bytes]]
    """(generation, payload)"""
    is_withdrawn: bool = False


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def decode_ring(data: bytes) -> Ring:
    """A ring that has not wrapped yet."""
    magic, version, reserved, capacity, event_size_max, checksum = struct.unpack_from("<4sHHQII", data)
    assert (magic, version, reserved) == (b"PSRG", 1, 0)
    assert checksum == crc32c(data[:20])
    assert len(data) == 64 + capacity
    token, zero = struct.unpack_from("<IQ", data, 24)
    assert zero == 0
    at, events = 64, []
    while True:
        found, length, sequence = struct.unpack_from("<IIQ", data, at)
        assert sequence == len(events) + 1
        if found == token ^ 0xFFFFFFFF:
            assert length == 0
            return Ring(capacity, event_size_max, token, events, "blank")
        assert found == token
        if length == 0xFFFFFFFF:
            return Ring(capacity, event_size_max, token, events, "closed")
        end = at + (16 + length + 4 + 7) // 8 * 8
        assert struct.unpack_from("<I", data, end - 4)[0] == crc32c(data[at : at + 16 + length])
        events.append((sequence, data[at + 16 : at + 16 + length]))
        at = end


def decode_region(data: bytes) -> list[Record | None]:
    magic, version, part_count, record_count, *sizes = struct.unpack_from("<4sHHQ16I", data)
    assert (magic, version) == (b"PSRN", 2)
    assert struct.unpack_from("<I", data, 80)[0] == crc32c(data[:80])
    assert sizes[part_count:] == [0] * (16 - part_count)
    stride = (40 + sum(sizes) + 16 * part_count + 63) // 64 * 64
    assert len(data) == 128 + record_count * stride
    return [_record(data[at : at + stride], sizes[:part_count]) for at in range(128, len(data), stride)]


def _record(data: bytes, sizes: list[int]) -> Record | None:
    generation, *times_ns, checksum = struct.unpack_from("<QqqqI", data)
    if generation == 0:
        assert not any(data)
        return None
    assert generation % 2 == 0
    assert checksum == crc32c(data[:32])
    at, parts = 40, []
    for size in sizes:
        part_generation, part_checksum = struct.unpack_from("<QI", data, at + size)
        assert part_checksum == crc32c(data[at : at + size + 8])
        parts.append((part_generation, data[at : at + size]))
        at += size + 16
    (merged,) = struct.unpack_from("<I", data, 36)
    return Record(generation, (times_ns[0], times_ns[1], times_ns[2]), parts, bool(merged >> 31))
