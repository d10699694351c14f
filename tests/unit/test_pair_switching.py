"""Failed switches of a pair, routers that return with fewer messages, and inconsistent frames."""

import numpy
import pytest

from leased_kit import LeasedPair
from paired_kit import QUEUE, Router, connect, exchange
from penstock.assured.core.pair import protocol as pair_protocol
from penstock.assured.core.pair.id_lists import ids_frame
from penstock.assured.core.pair.planned_switch import WANTED_NS, YIELDING_NS
from penstock.assured.core.pair.protocol import (
    PAIR,
    Degrade,
    HandOver,
    PeerClosed,
    PeerFrame,
    PeerOpened,
    SwitchHere,
)
from penstock.assured.core.pair.replication_sender import RELIST_NS
from penstock.assured.core.router.events import Data, DiskRecovered, DiskTroubled, Stored
from penstock.assured.live.observation import copying_of, objection
from penstock.assured.wire._layout import KIND_MISSING, SETTLE_ACKNOWLEDGED
from penstock.assured.wire.frames import encode_publish, encode_settle
from unit.test_pair import messages


def pair_with(count: int) -> tuple[Router, Router]:
    one, other = Router("a", QUEUE), Router("b")
    connect(one, other)
    one.clients(10)
    one.tell(Data(10, encode_publish(1, 1, messages(count))))
    exchange(one, other)
    assert other.router.tables.message_count == count
    return one, other


def said(message: pair_protocol.Message) -> bytes:
    return PAIR.encode(message, 2**20)


def test_repl_7_a_router_that_has_lost_its_disk_does_not_start_a_pair() -> None:
    """It is the first of the pair, and its log is empty: all messages would be dropped."""
    _, other = pair_with(5)
    other.tell(PeerClosed(1))
    new = Router("a", QUEUE)
    connect(new, other, link=2)
    assert not new.pair.is_active
    assert not other.pair.is_active
    assert other.router.tables.message_count == 5
    assert "behind" in new.notes
    assert "switch there" in objection(new.pair, is_forced=True, may_lose=True)[0]
    assert objection(other.pair, is_forced=True, may_lose=False)[0] == ""
    other.tell(SwitchHere(is_forced=True))
    exchange(new, other)
    assert other.pair.is_active
    assert new.router.tables.message_count == 5
    assert new.pair.receiving is not None
    assert new.pair.receiving.is_whole


def test_repl_7_an_empty_router_becomes_active_alone_only_if_forced() -> None:
    """The messages of the unreachable router would be given up."""
    new = Router("a", QUEUE)
    why, hint = objection(new.pair, is_forced=True, may_lose=False)
    assert "never had any messages" in why
    assert "--lose" in hint
    assert objection(new.pair, is_forced=True, may_lose=True)[0] == ""
    _, other = pair_with(1)
    other.tell(PeerClosed(1))
    assert objection(other.pair, is_forced=True, may_lose=False)[0] == ""
    assert "does not answer" in objection(other.pair, is_forced=False, may_lose=False)[0]


def test_repl_7_a_router_that_stops_hands_over() -> None:
    one, other = pair_with(3)
    one.tell(HandOver())
    exchange(one, other)
    assert not one.pair.is_active
    assert not one.pair.planned_switch.is_under_way
    assert other.pair.is_active
    assert other.router.tables.message_count == 3
    one.tell(HandOver())
    assert not one.pair.planned_switch.is_under_way, "a standby has nothing to hand over"


def test_repl_8_a_router_with_a_full_disk_reports_it_to_the_other_one() -> None:
    one, other = pair_with(1)
    for event, is_storing, noted in (
        (DiskTroubled("full"), False, "other_disk_troubled"),
        (DiskRecovered(), True, "other_disk_recovered"),
    ):
        one.notes.clear()
        other.tell(event)
        exchange(one, other)
        assert one.pair.link.peer is not None
        assert one.pair.link.peer.is_storing == is_storing
        assert one.notes == [noted]
        assert (objection(other.pair, is_forced=False, may_lose=False)[0] == "") == is_storing


def test_repl_7_a_planned_switch_that_the_other_router_is_not_ready_for_is_cancelled() -> None:
    one, other = pair_with(1)
    other.is_storing = False
    one.tell(Data(10, encode_publish(1, 2, messages(1))))
    exchange(one, other)
    one.wait(1_500_000_000)
    assert one.pair.degradation.mode == "degraded"
    other.tell(SwitchHere())
    exchange(one, other)
    assert one.pair.is_active, "the other router does not have everything"
    one.wait(WANTED_NS)
    assert "switch_called_off" in one.notes
    other.is_storing = True
    other.tell(Stored(other.router.tables.log.next_sequence - 1))
    exchange(one, other)
    assert one.pair.is_active, "and the order does not take effect later"


@pytest.mark.parametrize("how", ["time", "link", "force"])
def test_repl_7_a_router_whose_yield_fails_continues(how: str) -> None:
    one, other = pair_with(1)
    one.tell(Data(10, encode_publish(1, 2, messages(1))))
    one.frames.clear()  # never stored
    other.tell(SwitchHere())
    for frame in other.frames:
        one.tell(PeerFrame(1, frame))
    other.frames.clear()
    assert not one.pair.is_active, "it yields"
    assert not other.pair.is_active
    if how == "time":
        one.wait(YIELDING_NS)
    elif how == "link":
        one.tell(PeerClosed(1))
    else:
        one.tell(SwitchHere(is_forced=True))
    assert one.pair.is_active
    connect(one, other, link=2)
    assert other.router.tables.message_count == 2
    assert other.pair.receiving is not None
    assert other.pair.receiving.is_whole


def test_repl_7_a_planned_switch_ends_an_ordered_degradation_first() -> None:
    one, other = pair_with(1)
    one.tell(Degrade(is_ordered=True))
    one.tell(Data(10, encode_publish(1, 2, messages(1))))
    exchange(one, other)
    other.tell(SwitchHere())
    exchange(one, other)
    assert (one.pair.is_active, other.pair.is_active) == (False, True)
    assert other.router.tables.message_count == 2
    assert one.runs, "both were acknowledged"


def test_missing_messages_that_the_other_router_reports_are_among_the_listed_ones() -> None:
    for wanted in ([0], [1, 2, 3]):
        one, _ = pair_with(2)
        one.tell(PeerOpened(2))
        one.tell(PeerFrame(2, said(pair_protocol.Standing("b", "standby", 1))))
        assert one.pair.sending is not None
        ids = numpy.array(wanted, numpy.uint64)
        one.tell(PeerFrame(2, ids_frame(KIND_MISSING, one.pair.sending.stream, ids, is_last=True)[4:]))
        assert one.ended, f"missing {wanted}"
        assert one.pair.is_active


def test_a_router_that_repeats_its_status_does_not_get_everything_again() -> None:
    one, _ = pair_with(2)
    one.frames.clear()
    for _ in range(10):
        one.tell(PeerFrame(1, said(pair_protocol.Standing("b", "standby", 1))))
    assert one.frames == []


def test_repl_14_a_router_with_a_lease_and_one_without_do_not_form_a_pair() -> None:
    one, _ = pair_with(1)
    one.tell(PeerOpened(2))
    one.tell(PeerFrame(2, said(pair_protocol.Standing("b", "standby", 1, is_voting=True))))
    assert one.ended == ["only one of the two routers has a lease"]


def test_a_router_is_complete_only_after_everything_was_listed() -> None:
    one, other = pair_with(2)
    other.tell(PeerOpened(2))
    other.tell(PeerFrame(2, said(pair_protocol.Resync(9, 7, 7, 0))))
    other.tell(PeerFrame(2, said(pair_protocol.Whole(7))))
    assert other.ended == ["the active router reports completion before its list has ended"]
    assert other.pair.epoch == one.pair.epoch


def test_repl_14_force_is_refused_at_once_where_the_other_router_is_active_and_this_one_is_complete() -> None:
    """Otherwise it would wait for the end of a lease that is renewed continuously; without force the switch is
    immediate."""
    leased = LeasedPair()
    one, other = leased.routers
    why, hint = objection(other.pair, is_forced=True, may_lose=False)
    assert "does not end its lease" in why
    assert "without --force" in hint
    assert objection(other.pair, is_forced=False, may_lose=False)[0] == ""
    assert objection(one.pair, is_forced=True, may_lose=False)[0] == ""  # it is active
    leased.kill(one)
    assert objection(other.pair, is_forced=True, may_lose=False)[0] == ""
    leased.run(5_000)
    assert other.pair.is_active


def test_repl_8_settlements_free_the_disk_of_a_full_standby() -> None:
    """The standby accepts no messages, and learns of removed messages: that frees space, and then it gets the rest."""
    one, other = pair_with(5)
    other.tell(DiskTroubled("full", is_relieved=True))
    exchange(one, other)
    one.tell(Data(10, encode_publish(1, 6, messages(1))))
    exchange(one, other)
    assert any("standby's disk is full" in each for each in other.ended)
    one.tell(PeerClosed(1))
    one.wait(1_500_000_000)
    assert one.pair.degradation.mode == "degraded"
    assert one.outcomes[6] == 4
    connect(one, other, 20, link=2)
    assert other.router.tables.message_count == 5
    one.tell(Data(10, encode_settle(1, [(one.ids[0], one.ids[-1], SETTLE_ACKNOWLEDGED)])))
    one.tell(Data(10, encode_publish(1, 7, messages(1))))
    one.wait(RELIST_NS)
    exchange(one, other, 20)
    assert other.router.tables.message_count == 0
    assert copying_of(one.pair) == copying_of(other.pair) == "degraded"
    other.tell(DiskRecovered())
    one.wait(RELIST_NS)
    exchange(one, other)
    assert other.router.tables.message_count == 1
    assert copying_of(one.pair) == copying_of(other.pair) == "in step"


def test_repl_8_a_router_linked_while_its_disk_fails_completely_catches_up_later() -> None:
    one, other = pair_with(5)
    one.tell(PeerClosed(1))
    other.tell(PeerClosed(1))
    other.tell(DiskTroubled("full"))
    one.tell(Data(10, encode_publish(1, 6, messages(1))))
    size = other.router.tables.log.pending_size
    connect(one, other, 60, link=2)
    assert other.router.tables.log.pending_size == size, "no queue grows while lists repeat"
    other.tell(DiskRecovered())
    one.frames.clear()
    one.wait(RELIST_NS)
    exchange(one, other)
    assert other.router.tables.message_count == 6
    assert copying_of(one.pair) == copying_of(other.pair) == "in step"
