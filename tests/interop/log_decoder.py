"""Decodes records of a message router's log; written from docs/reference/protocol/assured.md alone."""

import json
import struct
from typing import Any

KINDS = {
    1: "message",
    2: "moved",
    3: "settled",
    4: "dead",
    5: "transaction",
    6: "publisher",
    7: "endpoint",
    8: "epoch",
    9: "returned",
    10: "owner",
}


def decode(record: bytes) -> dict[str, Any]:
    kind, flags, size = record[0], record[1], struct.unpack_from("<I", record, 4)[0]
    assert size == len(record)
    assert size % 8 == 0
    return {"kind": KINDS[kind], "flags": flags, **READERS[kind](record)}


def _message(record: bytes) -> dict[str, Any]:
    payload_size, topic_size, count = struct.unpack_from("<IHH", record, 8)
    number_id, publisher, number, published_ns, expires_ns = struct.unpack_from("<QQQqq", record, 16)
    at = 64 + 16 * count
    end = at + topic_size + payload_size
    assert not any(record[end:])
    assert len(record) - end < 8
    return {
        "priority": record[2],
        "treatment": record[3],
        "id": number_id,
        "publisher": publisher,
        "number": number,
        "published_ns": published_ns,
        "expires_ns": expires_ns,
        "model": list(struct.unpack_from("<HH", record, 56)),
        "destinations": [list(struct.unpack_from("<IHHI", record, 64 + 16 * each)) for each in range(count)],
        "topic": record[at : at + topic_size].decode(),
        "payload": record[at + topic_size : end].decode(),
    }


def _settled(record: bytes) -> dict[str, Any]:
    endpoint, count = struct.unpack_from("<II", record, 8)
    assert len(record) == 16 + 16 * count
    runs = [list(struct.unpack_from("<QQ", record, 16 + 16 * each)) for each in range(count)]
    return {"endpoint": endpoint, "runs": runs}


def _dead(record: bytes) -> dict[str, Any]:
    source, target, number_id = struct.unpack_from("<IIQ", record, 8)
    return {"why": record[2], "source": source, "target": target, "id": number_id}


def _transaction(record: bytes) -> dict[str, Any]:
    publisher, transaction, _, number_id = struct.unpack_from("<QIIQ", record, 8)
    at, records = 32, []
    while at < len(record):
        size = struct.unpack_from("<I", record, at + 4)[0]
        records.append(decode(record[at : at + size]))
        at += size
    return {"publisher": publisher, "transaction": transaction, "id": number_id, "records": records}


def _publisher(record: bytes) -> dict[str, Any]:
    publisher, highest, transaction, words, owner = struct.unpack_from("<QQIIQ", record, 8)
    assert len(record) == 40 + 8 * words
    bits = int.from_bytes(record[40 : 40 + 8 * words], "little")
    known = [each for each in range(4096) if bits >> each & 1] if words else "all"
    return {"publisher": publisher, "highest": highest, "transaction": transaction, "known": known, "owner": owner}


def _endpoint(record: bytes) -> dict[str, Any]:
    endpoint, size = struct.unpack_from("<II", record, 8)
    return {"endpoint": endpoint, "definition": json.loads(record[16 : 16 + size])}


def _epoch(record: bytes) -> dict[str, Any]:
    assert len(record) == 40
    epoch, id_highest, since_epoch, since_id = struct.unpack_from("<QQQQ", record, 8)
    return {"epoch": epoch, "id_highest": id_highest, "since": [since_epoch, since_id]}


def _returned(record: bytes) -> dict[str, Any]:
    assert len(record) == 24
    endpoint, deliveries, number_id = struct.unpack_from("<IIQ", record, 8)
    return {"endpoint": endpoint, "deliveries": deliveries, "id": number_id}


def _owner(record: bytes) -> dict[str, Any]:
    assert len(record) == 24
    publisher, owner = struct.unpack_from("<QQ", record, 8)
    return {"publisher": publisher, "owner": owner}


READERS = {
    1: _message,
    2: _message,
    3: _settled,
    4: _dead,
    5: _transaction,
    6: _publisher,
    7: _endpoint,
    8: _epoch,
    9: _returned,
    10: _owner,
}
