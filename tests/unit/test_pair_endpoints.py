"""Endpoints of a pair that are deleted or altered (REPL-5, REPL-6): the copies of their messages."""

import pytest
from msgspec.structs import replace

from paired_kit import QUEUE, Router, connect, disconnect, exchange, switch
from penstock.assured.config import EndpointConfig, Want
from penstock.assured.core.pair.protocol import PeerFrame, SwitchHere
from penstock.assured.core.router.endpoints import NUMBER_MAX
from penstock.assured.core.router.events import Data, RequestReceived
from penstock.assured.wire.control import AlterEndpoint, CreateEndpoint, DeleteEndpoint, Done, OpenFlow
from penstock.assured.wire.frames import Published, encode_publish, encode_settle
from penstock.base.core import Tick

WINDOW = 65_536
DEAD = EndpointConfig(name="dead", dead_to="", replication="synchronous")
OTHER = EndpointConfig(name="e", wants=(Want(topics=("a.>",)),), replication="none")


def held(router: Router) -> dict[str, int]:
    numbers = router.router.tables.endpoint_numbers
    return {each.name: numbers(each.number)["messages"] for each in router.router.endpoints}


def two_routers(*endpoints: EndpointConfig) -> tuple[Router, Router]:
    one, other = Router("a", *endpoints, pair={"window_bytes": WINDOW}), Router("b", DEAD)
    connect(one, other)
    one.clients(10)
    one.publish(1, 3)
    exchange(one, other)
    assert one.outcomes == {1: 3, 2: 3, 3: 3}
    assert held(other)["q"] == 3
    return one, other


def rejected_behind_a_full_window(one: Router) -> None:
    """Rejected messages wait in order: the other router has not stored the earlier ones."""
    first = one.router.tables.next_id - 3
    one.tell(Data(10, encode_publish(1, 4, [Published(b"a.x", bytes(WINDOW))])))
    one.tell(Data(10, encode_settle(1, [(first, first + 2, 3)])))
    assert one.pair.sending is not None
    assert one.pair.sending.backlog == 3


def test_dead_letters_of_a_deleted_endpoint_are_on_both_routers() -> None:
    one, other = two_routers(DEAD, replace(QUEUE, deliveries_max=1))
    one.tell(RequestReceived(10, DeleteEndpoint(9, "q", True)))
    exchange(one, other)
    switch(one, other)
    assert held(one) == held(other) == {"dead": 3}


def test_a_deletion_does_not_overtake_waiting_messages() -> None:
    one, other = two_routers(DEAD, QUEUE)
    rejected_behind_a_full_window(one)
    one.tell(RequestReceived(10, DeleteEndpoint(9, "q", True)))
    one.tell(RequestReceived(10, CreateEndpoint(8, OTHER)))
    one.publish(5)
    exchange(one, other)
    assert held(other) == {"dead": 3, "e": 0}
    switch(one, other)
    assert held(one) == {"dead": 3, "e": 1}
    assert held(other) == {"dead": 3, "e": 0}


def test_messages_published_while_a_deletion_waits_are_matched_by_the_active_router() -> None:
    one, other = two_routers(DEAD, QUEUE, replace(OTHER, replication="synchronous"))
    rejected_behind_a_full_window(one)
    one.tell(RequestReceived(10, DeleteEndpoint(9, "q", True)))
    one.publish(5)
    exchange(one, other)
    one.publish(6)
    exchange(one, other)
    assert one.pair.sending is not None  # no link was closed
    assert held(one) == held(other) == {"dead": 3, "e": 6}


def test_an_endpoint_defined_again_while_its_deletion_waits_has_only_new_messages() -> None:
    one, other = two_routers(DEAD, QUEUE)
    rejected_behind_a_full_window(one)
    one.tell(RequestReceived(10, DeleteEndpoint(9, "q", True)))
    one.tell(RequestReceived(10, CreateEndpoint(8, QUEUE)))
    one.publish(5)
    exchange(one, other)
    assert held(one) == held(other) == {"dead": 3, "q": 1}
    assert one.outcomes[5] == 3
    switch(one, other)
    assert held(one) == held(other) == {"dead": 3, "q": 1}


def test_messages_of_an_endpoint_that_becomes_replicated_are_copied() -> None:
    one, other = two_routers(DEAD, QUEUE, OTHER)
    assert (held(one)["e"], held(other)["e"]) == (3, 0)
    one.tell(RequestReceived(10, AlterEndpoint(9, replace(OTHER, replication="synchronous"))))
    exchange(one, other)
    assert held(other)["e"] == 3
    switch(one, other)
    assert held(one) == held(other) == {"dead": 0, "q": 3, "e": 3}


@pytest.mark.parametrize("is_linked", [True, False])
def test_repl_5_an_endpoint_that_is_no_longer_replicated_has_no_copies(is_linked: bool) -> None:
    """Otherwise the copies would be delivered again after a switch, although they were settled."""
    one, other = two_routers(DEAD, QUEUE)
    first = one.router.tables.next_id - 3
    if not is_linked:
        disconnect(one, other)
    one.tell(RequestReceived(10, AlterEndpoint(9, replace(QUEUE, replication="none"))))
    if not is_linked:
        connect(one, other)
    exchange(one, other)
    assert held(one) == {"dead": 0, "q": 3}
    assert held(other) == {"dead": 0, "q": 0}
    one.tell(Data(10, encode_settle(1, [(first, first, 1)])))
    exchange(one, other)
    switch(one, other)
    assert held(other) == {"dead": 0, "q": 0}
    assert held(other.restart()) == {"dead": 0, "q": 0}
    switch(other, one)
    assert held(one) == {"dead": 0, "q": 2}


def test_repl_6_endpoints_are_mirrored_whatever_the_number_of_former_ones() -> None:
    one, other = two_routers(DEAD, QUEUE)
    one.router.endpoints._number_highest = 70_000
    one.tell(RequestReceived(10, CreateEndpoint(9, replace(QUEUE, name="late"))))
    assert one.router.endpoints.number_highest == 70_001
    one.publish(4, 2)
    exchange(one, other)
    assert held(other) == {"dead": 0, "q": 5, "late": 2}
    disconnect(one, other)
    connect(one, other)
    switch(one, other)
    assert held(one) == held(other) == {"dead": 0, "q": 5, "late": 2}


def test_when_all_endpoint_numbers_are_used_no_more_endpoints_are_created() -> None:
    one, other = two_routers(DEAD, QUEUE)
    one.router.endpoints._number_highest = NUMBER_MAX
    one.tell(RequestReceived(10, CreateEndpoint(9, replace(QUEUE, name="late"))))
    assert one.answers[9].code == "limit"
    one.tell(RequestReceived(10, AlterEndpoint(8, replace(QUEUE, deliveries_max=3))))
    assert one.answers[8] == Done(0)
    exchange(one, other)
    assert held(other) == {"dead": 0, "q": 3}


LATE = EndpointConfig(name="late", wants=(Want(topics=("a.>",)),), replication="synchronous")


def test_repl_13_an_endpoint_filled_at_one_router_is_not_filled_again_at_the_other() -> None:
    one, other = two_routers(DEAD, QUEUE)
    first = one.router.tables.next_id - 3
    one.tell(RequestReceived(10, CreateEndpoint(8, LATE, 1)))
    one.tell(RequestReceived(10, OpenFlow(7, "late", 100)))
    exchange(one, other)
    assert held(other)["late"] == 3
    assert not other.router.log.is_held
    flow = one.answers[7].handle
    one.tell(Data(10, encode_settle(flow, [(first, first + 2, 1)])))
    exchange(one, other)
    switch(one, other)
    other.tell(Tick())
    assert held(one)["late"] == held(other)["late"] == 0


def test_repl_13_the_position_of_a_fill_does_not_overtake_its_messages() -> None:
    """The active router is lost before the messages were sent: the other router fills the endpoint."""
    one, other = two_routers(DEAD, QUEUE)
    rejected_behind_a_full_window(one)
    one.tell(RequestReceived(10, CreateEndpoint(8, LATE, 1)))
    one.tell(Tick())
    assert held(one)["late"] == 4
    sent, one.frames = one.frames, []
    for frame in sent:
        other.tell(PeerFrame(1, frame))
    assert held(other)["late"] < 4
    assert other.router.log.is_held
    disconnect(one, other)
    other.tell(SwitchHere(is_forced=True))
    other.tell(Tick())
    assert held(other)["late"] == 4


def test_repl_13_an_endpoint_can_be_altered_while_it_is_filled() -> None:
    one, other = two_routers(DEAD, QUEUE)
    rejected_behind_a_full_window(one)
    one.tell(RequestReceived(10, CreateEndpoint(8, LATE, 1)))
    one.tell(Tick())
    one.tell(RequestReceived(10, AlterEndpoint(9, replace(LATE, deliveries_max=7))))
    exchange(one, other)
    there = other.router.endpoints.get("late")
    assert there is not None
    assert (there.config.deliveries_max, there.definition.replay) == (7, None)
    assert held(one) == held(other)
