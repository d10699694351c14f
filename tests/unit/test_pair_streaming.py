"""Messages published in a transaction are copied to the other router immediately, and held there until the commit
(REPL-10)."""

import struct
from typing import Any

import pytest

from paired_kit import QUEUE, Router, connect, disconnect, exchange, switch
from penstock.assured.core.pair.protocol import SwitchHere
from penstock.assured.core.pair.transaction_stream import HeldTransactions
from penstock.assured.core.router.events import Data, LinkClosed, RequestReceived
from penstock.assured.wire._layout import KIND_RECORDS, KIND_SPLICED, KIND_TOGETHER, OUTCOME_SYNC, PEER_FRAME_SIZE_MAX
from penstock.assured.wire.control import Begin, Commit, Ended, Rollback
from penstock.assured.wire.frames import Published, encode_publish
from penstock.base.errors import RemoteProtocolError

LINK = 10
CONTENT = bytes(range(256)) * 64


def linked(**pair: Any) -> tuple[Router, Router]:
    one, other = Router("a", QUEUE, pair=pair), Router("b", pair=pair)
    connect(one, other)
    one.clients(LINK)
    exchange(one, other)
    return one, other


def begin(one: Router, *contents: bytes) -> None:
    one.tell(RequestReceived(LINK, Begin(3, 1, 1)))
    messages = [Published(b"a.x", each) for each in contents]
    one.tell(Data(LINK, encode_publish(1, 1, messages, transaction=1)))


def kinds(router: Router) -> list[int]:
    return [each[0] for each in router.frames if each[0] < 0x80]


def held(router: Router) -> int:
    assert router.pair.receiving is not None
    return len(router.pair.receiving.held)


@pytest.mark.spec("REPL-10")
def test_a_commit_is_small_when_the_messages_are_already_copied() -> None:
    one, other = linked()
    begin(one, *[CONTENT] * 10)
    assert kinds(one) == [KIND_TOGETHER]
    exchange(one, other)
    assert (held(other), other.router.tables.message_count) == (1, 0)
    one.tell(RequestReceived(LINK, Commit(4, 1, 1)))
    assert kinds(one) == [KIND_SPLICED, KIND_TOGETHER]
    assert sum(map(len, one.frames)) < 2_000
    exchange(one, other)
    assert one.answers[4] == Ended(0, "committed", OUTCOME_SYNC)
    assert (held(other), other.router.tables.message_count) == (0, 10)
    switch(one, other)
    other.clients(LINK)
    assert other.payloads == [CONTENT] * 10
    assert other.restart().router.tables.message_count == 10


@pytest.mark.spec("REPL-10")
def test_messages_are_copied_at_the_commit_if_configured() -> None:
    one, other = linked(transactions="at_commit")
    begin(one, CONTENT)
    assert kinds(one) == []
    one.tell(RequestReceived(LINK, Commit(4, 1, 1)))
    assert kinds(one) == [KIND_RECORDS]
    exchange(one, other)
    assert (one.answers[4], other.router.tables.message_count) == (Ended(0, "committed", OUTCOME_SYNC), 1)


@pytest.mark.spec("REPL-10")
@pytest.mark.parametrize("event", [RequestReceived(LINK, Rollback(4, 1, 1)), LinkClosed(LINK)])
def test_rolled_back_messages_are_dropped_by_the_other_router(event: Rollback | LinkClosed) -> None:
    one, other = linked()
    begin(one, CONTENT)
    exchange(one, other)
    one.tell(event)
    exchange(one, other)
    assert (held(other), other.router.tables.message_count) == (0, 0)


@pytest.mark.spec("REPL-10")
def test_an_open_transaction_of_a_replaced_router_is_rolled_back_at_the_other() -> None:
    one, other = linked()
    begin(one, CONTENT)
    exchange(one, other)
    disconnect(one, other)
    other.tell(SwitchHere(is_forced=True))
    other.clients(LINK)
    assert other.payloads == []
    other.tell(RequestReceived(LINK, Commit(5, 1, 1)))
    connect(one, other)
    assert other.answers[5] == Ended(0, "rolled_back")
    assert (one.router.tables.message_count, other.router.tables.message_count) == (0, 0)


@pytest.mark.spec("REPL-10")
def test_messages_from_before_a_new_link_are_sent_with_the_commit() -> None:
    one, other = linked()
    begin(one, CONTENT)
    disconnect(one, other)
    connect(one, other)
    one.tell(Data(LINK, encode_publish(1, 2, [Published(b"a.x", CONTENT)], transaction=1)))
    one.tell(RequestReceived(LINK, Commit(4, 1, 1)))
    exchange(one, other)
    assert (held(other), other.router.tables.message_count) == (0, 2)


@pytest.mark.spec("REPL-10", "REPL-11")
def test_unreplicated_messages_are_not_sent_and_messages_beyond_the_buffer_are_sent_with_the_commit() -> None:
    one, other = linked(window_bytes=65_536)
    begin(one, *[CONTENT] * 10)
    assert kinds(one) == []
    one.tell(Data(LINK, encode_publish(1, 11, [Published(b"nobodys", CONTENT)], transaction=1)))
    assert kinds(one) == []
    one.tell(Data(LINK, encode_publish(1, 12, [Published(b"a.x", CONTENT)], transaction=1)))
    assert kinds(one) == [KIND_TOGETHER]
    one.tell(RequestReceived(LINK, Commit(4, 1, 1)))
    exchange(one, other)
    assert (held(other), other.router.tables.message_count) == (0, 11)


def test_inconsistent_frames_are_refused() -> None:
    held = HeldTransactions()
    held.together(struct.pack("<BBHI", KIND_TOGETHER, 0, 0, 1) + b"0123456789")

    def spliced(*pieces: tuple[int, int, int, int], said: bytes = b"", count: int = -1) -> bytes:
        head = struct.pack("<BBHI", KIND_SPLICED, 0, 0, len(pieces) if count < 0 else count)
        return held.joined(head + b"".join(struct.pack("<IIII", *each) for each in pieces) + said)

    assert spliced((1, 1, 2, 3), (2, 0, 0, 0), said=b"abc") == b"a234bc"
    for pieces in ([(4, 1, 0, 1)], [(3, 1, 8, 3)], [(3, 2, 0, 1)], [(2, 1, 0, 1)], [(3, 1, 2**32 - 1, 2)]):
        with pytest.raises(RemoteProtocolError):
            spliced(*pieces, said=b"abc")
    with pytest.raises(RemoteProtocolError):
        spliced((1, 1, 2, 3), said=b"a", count=2**32 - 1)
    held.together(struct.pack("<BBHI", KIND_TOGETHER, 0, 0, 3) + bytes(65_536))
    with pytest.raises(RemoteProtocolError):
        spliced(*[(0, 3, 0, 65_536)] * (PEER_FRAME_SIZE_MAX // 65_536 + 1))
    for short in (b"", b"\x0a\x00"):
        with pytest.raises(RemoteProtocolError):
            held.together(short)
        with pytest.raises(RemoteProtocolError):
            held.joined(short)
    large = struct.pack("<BBHI", KIND_TOGETHER, 0, 0, 2) + bytes(2**24)
    for _ in range(3):
        held.together(large)
    with pytest.raises(RemoteProtocolError):
        held.together(large)
