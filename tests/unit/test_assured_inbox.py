"""Messages of a flow, and their settlement."""

import pytest

from penstock.assured.core.router._records import WHY_DELIVERIES, WHY_EXPIRED, WHY_OVERFLOWED, WHY_REJECTED
from penstock.assured.core.session._inbox import Inbox, Settlements
from penstock.assured.core.session.parts import FlowPart
from penstock.assured.wire._layout import DELIVERY_WHY_SHIFT, SETTLE_ACKNOWLEDGED, SETTLE_REJECTED, SETTLE_RETURNED
from penstock.assured.wire.control import EndpointNamed
from penstock.assured.wire.frames import Credit, Delivered, Run, Settle, decode_frames, encode_deliver
from penstock.base.errors import RemoteProtocolError


def deliver(*ids: int, flow: int = 1) -> bytes:
    return encode_deliver(flow, [Delivered(each, b"orders.new", b"%d" % each, flags=each % 2) for each in ids])[4:]


def opened(*ids: int) -> tuple[Inbox, Settlements]:
    inbox, settlements = Inbox(), Settlements()
    inbox.reopen(1)
    settlements.reopen(1)
    if ids:
        inbox.feed(deliver(*ids))
    return inbox, settlements


def test_messages_are_read_in_order() -> None:
    inbox, _ = opened()
    inbox.feed(encode_deliver(1, [Delivered(7, b"a.b", b"payload", 9, 3, 11, 2, 5, 123, 456, 789)])[4:])
    inbox.feed(deliver(8, 10))
    assert (inbox.waiting, inbox.came) == (3, 3)
    message = inbox.next()
    assert message is not None
    assert (message.id, message.topic, message.payload, message.priority) == (7, "a.b", b"payload", 9)
    assert (message.is_redelivered, message.is_replayed, message.deliveries) == (True, True, 5)
    assert (message.model_id, message.model_version, message.published_ns) == (11, 2, 123)
    assert (message.publisher, message.number) == (456, 789)
    assert [each.id for each in inbox.take(10)] == [8, 10]
    assert inbox.next() is None


def test_a_dead_letter_names_the_cause_and_the_endpoint_that_gave_up_the_message() -> None:
    inbox, _ = opened()
    inbox.named = {5: EndpointNamed(5, "orders", 1, 1)}
    flags = [why << DELIVERY_WHY_SHIFT for why in (0, WHY_REJECTED, WHY_DELIVERIES, WHY_EXPIRED, WHY_OVERFLOWED, 7)]
    messages = [Delivered(each + 1, b"a", b"", flags=flag, given_up_by=5) for each, flag in enumerate(flags)]
    inbox.feed(encode_deliver(1, [*messages, Delivered(9, b"a", b"", flags=flags[1], given_up_by=6)])[4:])
    assert [(each.dead_reason, each.dead_from) for each in inbox.take(10)] == [
        ("", ""),
        ("rejected", "orders"),
        ("deliveries_max", "orders"),
        ("expired", "orders"),
        ("overflowed", "orders"),
        ("", "orders"),
        ("rejected", ""),
    ]


def test_the_memory_of_frames_is_released_after_they_were_read() -> None:
    inbox, _ = opened()
    for start in range(0, 1_000, 5):
        inbox.feed(deliver(*range(start, start + 5)))
    assert [each.id for each in inbox.take(2_000)] == list(range(1_000))
    inbox.feed(deliver(7))
    assert [each.id for each in inbox.take(2)] == [7]


def test_an_invalid_frame_is_refused() -> None:
    inbox, _ = opened()
    for junk in (b"", b"\x03", deliver(1)[:-1], deliver(1) + bytes(8)):
        with pytest.raises(RemoteProtocolError):
            inbox.feed(junk)
    assert inbox.waiting == 0


def test_consecutive_ids_are_settled_as_one_run() -> None:
    inbox, settlements = opened(5, 6, 7, 9, 10, 12)
    messages = inbox.take(10)
    for message in messages[:5]:
        assert settlements.add(message, SETTLE_ACKNOWLEDGED, 0)
    settlements.add(messages[5], SETTLE_REJECTED, 0)
    frames = decode_frames(settlements.take(3))
    assert frames == [Settle(3, 0, [Run(5, 7, 1), Run(9, 10, 1), Run(12, 12, 3)])]
    assert not settlements.is_waiting
    assert settlements.settled == 6


def test_the_runs_of_a_frame_are_ascending_and_of_one_transaction() -> None:
    inbox, settlements = opened(5, 3, 8, 9)
    for message, transaction in zip(inbox.take(4), (0, 0, 2, 2), strict=True):
        settlements.add(message, SETTLE_RETURNED, transaction)
    assert decode_frames(settlements.take(1)) == [
        Settle(1, 0, [Run(5, 5, 2)]), Settle(1, 0, [Run(3, 3, 2)]), Settle(1, 2, [Run(8, 9, 2)])
    ]  # fmt: skip


def test_messages_delivered_before_a_reconnect_cannot_be_settled() -> None:
    inbox, settlements = opened(5, 6)
    first, second = inbox.take(2)
    settlements.add(first, SETTLE_ACKNOWLEDGED, 0)
    settlements.reopen(2)
    inbox.reopen(2)
    assert not settlements.add(second, SETTLE_ACKNOWLEDGED, 0)
    assert settlements.take(1) == b""
    inbox.feed(deliver(5))
    (again,) = inbox.take(1)
    assert settlements.add(again, SETTLE_ACKNOWLEDGED, 0)


def test_credit_grows_with_settled_messages() -> None:
    flow = FlowPart("orders", prefetch=4)
    flow.open(9, is_active=True)
    flow.inbox.feed(deliver(1, 2, 3))
    one, two, _ = flow.inbox.take(3)
    flow.settlements.add(one, SETTLE_ACKNOWLEDGED, 0)
    assert decode_frames(flow.frames()) == [Settle(9, 0, [Run(1, 1, 1)])]
    flow.settlements.add(two, SETTLE_ACKNOWLEDGED, 0)
    assert decode_frames(flow.frames()) == [Settle(9, 0, [Run(2, 2, 1)]), Credit(9, 6)]
    assert flow.frames() == b""


def test_credit_grows_at_once_when_no_message_can_arrive() -> None:
    flow = FlowPart("orders", prefetch=4)
    flow.open(9, is_active=True)
    flow.inbox.feed(deliver(1, 2, 3, 4))
    one, two, three, _ = flow.inbox.take(4)
    flow.settlements.add(one, SETTLE_RETURNED, 0)
    assert decode_frames(flow.frames()) == [Settle(9, 0, [Run(1, 1, 2)]), Credit(9, 5)]
    flow.settlements.add(two, SETTLE_ACKNOWLEDGED, 0)
    assert decode_frames(flow.frames()) == [Settle(9, 0, [Run(2, 2, 1)])]
    flow.lose()
    flow.settlements.add(three, SETTLE_ACKNOWLEDGED, 0)
    assert flow.frames() == b""
