"""Messages that a transaction published where the other router of a pair has no copies (REPL-10): they are committed
with the rest of the transaction, and stay when their router is replaced, also if no copy with such a high id was ever
sent."""

import pytest

from paired_kit import QUEUE, Router, connect, disconnect, exchange, let_go, switch
from penstock.assured.config import EndpointConfig, Want
from penstock.assured.core.pair.protocol import PAIR, Degrade, Listed, PeerFrame, PeerOpened, Resync, SwitchHere, Whole
from penstock.assured.core.router.events import Data, RequestReceived
from penstock.assured.core.router.log import EPOCH_BITS
from penstock.assured.wire.control import Begin, Commit, Ended
from penstock.assured.wire.frames import Published, encode_publish

SOLO = EndpointConfig(name="solo", wants=(Want(topics=("s.>",)),), replication="synchronous")
LOCAL = EndpointConfig(name="local", wants=(Want(topics=("l.>",)),), replication="none")
SYNC, DEGRADED = 3, 4


def held(router: Router) -> dict[str, int]:
    numbers = router.router.tables.endpoint_numbers
    return {each.name: numbers(each.number)["messages"] for each in router.router.endpoints if each.name != "dead"}


def pair_of(mirror: str) -> tuple[Router, Router]:
    """Without mirroring only the first router has `solo`."""
    pair = {"mirror": mirror}
    one = Router("a", QUEUE, LOCAL, *[SOLO] * (mirror == "none"), pair=pair)
    other = Router("b", *[QUEUE, LOCAL] * (mirror == "none"), pair=pair)
    connect(one, other)
    one.clients(10)
    exchange(one, other)
    assert one.pair.is_active
    return one, other


def commit_apart(one: Router, other: Router, *topics: bytes) -> None:
    disconnect(one, other)
    one.tell(RequestReceived(10, Begin(5, 1, 1)))
    for number, topic in enumerate(topics, 1):
        one.tell(Data(10, encode_publish(1, number, [Published(topic, b"payload")], transaction=1)))
    one.tell(RequestReceived(10, Commit(6, 1, 1)))
    assert 6 not in one.answers


@pytest.mark.parametrize(
    ("mirror", "topics", "treatment", "left"),
    [
        ("all", (b"a.x", b"l.x"), SYNC, {"q": 1, "local": 1}),
        ("all", (b"l.x", b"a.x"), SYNC, {"q": 1, "local": 1}),
        ("none", (b"a.x", b"l.x"), SYNC, {"q": 1, "local": 1, "solo": 0}),
        ("none", (b"a.x", b"s.x"), DEGRADED, {"q": 1, "local": 0, "solo": 1}),
        ("none", (b"s.x", b"s.x"), DEGRADED, {"q": 0, "local": 0, "solo": 2}),
    ],
)
@pytest.mark.parametrize("is_restarted", [False, True])
def test_repl_10_a_transaction_committed_without_a_link_stays_complete(
    mirror: str, topics: tuple[bytes, ...], treatment: int, left: dict[str, int], is_restarted: bool
) -> None:
    one, other = pair_of(mirror)
    commit_apart(one, other, *topics)
    connect(one, other)
    assert one.answers[6] == Ended(0, "committed", treatment)
    if is_restarted:  # the state of the transaction is on its disk
        disconnect(one, other)
        other = other.restart()
        other.tell(SwitchHere(is_forced=True))
        connect(one, other)
    else:
        switch(one, other)
    assert (one.pair.is_active, other.pair.is_active) == (False, True)
    assert held(one) == left
    assert not one.router.tables.replication.undone
    switch(other, one)
    assert held(one) == left


@pytest.mark.parametrize("is_restarted", [False, True])
def test_repl_10_messages_on_one_router_stay_if_the_other_never_learned_that_it_is_complete(is_restarted: bool) -> None:
    """It lacked nothing: it may take over once it has compared."""
    one, other = pair_of("none")
    commit_apart(one, other, b"s.x")
    connect(one, other, 0)
    while 6 not in one.answers:
        exchange(one, other, 1)
    assert one.answers[6] == Ended(0, "committed", DEGRADED)
    disconnect(one, other)  # `whole` is lost
    if is_restarted:
        other = other.restart()
    other.tell(SwitchHere(is_forced=True))
    connect(one, other)
    assert held(one)["solo"] == 1


def test_ids_of_unknown_epochs_end_the_link() -> None:
    one, other = pair_of("all")
    epoch = one.pair.epoch
    known = other.router.tables.next_id
    for message in (Resync(9, epoch, epoch, 0), Listed((epoch + 1) << EPOCH_BITS)):
        other.tell(PeerFrame(1, PAIR.encode(message, 2**20)))
    assert other.ended
    assert other.router.tables.next_id == known


def exchange_without_whole(one: Router, other: Router) -> None:
    """The standby never learns that it is complete."""
    while one.frames or other.frames or let_go(one) or let_go(other):
        for here, there in ((one, other), (other, one)):
            while here.frames:
                frame = here.frames.pop(0)
                if frame[0] < 0x80 or not isinstance(PAIR.decode(frame), Whole):
                    there.tell(PeerFrame(there.link, frame))


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("misses", [0, 1])
@pytest.mark.parametrize("was_active", [False, True])
def test_repl_10_a_successor_that_never_learned_that_it_is_complete_knows_transactions_without_copies(
    was_active: bool, misses: int, is_restarted: bool
) -> None:
    """It stood by in an older epoch, or was active itself; it has all messages that the active router acknowledged as
    synchronous."""
    one, other = pair_of("all")
    if was_active:
        switch(one, other)
    disconnect(one, other)
    one = one.restart()
    one.tell(SwitchHere(is_forced=True))
    one.clients(10)
    if misses:
        one.tell(Degrade(True))
        one.publish(1, misses)
        one.tell(Degrade(False))
    for each in (one, other):
        each.frames.clear()
        each.tell(PeerOpened(1))
    exchange_without_whole(one, other)
    assert other.pair.receiving is not None
    assert not other.pair.receiving.is_whole
    one.tell(RequestReceived(10, Begin(5, 1, 1)))
    for number, topic in enumerate((b"l.x", b"a.x", b"l.x"), 2):
        one.tell(Data(10, encode_publish(1, number, [Published(topic, b"payload")], transaction=1)))
    one.tell(RequestReceived(10, Commit(6, 1, 1)))
    exchange_without_whole(one, other)
    assert one.answers[6] == Ended(0, "committed", SYNC)
    disconnect(one, other)
    if is_restarted:
        other = other.restart()
    other.tell(SwitchHere(is_forced=True))
    one = one.restart()
    connect(one, other)
    switch(other, one)
    assert held(one) == {"q": 1 + misses, "local": 2}
