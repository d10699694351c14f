"""REPL-4: the endpoints of a message are matched by the standby, or sent along by the active router."""

from typing import Any

import pytest

from paired_kit import PUBLISHER, Router, connect, exchange
from penstock.assured.config import EndpointConfig, Want
from penstock.assured.core.pair._matching import Unmatched
from penstock.assured.core.pair._receiving import held_ids
from penstock.assured.core.pair.protocol import PeerFrame
from penstock.assured.core.router.events import Data, LinkOpened, RequestReceived
from penstock.assured.wire._layout import KIND_RECORDS
from penstock.assured.wire.control import Begin, Commit, CreateEndpoint, OpenFlow, OpenPublisher
from penstock.assured.wire.frames import Published, encode_publish, encode_settle
from penstock.base.errors import RemoteProtocolError
from penstock.model import shipped

QUOTE = shipped("quote")
MODELS = {QUOTE.id: QUOTE}
LARGE_COUNT = 200
"""Messages of a kilobyte that fill the window, so that later messages wait."""


def queue(name: str, *topics: str, where: str = "", **values: Any) -> EndpointConfig:
    wants = (Want(topics=topics, where=where),) if topics else ()
    return EndpointConfig(name=name, wants=wants, **{"replication": "synchronous", **values})


def pair_of(*endpoints: EndpointConfig, others: tuple[EndpointConfig, ...] = (), **pair: Any) -> tuple[Router, Router]:
    """The second router has the mirrored endpoints of the first, and endpoints of its own."""
    one, other = Router("a", *endpoints, models=MODELS, pair=pair), Router("b", *others, models=MODELS, pair=pair)
    connect(one, other)
    one.tell(LinkOpened(10, "client", is_operator=True))
    one.tell(RequestReceived(10, OpenPublisher(1, PUBLISHER)))
    exchange(one, other)
    return one, other


def publish(router: Router, first: int, *messages: Published, transaction: int = 0) -> None:
    router.tell(Data(10, encode_publish(1, first, messages, transaction=transaction)))


def text(topic: str = "a.x", size: int = 1) -> Published:
    return Published(topic.encode(), bytes(size))


def unmatched(router: Router) -> int:
    """Messages under way without a list of endpoints."""
    return sum(len(Unmatched(frame)) for frame in router.frames if frame[0] == KIND_RECORDS)


def queued(router: Router) -> dict[str, list[int]]:
    """By endpoint: numbers of the messages that have copies, or wait for copies."""
    names = {each.number: each.name for each in router.router.endpoints}
    held = held_ids(router.router.tables)
    return {names[number]: [int(each) - (1 << 40) for each in ids] for number, ids in held.items()}


def test_the_standby_matches_the_same_endpoints_by_topic_and_content() -> None:
    one, other = pair_of(
        queue("all", "a.>"),
        queue("some", "a.y", "a.x"),
        queue("large", "a.quote", where="bid_price > 100", replication="asynchronous"),
        queue("here", "a.>", replication="none"),
    )
    quotes = [
        Published(b"a.quote", bytes(QUOTE.new(bid_price=bid)), model_id=QUOTE.id, model_version=QUOTE.version)
        for bid in (50, 150)
    ]
    publish(one, 1, text("a.x"), text("a.z"), *quotes)
    assert unmatched(one) == 4
    exchange(one, other)
    # Where endpoints decide, those that are not replicated get no copies.
    assert queued(other) == {"all": [1, 2, 3, 4], "some": [1], "large": [4]}
    assert other.sent == [], "a standby delivers nothing"


@pytest.mark.parametrize("who", ["active", "standby"])
def test_the_endpoints_are_sent_along_if_either_router_is_configured_so(who: str) -> None:
    one = Router("a", queue("q", "a.>"), pair={"matching": "primary" if who == "active" else "secondary"})
    other = Router("b", pair={"matching": "primary" if who == "standby" else "secondary"})
    connect(one, other)
    one.clients(10)
    publish(one, 1, text())
    assert unmatched(one) == 0
    exchange(one, other)
    assert queued(other) == {"q": [1]}


def test_an_endpoint_defined_in_between_gets_the_later_messages() -> None:
    """Waiting messages were matched before the definition."""
    one, other = pair_of(queue("q", "a.>"), window_bytes=65_536)
    publish(one, 1, *[text(size=1_000) for _ in range(LARGE_COUNT)])
    one.tell(RequestReceived(10, CreateEndpoint(3, queue("late", "a.>"))))
    publish(one, LARGE_COUNT + 1, text())
    exchange(one, other)
    assert queued(other) == queued(one) == {"q": list(range(1, LARGE_COUNT + 2)), "late": [LARGE_COUNT + 1]}


def test_messages_settled_before_they_were_sent_are_not_queued_to_the_endpoint() -> None:
    """REPL-9: the message is sent with the remaining endpoints."""
    one, other = pair_of(queue("q", "a.>"), queue("r", "a.>"), window_bytes=65_536)
    one.tell(RequestReceived(10, OpenFlow(2, "q", 1_000)))
    publish(one, 1, *[text(size=1_000) for _ in range(LARGE_COUNT)])
    publish(one, LARGE_COUNT + 1, text(), text())
    last = one.router.tables.next_id - 1
    one.tell(Data(10, encode_settle(1, [(last, last, 1)])))
    exchange(one, other)
    assert queued(other) == queued(one)
    assert LARGE_COUNT + 2 not in queued(other)["q"]


def test_dead_letters_go_to_the_dead_letter_endpoint_of_the_other_router() -> None:
    one, other = pair_of(
        queue("given_up", "a.dead", dead_to=""),
        queue("q", "a.>", messages_max=1, when_full="dead", dead_to="given_up"),
    )
    publish(one, 1, text(), text(), text("a.dead"))
    assert unmatched(one) == 1, "the others went to endpoints that did not match"
    exchange(one, other)
    assert queued(other) == queued(one) == {"q": [1], "given_up": [2, 3]}


def test_an_endpoint_that_is_full_on_the_other_router_accepts_what_the_active_one_accepted() -> None:
    one, other = pair_of(queue("q", "a.>"), others=(queue("q", "a.>", messages_max=1),), mirror="none")
    publish(one, 1, text(), text())
    assert unmatched(one) == 2
    exchange(one, other)
    assert queued(other) == {"q": [1, 2]}


def test_endpoints_that_only_the_other_router_has_get_no_copies() -> None:
    """No consumer would ever settle the copies."""
    one, other = pair_of(queue("q", "a.>"), others=(queue("q", "a.>"), queue("own", "a.>")), mirror="none")
    publish(one, 1, text())
    assert unmatched(one) == 1
    exchange(one, other)
    assert queued(other) == {"q": [1]}


def test_a_transaction_is_matched_like_its_messages() -> None:
    one, other = pair_of(queue("all", "a.>"), queue("some", "a.y"))
    one.tell(RequestReceived(10, Begin(5, 1, 1)))
    publish(one, 1, text("a.x"), text("a.y"), transaction=1)
    one.tell(RequestReceived(10, Commit(6, 1, 1)))
    publish(one, 3, text("a.y"))
    assert unmatched(one) == 3
    exchange(one, other)
    assert queued(other) == {"all": [1, 2, 3], "some": [2, 3]}


def test_a_router_with_a_different_match_reports_it_and_gets_the_endpoints_from_then_on() -> None:
    """Endpoints that were defined by hand and differ: no message is acknowledged that would be lost."""
    one, other = pair_of(queue("q", "a.>"), others=(queue("q", "b.>"),), mirror="none")
    publish(one, 1, text())
    exchange(one, other)
    assert "compare endpoints" in other.ended[0]
    assert (queued(other), one.sent) == ({}, [])
    connect(one, other, link=2)
    assert queued(other) == {"q": [1]}
    publish(one, 2, text())
    assert unmatched(one) == 0
    exchange(one, other)
    assert queued(other) == {"q": [1, 2]}


def test_the_digest_matches_the_protocol_document() -> None:
    one, _ = pair_of(queue("q", "a.>"), queue("r", "a.>"))
    publish(one, 1, text())
    numbers = [each.number for each in one.router.endpoints if each.name != "dead"]
    mixed = [(number + 1) * 0x9E3779B97F4A7C15 % 2**64 for number in numbers]
    marks = [(each ^ each >> 29) * 0xBF58476D1CE4E5B9 % 2**64 >> 32 for each in mixed]
    (frame,) = one.frames
    record = frame[16:]
    assert (record[1], record[14:16]) == (64, b"\0\0")
    assert int.from_bytes(record[60:64], "little") == sum(marks) % 2**32


def test_inconsistent_records_end_the_link() -> None:
    one, other = pair_of(queue("q", "a.>"))
    publish(one, 1, text())
    (frame,) = one.frames
    with pytest.raises(RemoteProtocolError):
        Unmatched(frame[:-8])
    with pytest.raises(RemoteProtocolError):
        Unmatched(frame[:8])
    sent_along = bytearray(frame)
    sent_along[16 + 14] = 1  # the record claims one endpoint
    other.tell(PeerFrame(1, bytes(sent_along)))
    assert other.ended
    assert queued(other) == {}
