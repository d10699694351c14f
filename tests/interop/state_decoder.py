"""Decodes state images without code of the product; written from docs/reference/protocol/state-image.md alone."""

import struct
from typing import Any, NamedTuple


class Unit(NamedTuple):
    number: int
    digest: int
    rows: Any


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def decode(chunks: list[bytes]) -> tuple[int, int, list[Unit]]:
    """Instruments and digest of the source, and the units."""
    body = b""
    for at, chunk in enumerate(chunks):
        magic, version, flags, reserved, size, checksum = struct.unpack_from("<4sBBHII", chunk)
        number, instruments, digest = struct.unpack_from("<IIQ", chunk, 16)
        assert (magic, version, reserved, number) == (b"PSIM", 2, 0, at)
        assert flags == (1 if at == 0 else 0) | (2 if at == len(chunks) - 1 else 0)
        assert size == len(chunk) - 32
        assert checksum == crc32c(chunk[:12] + chunk[16:])
        body += chunk[32:]
    units = []
    while body:
        number, reserved, size, unit_digest = struct.unpack_from("<IIQQ", body)
        assert reserved == 0
        units.append(Unit(number, unit_digest, decode_unit(number, body[24 : 24 + size])))
        body = body[24 + size :]
    return instruments, digest, units


def decode_unit(number: int, data: bytes) -> Any:
    if number == 0:
        return struct.unpack("<16sqQqqQ", data)
    if number <= 1024:
        return list(struct.iter_unpack("<QqQII", data))
    if number % 2 == 0:
        return list(struct.iter_unpack("<QqQqII", data))
    reference = struct.unpack_from("<16s4sIQIBBH8sqq", data)
    statistics = struct.unpack_from("<5qQQQqQ", data, 64)
    extended = struct.unpack_from("<3qQQqQ", data, 144)
    position = struct.unpack_from("<qQ", data, 200)
    bids, asks = struct.unpack_from("<II", data, 216)
    levels = list(struct.iter_unpack("<qQII", data[224:]))
    assert len(levels) == bids + asks
    return reference, statistics, extended, position, levels[:bids], levels[bids:]
