"""Decodes frames between the routers of a pair, each without its length; written from protocol/assured.md alone."""

import struct
from typing import Any

from interop import log_decoder

KINDS = {6: "live", 7: "missing", 8: "records", 9: "publishers", 10: "together", 11: "spliced"}


def decode(frame: bytes) -> dict[str, Any]:
    kind, flags, zero = struct.unpack_from("<BBH", frame)
    assert zero == 0
    return {"kind": KINDS[kind], "flags": flags, **READERS[kind](frame)}


def _ids(frame: bytes) -> dict[str, Any]:
    (number,) = struct.unpack_from("<I", frame, 4)
    return {"number": number, "ids": [each for (each,) in struct.iter_unpack("<Q", frame[8:])]}


def _records(frame: bytes) -> dict[str, Any]:
    count, position = struct.unpack_from("<IQ", frame, 4)
    at, records = 16, []
    while at < len(frame):
        size = struct.unpack_from("<I", frame, at + 4)[0]
        records.append(log_decoder.decode(frame[at : at + size]))
        at += size
    assert len(records) == count
    return {"position": position, "records": records}


def _together(frame: bytes) -> dict[str, Any]:
    return {"number": struct.unpack_from("<I", frame, 4)[0], "data": frame[8:]}


def _spliced(frame: bytes) -> dict[str, Any]:
    (count,) = struct.unpack_from("<I", frame, 4)
    end = 8 + 16 * count
    return {"pieces": list(struct.iter_unpack("<IIII", frame[8:end])), "said": frame[end:]}


READERS = {6: _ids, 7: _ids, 8: _records, 9: _records, 10: _together, 11: _spliced}


def join(spliced: dict[str, Any], held: dict[int, bytes]) -> bytes:
    """The frame of records from which a spliced frame was made."""
    joined, at = b"", 0
    for said, number, offset, size in spliced["pieces"]:
        part = held.get(number, b"")[offset : offset + size]
        assert len(part) == size
        joined += spliced["said"][at : at + said] + part
        at += said
    assert at == len(spliced["said"])
    return joined


def mark(number: int) -> int:
    """The digest that stands for an endpoint of this number where the receiver matches the message."""
    mixed = (number + 1) * 0x9E3779B97F4A7C15 % 2**64
    return ((mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 % 2**64 >> 32) % 2**32
