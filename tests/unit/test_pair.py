"""A pair of routers by hand: copies, acknowledgements, settlements and a switch (REPL-3, REPL-5, REPL-7)."""

from paired_kit import Router, exchange, pair_of_routers
from penstock.assured.core.pair.protocol import (
    PAIR,
    Degrade,
    PeerClosed,
    PeerFrame,
    PeerOpened,
    Standing,
    Switch,
    SwitchHere,
)
from penstock.assured.core.router.events import Data, LinkOpened, RequestReceived
from penstock.assured.core.router.log import Since
from penstock.assured.live.observation import copying_of
from penstock.assured.wire._layout import DELIVERY_REDELIVERED, MESSAGE_RESENT, OUTCOME_DEGRADED, OUTCOME_SYNC
from penstock.assured.wire.control import DeleteEndpoint
from penstock.assured.wire.frames import (
    Deliver,
    Published,
    encode_publish,
    encode_settle,
)


def delivered(router: Router) -> list[tuple[int, bool]]:
    frames = [each for each in router.sent if isinstance(each, Deliver)]
    return [(m.number, bool(m.flags & DELIVERY_REDELIVERED)) for frame in frames for m in frame.messages]


def messages(count: int, flags: int = 0) -> list[Published]:
    return [Published(b"a.x", b"payload", flags=flags) for _ in range(count)]


def test_a_synchronous_message_is_acknowledged_when_the_other_router_has_stored_it() -> None:
    one, other = pair_of_routers()
    one.tell(Data(10, encode_publish(1, 1, messages(3))))
    assert delivered(one) == [(1, False), (2, False), (3, False)], "delivery happens in parallel"
    assert one.runs == []
    exchange(one, other)
    assert one.runs == [(1, 3, OUTCOME_SYNC)]
    assert other.router.tables.message_count == 3
    assert other.sent == [], "a standby delivers nothing"


def test_repl_6_endpoints_are_defined_on_the_other_router() -> None:
    one, other = pair_of_routers()
    assert (one.pair.is_active, other.pair.is_active) == (True, False)
    assert [each.name for each in other.router.endpoints] == ["dead", "q"]


def test_a_settlement_is_forwarded_and_settled_messages_are_not_sent() -> None:
    one, other = pair_of_routers()
    first = one.router.tables.next_id
    one.tell(Data(10, encode_publish(1, 1, messages(3))))
    exchange(one, other)
    one.tell(Data(10, encode_settle(1, [(first, first + 1, 1)])))
    exchange(one, other)
    assert other.router.tables.message_count == 1


def test_after_a_planned_switch_the_other_router_continues_with_the_rest() -> None:
    one, other = pair_of_routers()
    first = one.router.tables.next_id
    one.tell(Data(10, encode_publish(1, 1, messages(3))))
    exchange(one, other)
    one.tell(Data(10, encode_settle(1, [(first, first, 1)])))
    other.tell(SwitchHere())
    exchange(one, other)
    assert (one.pair.is_active, other.pair.is_active) == (False, True)
    assert other.pair.epoch > one.router.epoch or one.pair.epoch == other.pair.epoch
    one.sent.clear()
    other.clients(11)
    assert delivered(other) == [(2, True), (3, True)], "flagged, in order"
    other.tell(Data(11, encode_publish(1, 3, messages(2, MESSAGE_RESENT))))
    exchange(one, other)
    assert other.runs == [(3, 3, OUTCOME_SYNC), (4, 4, OUTCOME_SYNC)], "a resend is acknowledged when both have it"
    assert delivered(other)[-1] == (4, True), "sent again: another router may have delivered it"
    assert one.sent == []
    assert one.router.tables.message_count == other.router.tables.message_count == 3


def test_repl_5_messages_settled_while_the_old_router_was_away_are_settled_there_too() -> None:
    """The pair began without a message: both knew all later ones."""
    one, other = pair_of_routers()
    first = one.router.tables.next_id
    one.tell(Data(10, encode_publish(1, 1, messages(3))))
    exchange(one, other)
    other.tell(SwitchHere())
    exchange(one, other)
    assert other.router.log.since == Since(2, first + 2), "the old router had reported this much"
    other.clients(11)
    for each in (one, other):
        each.tell(PeerClosed(1))
    other.tell(Data(11, encode_settle(1, [(first, first + 1, 1)])))
    for each in (one, other):
        each.frames.clear()
        each.tell(PeerOpened(2))
    exchange(one, other)
    assert one.router.tables.message_count == other.router.tables.message_count == 1


def test_an_invalid_frame_ends_the_link() -> None:
    one, other = pair_of_routers()
    for data in (b"", b"\x08", b"\x08" + bytes(15) + b"x" * 64, b"\x06abc", b"\x81\xa1"):
        other.tell(PeerFrame(1, data))
        assert other.router.tables.message_count == 0
        other.tell(PeerOpened(1))
        one.tell(PeerOpened(1))
        exchange(one, other)
    assert one.pair.is_active


def test_repl_8_an_operator_orders_degradation_and_withdraws_the_order() -> None:
    one, other = pair_of_routers()
    other.tell(Degrade(is_ordered=True))
    assert not other.pair.degradation.is_ordered, "the order is for the active router"
    one.tell(Degrade(is_ordered=True))
    one.tell(Data(10, encode_publish(1, 1, messages(1))))
    assert one.runs == [(1, 1, OUTCOME_DEGRADED)], "no wait for the other router"
    exchange(one, other)
    assert other.router.tables.message_count == 1, "the other router still gets it"
    assert copying_of(one.pair) == copying_of(other.pair) == "degraded"
    one.tell(Degrade(is_ordered=False))
    one.tell(Data(10, encode_publish(1, 2, messages(1))))
    exchange(one, other)
    assert copying_of(one.pair) == copying_of(other.pair) == "in step"
    assert one.runs[1:] == [(2, 2, OUTCOME_SYNC)]


def test_repl_6_endpoints_deleted_while_the_other_router_was_away_are_deleted_there() -> None:
    one, other = pair_of_routers()
    one.tell(LinkOpened(20, "operator", is_operator=True))
    one.tell(Data(10, encode_publish(1, 1, messages(2))))
    exchange(one, other)
    assert other.router.tables.message_count == 2
    one.tell(PeerClosed(1))
    other.tell(PeerClosed(1))
    one.tell(RequestReceived(20, DeleteEndpoint(1, "q", is_forced=True)))
    one.tell(PeerOpened(2))
    other.tell(PeerOpened(1))
    exchange(one, other)
    assert [each.name for each in other.router.endpoints] == ["dead"]
    assert other.router.tables.message_count == 0
    assert other.pair.receiving is not None
    assert other.pair.receiving.is_whole


def test_repl_7_an_order_that_was_not_executed_is_forgotten_with_the_link() -> None:
    one, other = pair_of_routers()
    one.tell(PeerOpened(2))
    one.tell(PeerFrame(2, PAIR.encode(Standing("b", "standby", 1), 2**20)))
    one.tell(PeerFrame(2, PAIR.encode(Switch(), 2**20)))
    assert one.pair.is_active, "the other router is still comparing"
    one.frames.clear()
    one.tell(PeerOpened(3))
    other.tell(PeerOpened(1))
    exchange(one, other)
    assert one.pair.is_active
    assert other.pair.receiving is not None
    assert other.pair.receiving.is_whole


def test_repl_7_one_order_uses_one_epoch_and_a_lost_yield_leaves_neither_router_waiting() -> None:
    one, other = pair_of_routers()
    other.tell(SwitchHere())
    exchange(one, other)
    assert (one.pair.is_active, other.pair.is_active, other.pair.epoch) == (False, True, 2)
    one.tell(SwitchHere())
    for frame in one.frames:
        other.tell(PeerFrame(1, frame))
    assert not other.pair.is_active, "it yields"
    one.frames.clear()
    other.frames.clear()  # and the message is lost
    for link, each in ((2, one), (2, other)):
        each.tell(PeerClosed(1))
        each.tell(PeerOpened(link))
    exchange(one, other)
    assert (one.pair.is_active, one.pair.epoch) == (True, 3)
    assert other.pair.receiving is not None
    assert other.pair.receiving.is_whole
