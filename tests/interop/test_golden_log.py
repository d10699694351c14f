"""The log of a message router does not change on disk; the decoder is written from protocol/assured.md alone
(REPL-1)."""

import hashlib
from pathlib import Path
from typing import Any

from assured_kit import Router, message, queue
from interop import log_decoder
from penstock.assured.core.router._cleaning import log_publishers
from penstock.assured.core.router._records import is_record

BASE = 1 << 40

FOLDER = Path(__file__).with_name("golden_log")
GOLDEN = {path.stem: path.read_text().strip() for path in sorted(FOLDER.glob("*.hex"))}
PUBLISHER_DIGEST = "1bc0aeff91dfbd2b62d893010926e9af0fe8ed265859b92a168e7cdd1d397b4c"


def recorded() -> list[bytes]:
    """A session with every kind of record except MOVED."""
    router = Router(queue("a", "orders.>"), queue("b", "orders.x"), queue("c", "orders.x", deliveries_max=3))
    router.link(1)
    handle = router.publisher(1)
    router.publish(1, handle, 1, message("hello", "orders.x", priority=7, ttl_ms=5, model_id=3, model_version=2))
    flow = router.flow(1, "a")
    other = router.flow(1, "b")
    router.settle(1, flow, BASE + 1)
    router.settle(1, other, BASE + 1, what=3)
    router.settle(1, router.flow(1, "c"), BASE + 1, what=2)
    router.begin(1, handle, 9)
    router.publish(1, handle, 2, message("t", "orders.y"), transaction=9)
    router.commit(1, handle, 9)
    log_publishers(router.core.tables, 10**9)
    router.advance(0)
    return [payload for _, payload in router.journal.records.values()]


def of_kind(records: list[bytes], kind: str) -> list[bytes]:
    return [each for each in records if log_decoder.decode(each)["kind"] == kind]


def test_encoded_records_equal_the_golden_ones() -> None:
    records = recorded()
    assert len(GOLDEN) == 7
    assert all(map(is_record, records))
    for kind, expected in GOLDEN.items():
        assert of_kind(records, kind)[0].hex() == expected, kind
    assert hashlib.sha256(of_kind(records, "publisher")[0]).hexdigest() == PUBLISHER_DIGEST


def test_records_have_the_documented_fields() -> None:
    records = recorded()
    found: dict[str, Any] = {kind: log_decoder.decode(of_kind(records, kind)[0]) for kind in (*GOLDEN, "publisher")}
    said = found["message"]
    assert (said["id"], said["publisher"], said["number"], said["priority"]) == (BASE + 1, 77, 1, 7)
    assert (said["topic"], said["payload"], said["model"]) == ("orders.x", "hello", [3, 2])
    assert said["expires_ns"] - said["published_ns"] == 5_000_000
    assert sorted(said["destinations"]) == [[2, 0, 0, 0], [3, 0, 0, 0], [4, 0, 0, 0]]
    assert found["settled"] == {"kind": "settled", "flags": 0, "endpoint": 2, "runs": [[BASE + 1, BASE + 1]]}
    assert found["dead"] == {"kind": "dead", "flags": 0, "why": 1, "source": 3, "target": 1, "id": BASE + 1}
    transaction = found["transaction"]
    assert (transaction["publisher"], transaction["transaction"], transaction["id"]) == (77, 9, BASE + 2)
    assert [each["payload"] for each in transaction["records"]] == ["t"]
    assert (found["publisher"]["highest"], found["publisher"]["known"]) == (2, [1, 2])
    owner = int.from_bytes(hashlib.blake2b(b"client", digest_size=8).digest(), "little")
    assert found["owner"] == {"kind": "owner", "flags": 0, "publisher": 77, "owner": owner}
    assert found["publisher"]["owner"] == owner
    assert found["returned"] == {"kind": "returned", "flags": 0, "endpoint": 4, "deliveries": 1, "id": BASE + 1}
    assert (found["epoch"]["epoch"], found["epoch"]["since"]) == (1, [0, 0])
    names = [log_decoder.decode(each)["definition"]["config"]["name"] for each in of_kind(records, "endpoint")]
    assert names == ["dead", "a", "b", "c"]


def test_a_damaged_record_is_never_accepted() -> None:
    for record in recorded():
        for size in range(len(record)):
            assert not is_record(record[:size])
        assert not is_record(record + bytes(8))
        assert not is_record(bytes([99]) + record[1:])
