"""The gateway's cores: the queue of a browser, request decoding, and messages as pages see them."""

import json
import struct

import msgspec
import pytest

from penstock.base.errors import LimitError, ModelError, RequestError
from penstock.capture.core.message_reader import UnreadMessage
from penstock.model import Message, shipped
from penstock.tree.core.infostream import Neighbour, Path, Siblings
from penstock.web.gateway.core import fields
from penstock.web.gateway.core.outbox import BATCH_MAX, REPLIES_MAX, Outbox
from penstock.web.gateway.core.replies import Pong, Receipt
from penstock.web.gateway.core.requests import Budget, Malformed, Subscribe, parse
from penstock.web.gateway.live.tree import info_document

QUOTE = shipped("quote")
SECOND = 1_000_000_000


def quote(topic: str = "md.A.quote", seq: int = 1, **values: object) -> Message:
    message = QUOTE.new(**values)
    message.topic, message.seq = topic, seq
    return message


def arrived(topic: str = "md.A.quote", seq: int = 1, number: int = 1) -> fields.Arrived:
    return fields.Arrived(number, "md", 5, quote(topic, seq))


def seqs(taken: object) -> list[int]:
    assert isinstance(taken, list)
    return [each.message.seq for each in taken]


# The queue


def test_the_newest_message_of_each_topic_waits_and_the_others_are_counted() -> None:
    outbox = Outbox(100)
    for seq in (1, 2, 3):
        outbox.put(arrived("md.A.quote", seq), "conflating")
        outbox.put(arrived("md.B.quote", seq + 10), "conflating")
    assert len(outbox) == 2
    assert outbox.take() == Receipt(id=1, receipt="conflated", count=4)
    assert seqs(outbox.take()) == [3, 13]
    assert outbox.take() is None


def test_two_subscriptions_do_not_conflate_each_other() -> None:
    outbox = Outbox(100)
    outbox.put(arrived(seq=1, number=1), "conflating")
    outbox.put(arrived(seq=1, number=2), "conflating")
    assert seqs(outbox.take()) == [1, 1]


def test_the_lossless_queue_keeps_everything_until_it_is_full() -> None:
    outbox = Outbox(10)
    for seq in range(10):
        assert not outbox.is_full
        outbox.put(arrived(seq=seq), "lossless")
    assert outbox.is_full
    assert not outbox.has_room
    assert seqs(outbox.take()) == list(range(10))
    assert outbox.has_room


def test_a_client_over_its_limit_is_disconnected() -> None:
    outbox = Outbox(2)
    outbox.put(arrived(seq=1), "disconnect")
    outbox.put(arrived(seq=2), "disconnect")
    with pytest.raises(LimitError):
        outbox.put(arrived(seq=3), "disconnect")


def test_an_answer_keeps_its_position_among_messages_and_frames_are_bounded() -> None:
    outbox = Outbox(10_000)
    for seq in range(BATCH_MAX + 1):
        outbox.put(arrived(seq=seq), "lossless")
    outbox.reply(Pong(id=1))
    outbox.put(arrived(seq=999), "lossless")
    assert seqs(outbox.take()) == list(range(BATCH_MAX))
    assert seqs(outbox.take()) == [BATCH_MAX]
    assert outbox.take() == Pong(id=1)
    assert seqs(outbox.take()) == [999]


def test_answers_are_bounded_too() -> None:
    outbox = Outbox(10)
    for _ in range(REPLIES_MAX):
        outbox.reply(Pong(id=1))
    with pytest.raises(LimitError):
        outbox.reply(Pong(id=1))
    outbox.take()
    outbox.reply(Pong(id=1))


def test_outdated_messages_are_not_sent() -> None:
    outbox = Outbox(10)
    for number in (1, 2, 1):
        outbox.put(arrived(seq=number, number=number), "conflating")
    outbox.forget(1)
    assert seqs(outbox.take()) == [2]
    assert outbox.take() is None


# Requests


def test_requests_are_rate_limited() -> None:
    budget = Budget(10, 0)
    assert [budget.take(0) for _ in range(21)] == [True] * 20 + [False]
    assert not budget.take(SECOND // 20)
    assert budget.take(SECOND // 5)
    assert [budget.take(100 * SECOND) for _ in range(21)] == [True] * 20 + [False]


def test_an_answerable_request_is_distinguished_from_an_unanswerable_one() -> None:
    with pytest.raises(Malformed) as malformed:
        parse('{"op": "subscribe", "id": 7, "topics": 5}')
    assert (malformed.value.op, malformed.value.number) == ("subscribe", 7)
    with pytest.raises(Malformed) as malformed:
        parse('{"op": ["x"], "id": true}')
    assert (malformed.value.op, malformed.value.number) == ("", 0)
    with pytest.raises(RequestError) as hopeless:
        parse("[1]")
    assert not isinstance(hopeless.value, Malformed)


@pytest.mark.parametrize("since", ["0001-01-01T00:00:00Z", "2026-13-01", "now", ""])
def test_invalid_times_are_refused(since: str) -> None:
    request = parse(json.dumps({"op": "subscribe", "id": 1, "topics": ["x"], "since": since}))
    assert isinstance(request, Subscribe)
    with pytest.raises(RequestError):
        request.begin()


# Fields in a page


def test_numbers_that_a_browser_would_round_are_sent_as_text() -> None:
    message = quote(symbol="AAPL", bid_price="189.31", bid_size=100, event_time=1_794_779_400_100_200_300)
    shown = json.loads(msgspec.json.encode(fields.document(fields.Arrived(1, "md", 5_000_000, message))))
    assert shown["fields"]["bid_price"] == 189.31
    assert shown["fields"]["event_time"] == "1794779400100200300"
    assert shown["fields"]["bid_size"] == 100
    assert "ask_price" not in shown["fields"]
    assert (shown["time_ms"], shown["stream"]) == (5.0, "md")


def test_a_message_is_rebuilt_from_its_fields_without_losing_a_digit() -> None:
    made = fields.record(QUOTE, "quote", {"symbol": "X", "bid_price": 0.1, "event_time": "1794779400100200300"})
    assert made.event_time == 1_794_779_400_100_200_300
    assert made.scaled("bid_price") == 10_000_000


@pytest.mark.parametrize("value", ["--5", "5x", "", "9" * 30, "٣", [], {}])
def test_invalid_integers_are_refused(value: object) -> None:
    with pytest.raises(ModelError):
        fields.record(QUOTE, "quote", {"bid_size": value})


def test_binary_frames_match_the_documented_bytes() -> None:
    message = quote("md.A.quote", 9, symbol="A")
    unread = UnreadMessage.__new__(UnreadMessage)
    unread.topic, unread.seq, unread.model_id, unread.model_version, unread.payload = "x", 1, 700, 3, b"abc"
    frame = fields.binary([fields.Arrived(7, "md", 5, message), fields.Arrived(8, "", 6, unread)])
    assert frame[:4] == bytes([1, 0, 0, 0])
    head = struct.Struct("<IQQHHHHI")
    assert head.unpack_from(frame, 4) == (7, 9, 5, QUOTE.id, QUOTE.version, 2, 10, len(bytes(message)))
    at = 4 + head.size
    assert frame[at : at + 12] == b"mdmd.A.quote"
    at += 12 + len(bytes(message))
    assert head.unpack_from(frame, at) == (8, 1, 6, 700, 3, 0, 1, 3)
    assert frame[at + head.size :] == b"xabc"


def test_messages_of_agents_are_sentences() -> None:
    siblings = Siblings((Neighbour("mid-1", "127.0.0.1:7422", 5),))
    assert info_document("root", siblings, 1).detail == "has below it mid-1 at 127.0.0.1:7422, with a load of 5%"
    path = Path("mid-1", ("root", "mid-1"), True, 1)
    assert info_document("mid-1", path, 1).detail == "reaches the root by root → mid-1 (term 1)"
