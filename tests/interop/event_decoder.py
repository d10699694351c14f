"""Decodes events of the distribution engine; written from docs/reference/protocol/distribution.md alone."""

import struct
from typing import NamedTuple

HEAD = struct.Struct("<IBBHQQqIHHII")


class Decoded(NamedTuple):
    item: int
    kind: int
    cls: int
    flags: int
    number: int
    version: int
    started_ns: int
    merged: int
    model_id: int
    model_version: int
    slot: int
    body: bytes


def decode_events(data: bytes) -> list[Decoded]:
    found, at = [], 0
    while at < len(data):
        *fields, size, slot = HEAD.unpack_from(data, at)
        found.append(Decoded(*fields, slot, data[at + 48 : at + 48 + size]))
        at += 48 + (size + 7) // 8 * 8
    assert at == len(data)
    return found
