"""Impossible records of a router's log are refused, from a peer and from the disk."""

import struct

import pytest

from assured_kit import MemoryJournal, Router, queue
from paired_kit import Router as PairedRouter
from paired_kit import connect
from penstock.assured.core.pair.protocol import Defined, PeerFrame, encode
from penstock.assured.core.router import _records as records
from penstock.assured.core.router._records import is_record
from penstock.base.errors import JournalCorruptError

EVERY_ID = 2**64 - 1


def message(number: int, publisher: int) -> bytes:
    head = struct.pack("<BBBBIIHHQQQqqHHI", 1, 0, 4, 0, 64, 0, 0, 0, number, publisher, 1, 0, 0, 0, 0, 0)
    assert len(head) == records.MESSAGE_HEAD_SIZE
    return head


def transaction(number: int) -> bytes:
    return struct.pack("<BBHIQIIQ", records.RECORD_TRANSACTION, 0, 0, records.TRANSACTION_HEAD_SIZE, 7, 1, 0, number)


def publisher(number: int) -> bytes:
    return struct.pack("<BBHIQQIIQ", records.RECORD_PUBLISHER, 0, 0, records.PUBLISHER_HEAD_SIZE, number, 1, 0, 0, 0)


def owner(publisher: int) -> bytes:
    return struct.pack("<BBHIQQ", records.RECORD_OWNER, 0, 0, records.OWNER_SIZE, publisher, 5)


def epoch(id_highest: int) -> bytes:
    return struct.pack("<BBHIQQQQ", records.RECORD_EPOCH, 0, 0, records.EPOCH_SIZE, 1, id_highest, 0, 0)


def test_publisher_0_does_not_exist() -> None:
    assert is_record(message(1, 7))
    assert is_record(publisher(7))
    assert is_record(owner(7))
    assert not is_record(message(1, 0))
    assert not is_record(publisher(0))
    assert not is_record(owner(0))


def test_every_id_has_a_successor() -> None:
    assert is_record(message(EVERY_ID - 1, 7))
    assert is_record(transaction(EVERY_ID - 1))
    assert is_record(epoch(EVERY_ID - 1))
    assert not is_record(message(EVERY_ID, 7))
    assert not is_record(transaction(EVERY_ID))
    assert not is_record(epoch(EVERY_ID))


UNREADABLE = [b"{", b'{"config":{"later":1}}', b'{"config":{"name":"\xff"}}', b'{"config":' + b"[" * 2_000]


@pytest.mark.parametrize("definition", UNREADABLE)
def test_a_log_with_an_invalid_endpoint_is_refused(definition: bytes) -> None:
    size = (records.ENDPOINT_HEAD_SIZE + len(definition) + 7) // 8 * 8
    head = struct.pack("<BBHIII", records.RECORD_ENDPOINT, 0, 0, size, 1, len(definition))
    journal = MemoryJournal()
    journal.records[1] = (0, (head + definition).ljust(size, b"\0"))
    with pytest.raises(JournalCorruptError):
        Router(queue("q"), journal=journal)


@pytest.mark.parametrize("definition", UNREADABLE)
def test_a_router_that_sends_an_invalid_endpoint_is_disconnected(definition: bytes) -> None:
    one, other = PairedRouter("a"), PairedRouter("b")
    connect(one, other)
    assert other.pair.receiving is not None
    other.tell(PeerFrame(other.link, encode(Defined(9, definition))[4:]))
    assert other.pair.receiving is None
    assert "invalid definition of an endpoint" in other.ended[-1]
