"""Reads frames, control messages and clock packets; written from docs/reference/protocol, without product code."""

import hashlib
import hmac
import struct
from typing import Any

from interop.packet_decoder import crc32c


def frames(data: bytes) -> list[bytes]:
    found = []
    while data:
        (length,) = struct.unpack_from("<I", data)
        assert len(data) >= 4 + length
        found.append(data[4 : 4 + length])
        data = data[4 + length :]
    return found


def message(payload: bytes) -> dict[str, Any]:
    value, rest = _value(payload)
    assert rest == b""
    assert isinstance(value, dict)
    return value


def _value(data: bytes) -> tuple[Any, bytes]:
    """The part of msgpack that control messages use."""
    kind, rest = data[0], data[1:]
    if kind < 0x80:
        return kind, rest
    if kind < 0x90:
        result = {}
        for _ in range(kind & 0x0F):
            key, rest = _value(rest)
            result[key], rest = _value(rest)
        return result, rest
    if kind < 0xA0:
        items = []
        for _ in range(kind & 0x0F):
            item, rest = _value(rest)
            items.append(item)
        return items, rest
    if kind < 0xC0:
        size = kind & 0x1F
        return rest[:size].decode(), rest[size:]
    if kind in (0xC2, 0xC3):
        return kind == 0xC3, rest
    if kind == 0xC4:
        size, rest = rest[0], rest[1:]
        return rest[:size], rest[size:]
    if kind == 0xD9:
        size, rest = rest[0], rest[1:]
        return rest[:size].decode(), rest[size:]
    for code, layout in ((0xCC, ">B"), (0xCD, ">H"), (0xCE, ">I"), (0xCF, ">Q"), (0xD3, ">q"), (0xCB, ">d")):
        if kind == code:
            size = struct.calcsize(layout)
            return struct.unpack(layout, rest[:size])[0], rest[size:]
    raise AssertionError(f"msgpack kind {kind:#x}")


def proof(secret: bytes, side: str, client_hello: bytes, server_hello: bytes) -> bytes:
    """Hellos are complete frames, including the length."""
    statement = b"penstock control " + side.encode() + client_hello + server_hello
    return hmac.new(secret, statement, hashlib.sha256).digest()


def clock_packet(data: bytes) -> dict[str, int]:
    assert len(data) == 64
    assert data[:4] == b"PSCK"
    assert data[4] == 1
    assert data[6:8] == bytes(2)
    assert data[40:60] == bytes(20)
    assert struct.unpack_from("<I", data, 60)[0] == crc32c(data[:60])
    cookie, t1, t2, t3 = struct.unpack_from("<Qqqq", data, 8)
    return {"kind": data[5], "cookie": cookie, "t1": t1, "t2": t2, "t3": t3}
