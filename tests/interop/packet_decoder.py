"""A second decoder of packets, written from docs/reference/protocol/packet.md without code of the product.

It is slow and simple on purpose. `decode` returns a Packet or raises BadPacket with the cause's name.
"""

import struct
from typing import NamedTuple

PACKET_SIZE_LIMIT = 65_507
TOPIC_SIZE_LIMIT = 255


class BadPacket(Exception):
    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class Message(NamedTuple):
    topic: str
    payload: bytes
    flags: int
    model_id: int
    model_version: int
    extensions: dict[int, bytes]


class Packet(NamedTuple):
    kind: int
    flags: int
    publisher_id: int
    group: int
    epoch: int
    sequence: int
    gap: int
    extensions: dict[int, bytes]
    messages: list[Message]
    ranges: list[tuple[int, int]]


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ 0x82F63B78 if value & 1 else value >> 1
        table.append(value)
    return table


CRC_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def checksum(packet: bytes) -> int:
    return crc32c(packet[:12] + packet[16:])


def with_checksum(packet: bytes) -> bytes:
    """The packet with a correct checksum of its bytes."""
    return packet[:12] + struct.pack("<I", checksum(packet)) + packet[16:]


def decode(data: bytes) -> Packet:
    if len(data) < 48 or data[:2] != b"PS":
        raise BadPacket("foreign")
    if data[2] != 1:
        raise BadPacket("version")
    (size,) = struct.unpack_from("<I", data, 8)
    if size < 48 or size > PACKET_SIZE_LIMIT or size < len(data):
        raise BadPacket("length")
    if size > len(data):
        raise BadPacket("truncated")
    if struct.unpack_from("<I", data, 12)[0] != checksum(data):
        raise BadPacket("checksum")
    kind = data[3]
    if kind not in (1, 2, 3):
        raise BadPacket("kind")
    flags, count = struct.unpack_from("<HH", data, 4)
    publisher_id, group, epoch, sequence, gap, extensions_size = struct.unpack_from("<QIIQIH", data, 16)
    if publisher_id == 0:
        raise BadPacket("length")
    reader = _Reader(data[48:])
    extensions = _extensions(reader.take(extensions_size))
    messages: list[Message] = []
    ranges: list[tuple[int, int]] = []
    if kind == 1:
        messages += [_message(reader, is_first=index == 0, is_last=index == count - 1) for index in range(count)]
    else:
        for _ in range(count):
            first, last = struct.unpack("<QQ", reader.take(16))
            _require(first <= last)
            ranges.append((first, last))
        _require(count > 0)
    _require(reader.left == 0)
    return Packet(kind, flags, publisher_id, group, epoch, sequence, gap, extensions, messages, ranges)


def request_number(packet: Packet) -> tuple[int, int]:
    """For a NACK: the requester, and the number of its request."""
    assert packet.kind == 2
    return packet.sequence, packet.gap


def verdict(data: bytes) -> Packet | str:
    """The packet, or the name of the cause for its refusal."""
    try:
        return decode(data)
    except BadPacket as bad:
        return bad.cause


def _message(reader: "_Reader", *, is_first: bool, is_last: bool) -> Message:
    flags, topic_size, message_size, model_id, model_version, extensions_size, _ = struct.unpack(
        "<HHIHHHH", reader.take(16)
    )
    extensions = _extensions(reader.take(extensions_size))
    _require(topic_size <= TOPIC_SIZE_LIMIT)
    topic_bytes = reader.take_padded(topic_size)
    payload = reader.take_padded(message_size)
    is_continuation, is_more, is_direct = flags & 1, flags & 2, flags & 8
    _require(topic_size > 0 or bool(is_direct))
    _require(is_first or not is_continuation)
    _require(is_last or not is_more)
    _require(message_size > 0 or not (is_continuation or is_more))
    try:
        topic = topic_bytes.decode("utf-8")
    except UnicodeDecodeError:
        raise BadPacket("length") from None
    return Message(topic, payload, flags, model_id, model_version, extensions)


def _extensions(data: bytes) -> dict[int, bytes]:
    _require(len(data) % 8 == 0)
    reader = _Reader(data)
    extensions = {}
    while reader.left:
        kind, size = struct.unpack("<HH", reader.take(4))
        extensions[kind] = reader.take(size)
        reader.take(-(4 + size) % 8)
    return extensions


def _require(condition: bool) -> None:
    if not condition:
        raise BadPacket("length")


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        _require(size <= self.left)
        taken = self._data[self._at : self._at + size]
        self._at += size
        return taken

    def take_padded(self, size: int) -> bytes:
        return self.take(-(-size // 8) * 8)[:size]
