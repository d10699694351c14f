"""The time at which the active router of a pair sends its copies (REPL-2, REPL-3)."""

from paired_kit import QUEUE, Router, connect, let_go
from penstock.assured.core.pair.protocol import PeerFrame, SwitchHere
from penstock.assured.core.pair.replication_sender import GATHER_NS
from penstock.assured.wire._layout import MESSAGE_WANTS_ASYNC, MESSAGE_WANTS_SYNC, OUTCOME_ASYNC, OUTCOME_SYNC


def pair_in_step() -> tuple[Router, Router]:
    """Publishers decide; nothing was sent for a while."""
    one, other = (Router(name, QUEUE, replicate_by="publisher") for name in ("a", "b"))
    connect(one, other)
    one.clients(10)
    while let_go(one) or one.frames or other.frames:
        say(one, other)
    one.now_ns += GATHER_NS
    return one, other


def say(one: Router, other: Router) -> None:
    """Exchange all messages between the routers; no time passes."""
    while one.frames or other.frames:
        for here, there in ((one, other), (other, one)):
            while here.frames:
                there.tell(PeerFrame(1, here.frames.pop(0)))


def test_asynchronous_messages_are_acknowledged_at_once_and_batched_before_they_are_sent() -> None:
    """REPL-3"""
    one, other = pair_in_step()
    for number in range(1, 5):
        one.publish(number, flags=MESSAGE_WANTS_ASYNC)
        say(one, other)
    assert one.outcomes == dict.fromkeys(range(1, 5), OUTCOME_ASYNC)
    assert other.router.tables.message_count == 1, "the first one did not wait for others"
    assert one.pair.next_deadline_ns() == one.now_ns + GATHER_NS
    assert let_go(one)
    say(one, other)
    assert other.router.tables.message_count == 4
    assert one.pair.sending is not None
    assert one.pair.sending.gathered_ns is None


def test_a_synchronous_message_is_sent_at_once_with_the_waiting_batch() -> None:
    """REPL-3"""
    one, other = pair_in_step()
    for number, flags in enumerate((MESSAGE_WANTS_ASYNC, MESSAGE_WANTS_ASYNC, MESSAGE_WANTS_SYNC), 1):
        one.publish(number, flags=flags)
        say(one, other)
    assert one.outcomes[3] == OUTCOME_SYNC
    assert other.router.tables.message_count == 3


def test_a_planned_switch_does_not_wait_for_the_batch() -> None:
    """REPL-7: nor does it lose messages."""
    one, other = pair_in_step()
    for number in (1, 2):
        one.publish(number, flags=MESSAGE_WANTS_ASYNC)
        say(one, other)
    other.tell(SwitchHere())
    say(one, other)
    assert (one.pair.is_active, other.pair.is_active) == (False, True)
    assert other.router.tables.message_count == 2
