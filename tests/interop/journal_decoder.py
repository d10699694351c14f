"""Reads a journal's files with code independent of the product, written from protocol/journal.md alone."""

import struct
from typing import NamedTuple


def crc32c(data: bytes, crc: int = 0) -> int:
    """CRC computed bit by bit from the polynomial."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


class Header(NamedTuple):
    version: int
    nonce: int
    journal_id: bytes
    first_sequence: int
    previous_first: int
    created_ns: int


class Record(NamedTuple):
    sequence: int
    timestamp_ns: int
    durable: int
    payload: bytes


class Mark(NamedTuple):
    version: int
    journal_id: bytes
    boot_id: bytes
    durable: int


class Oldest(NamedTuple):
    version: int
    journal_id: bytes
    sequence: int


def decode_segment(data: bytes) -> tuple[Header, list[Record]]:
    assert data[:8] == b"PSJOURN\n"
    assert struct.unpack_from("<I", data, 60)[0] == crc32c(data[:60])
    assert data[56:60] == bytes(4)
    header = Header(
        *struct.unpack_from("<II", data, 8),
        data[16:32],
        *struct.unpack_from("<QQq", data, 32),
    )
    assert header.version == 1
    records = []
    at, sequence = 64, header.first_sequence
    while at < len(data):
        size, checksum, number, timestamp_ns, durable = struct.unpack_from("<IIQqQ", data, at)
        if size == 0:
            assert not any(data[at:])
            break
        space = (size + 7) // 8 * 8
        record = data[at : at + space]
        assert len(record) == space
        assert checksum == crc32c(record[8:], crc32c(record[:4], header.nonce))
        assert number == sequence
        assert durable < number
        assert not any(record[size:])
        records.append(Record(number, timestamp_ns, durable, record[32:size]))
        at += space
        sequence += 1
    return header, records


def decode_mark(data: bytes) -> Mark:
    assert len(data) == 64
    assert data[:8] == b"PSJMARK\n"
    assert data[12:16] == data[56:60] == bytes(4)
    assert struct.unpack_from("<I", data, 60)[0] == crc32c(data[:60])
    return Mark(*struct.unpack_from("<I", data, 8), data[16:32], data[32:48], *struct.unpack_from("<Q", data, 48))


def decode_oldest(data: bytes) -> list[Oldest]:
    """The slots in use."""
    assert len(data) == 1_024
    slots = [data[:512], data[512:]]
    for slot in (written := [each for each in slots if any(each)]):
        assert slot[:8] == b"PSJOLDE\n"
        assert slot[12:16] == slot[40:44] == bytes(4)
        assert struct.unpack_from("<I", slot, 44)[0] == crc32c(slot[:44])
        assert not any(slot[48:])
    return [
        Oldest(*struct.unpack_from("<I", slot, 8), slot[16:32], *struct.unpack_from("<Q", slot, 32)) for slot in written
    ]
