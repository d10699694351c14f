"""Dead letters at the routers of a pair: the cause, and the endpoint that gave up the message (REPL-12)."""

from typing import Any

import pytest

from paired_kit import Router, connect, disconnect, exchange, switch
from penstock.assured.config import EndpointConfig, Want
from penstock.assured.core.router._records import WHY_DELIVERIES, WHY_EXPIRED, WHY_OVERFLOWED, WHY_REJECTED
from penstock.assured.core.router.events import Data, LinkOpened, RequestReceived
from penstock.assured.wire._layout import DELIVERY_WHY_SHIFT, SETTLE_REJECTED, SETTLE_RETURNED
from penstock.assured.wire.control import Begin, Commit, OpenFlow, OpenPublisher
from penstock.assured.wire.frames import Deliver, Delivered, Published, encode_publish, encode_settle

LINK = 10
NS_PER_S = 1_000_000_000


def queue(name: str, **options: Any) -> EndpointConfig:
    return EndpointConfig(name=name, wants=(Want(topics=(f"{name}.>", "all.>")),), replication="synchronous", **options)


DEAD, DEAD_TOO = (EndpointConfig(name=name, dead_to="", replication="synchronous") for name in ("dead", "dead-too"))
OVERFLOWING = queue("full", messages_max=1, when_full="dead")
EXPIRING = queue("old", age_ms_max=1_000)
WEARY = queue("often", deliveries_max=1)
PICKY = queue("picky", dead_to="dead-too")


def pair_with(*endpoints: EndpointConfig, **options: Any) -> tuple[Router, Router]:
    one, other = Router("a", *endpoints, **options), Router("b", EndpointConfig(name="own"), **options)
    connect(one, other)
    one.tell(LinkOpened(LINK, "client", is_operator=True))
    one.tell(RequestReceived(LINK, OpenPublisher(1, 777)))
    exchange(one, other)
    return one, other


def delivered(router: Router, endpoint: str, link: int = LINK, request: int = 20) -> tuple[int, list[Delivered]]:
    """The flow, and its deliveries."""
    router.sent.clear()
    router.tell(RequestReceived(link, OpenFlow(request, endpoint, 100)))
    frames = [each for each in router.sent if isinstance(each, Deliver)]
    return router.answers[request].handle, [message for frame in frames for message in frame.messages]


def settle(router: Router, endpoint: str, what: int, transaction: int = 0) -> None:
    flow, messages = delivered(router, endpoint)
    runs = [(each.id, each.id, what) for each in messages]
    router.tell(Data(LINK, encode_settle(flow, runs, transaction=transaction)))


def dead_letters(router: Router, endpoint: str = "dead", link: int = 30) -> dict[str, tuple[int, str]]:
    """By text: the cause, and the endpoint of this router that gave up the message."""
    router.tell(LinkOpened(link, "heir", is_operator=True))
    found = {}
    for each in delivered(router, endpoint, link, 40 + link)[1]:
        giver = router.router.endpoints.by_number(each.given_up_by)
        found[each.payload.decode()] = each.flags >> DELIVERY_WHY_SHIFT, giver.config.name if giver else ""
    return found


@pytest.mark.parametrize("is_linked", [True, False], ids=["streamed", "compared"])
@pytest.mark.parametrize("is_restarted", [False, True], ids=["running", "restarted"])
def test_repl_12_the_other_router_knows_the_cause_and_the_endpoint_of_a_dead_letter(
    is_linked: bool, is_restarted: bool
) -> None:
    """Endpoints have other numbers there."""
    one, other = pair_with(DEAD, OVERFLOWING, EXPIRING, WEARY, PICKY, DEAD_TOO)
    if not is_linked:
        disconnect(one, other)
    topics = ("full.x", "full.x", "old.x", "often.x", "picky.x")
    published = [Published(topic.encode(), f"{number} {topic}".encode()) for number, topic in enumerate(topics)]
    one.tell(Data(LINK, encode_publish(1, 1, published)))
    exchange(one, other)
    settle(one, "often", SETTLE_RETURNED)
    settle(one, "picky", SETTLE_REJECTED)
    one.wait(2 * NS_PER_S)
    exchange(one, other)
    if not is_linked:
        connect(one, other, link=2)
    assert other.router.tables.endpoint_numbers != one.router.tables.endpoint_numbers
    if is_restarted:
        disconnect(one, other)
        other = other.restart()
        connect(one, other, link=3)
    switch(one, other)
    assert dead_letters(other) == {
        "1 full.x": (WHY_OVERFLOWED, "full"),
        "2 old.x": (WHY_EXPIRED, "old"),
        "3 often.x": (WHY_DELIVERIES, "often"),
    }
    assert dead_letters(other, "dead-too", 31) == {"4 picky.x": (WHY_REJECTED, "picky")}


@pytest.mark.parametrize("is_linked", [True, False], ids=["streamed", "compared"])
def test_a_reject_in_a_transaction_has_its_cause_at_both_routers(is_linked: bool) -> None:
    one, other = pair_with(DEAD, queue("picky"))
    one.tell(Data(LINK, encode_publish(1, 1, [Published(b"picky.x", b"bad")])))
    exchange(one, other)
    one.tell(RequestReceived(LINK, Begin(50, 1, 1)))
    settle(one, "picky", SETTLE_REJECTED, transaction=1)
    if not is_linked:
        disconnect(one, other)
    one.tell(RequestReceived(LINK, Commit(51, 1, 1)))
    exchange(one, other)
    if not is_linked:
        connect(one, other, link=2)
    assert dead_letters(one) == {"bad": (WHY_REJECTED, "picky")}
    switch(one, other)
    assert dead_letters(other) == {"bad": (WHY_REJECTED, "picky")}


def test_two_dead_letters_of_one_message_have_their_own_endpoints() -> None:
    """Also when the message is sent in its current state."""
    one, other = pair_with(DEAD, DEAD_TOO, PICKY, EXPIRING)
    disconnect(one, other)
    one.tell(Data(LINK, encode_publish(1, 1, [Published(b"all.x", b"both")])))
    settle(one, "picky", SETTLE_REJECTED)
    one.wait(2 * NS_PER_S)
    connect(one, other, link=2)
    switch(one, other)
    assert dead_letters(other) == {"both": (WHY_EXPIRED, "old")}
    assert dead_letters(other, "dead-too", 31) == {"both": (WHY_REJECTED, "picky")}
