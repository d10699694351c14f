"""Decodes data frames of assured messaging; written from docs/reference/protocol/assured.md alone."""

import struct
from typing import Any, NamedTuple


class Decoded(NamedTuple):
    kind: int
    head: tuple[int, ...]
    parts: list[tuple[Any, ...]]


RUN = struct.Struct("<QQBB2xI")
PUBLISHED = struct.Struct("<IIHBBHHII")
DELIVERED = struct.Struct("<IIHBBHHIIQqQQ")
HEADS = {
    1: struct.Struct("<BBHIIIQ"),
    2: struct.Struct("<BBHI"),
    3: struct.Struct("<BBHI"),
    4: struct.Struct("<BBHIII"),
}
CREDIT = struct.Struct("<BBHIQ")


def decode(data: bytes) -> list[Decoded]:
    found, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        found.append(_frame(data[at + 4 : at + 4 + length]))
        at += 4 + length
    assert at == len(data)
    return found


def _frame(frame: bytes) -> Decoded:
    if frame[0] == 5:
        kind, flags, zero, *head = CREDIT.unpack(frame)
        assert (flags, zero) == (0, 0)
        return Decoded(kind, tuple(head), [])
    layout = HEADS[frame[0]]
    kind, flags, count, *head = layout.unpack_from(frame)
    assert flags == 0
    at = layout.size
    parts: list[tuple[Any, ...]] = []
    for _ in range(count):
        if kind in (2, 4):
            parts.append(RUN.unpack_from(frame, at))
            at += RUN.size
            continue
        message = PUBLISHED if kind == 1 else DELIVERED
        size, payload_size, topic_size, *fields = message.unpack_from(frame, at)
        topic_at = at + message.size
        payload_at = topic_at + topic_size
        end = payload_at + payload_size
        assert size % 8 == 0
        assert 0 <= at + size - end < 8
        assert not any(frame[end : at + size])
        parts.append((frame[topic_at:payload_at], frame[payload_at:end], *fields))
        at += size
    assert at == len(frame)
    return Decoded(kind, tuple(head), parts)
