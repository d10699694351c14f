"""A receiver behind a filter: the start of streams, the source of their packets, and the address of repair requests."""

import pytest

from penstock.base.core import Tick
from penstock.base.counters import Cause
from penstock.middleware import (
    Collision,
    Expect,
    ExpectEnd,
    LossReceipt,
    Receiver,
    ReceiverConfig,
    StreamEnded,
    StreamKey,
    StreamStarted,
    Unicast,
)
from penstock.middleware.core.events import ReceiverInstruction
from penstock.wire import PacketFlag, decode, encode_gone, restamp
from unit.middleware_kit import GROUP, KEY, MS, PUBLISHER_ID, NoRandomness, contents, of, packets, receiver, take

FILTER, NEXT_FILTER, PUBLISHER = ("10.0.0.2", 7_000), ("10.0.0.2", 7_001), ("10.0.0.1", 4_000)


def expect(core: Receiver, next_sequence: int, *, epoch: int = 1, source: tuple[str, int] = FILTER, **more: object):  # type: ignore[no-untyped-def]
    return core.handle(Expect(KEY, epoch, next_sequence, source, **more), 0)  # type: ignore[arg-type]


def repaired(data: bytes) -> bytes:
    return restamp(data, set_flags=PacketFlag.REPAIR)


@pytest.mark.spec("FILT-4")
def test_a_stream_begins_where_the_filter_says_even_if_its_first_packet_is_lost() -> None:
    core, sent = receiver(), packets(9)
    assert expect(core, 5) == []
    answers = take(core, [sent[5], restamp(sent[8], gap=2)], source=FILTER)
    assert of(StreamStarted, answers) == [StreamStarted(KEY, 1, 5)]
    assert contents(answers) == []
    (request,) = core.handle(Tick(), 0)
    assert request.destination == FILTER
    assert decode(request.data).ranges == [(5, 5)]
    assert contents(take(core, [sent[4]], source=FILTER)) == ["5", "6", "9"]


@pytest.mark.spec("FILT-10")
def test_repairs_are_requested_from_the_publisher_and_accepted_by_either_way() -> None:
    core, sent = receiver(), packets(9)
    expect(core, 1, repair_source=PUBLISHER)
    take(core, [sent[0], sent[3], sent[5]], source=FILTER)
    (request,) = core.handle(Tick(), 0)
    assert (request.destination, decode(request.data).ranges) == (PUBLISHER, [(2, 3), (5, 5)])
    assert contents(take(core, [repaired(sent[1])], source=PUBLISHER)) == ["2"]
    assert contents(take(core, [repaired(sent[2])], source=FILTER)) == ["3", "4"]
    gone = encode_gone(PUBLISHER_ID, GROUP, 1, [(5, 5)])
    answers = take(core, [gone], source=PUBLISHER)
    assert of(LossReceipt, answers) == [LossReceipt(KEY, 1, 5, 5, Cause.GONE)]
    assert contents(answers) == ["6"]
    assert contents(take(core, [sent[6]], source=FILTER)) == ["7"]
    assert core.counters.by_cause("packets_dropped") == {}


def test_only_repairs_may_bypass_the_filter() -> None:
    core, sent = receiver(), packets(4)
    expect(core, 1, repair_source=PUBLISHER)
    take(core, sent[:1], source=FILTER)
    answers = take(core, sent[1:2], source=PUBLISHER)
    assert of(Collision, answers) == [Collision(KEY, 1, FILTER, PUBLISHER)]
    assert contents(answers) == []
    stranger = ("10.0.0.66", 1)
    assert contents(take(core, [repaired(sent[1])], source=stranger)) == []
    assert of(LossReceipt, take(core, [encode_gone(PUBLISHER_ID, GROUP, 1, [(2, 9)])], source=stranger)) == []


def test_an_expected_stream_begins_with_packets_of_the_filter_only() -> None:
    core, sent = receiver(), packets(2)
    expect(core, 1)
    assert take(core, sent[:1], source=PUBLISHER) == []
    assert core.counters.by_cause("packets_dropped") == {Cause.ID_COLLISION: 1}
    assert contents(take(core, sent, source=FILTER)) == ["1", "2"]
    assert core.is_expected(KEY, FILTER)
    assert not core.is_expected(KEY, PUBLISHER)
    assert not core.is_expected(StreamKey(7, GROUP), FILTER)


def test_packets_lost_while_a_filter_was_replaced_are_requested_or_reported() -> None:
    core, sent = receiver(), packets(9)
    expect(core, 1)
    take(core, sent[:2], source=FILTER)
    assert expect(core, 6, source=NEXT_FILTER) == []
    assert contents(take(core, [sent[5]], source=NEXT_FILTER)) == []
    (request,) = of(Unicast, core.handle(Tick(), 0))
    assert (request.destination, decode(request.data).ranges) == (NEXT_FILTER, [(3, 5)])
    answers = take(core, [encode_gone(PUBLISHER_ID, GROUP, 1, [(3, 4)]), repaired(sent[4])], source=NEXT_FILTER)
    assert of(LossReceipt, answers) == [LossReceipt(KEY, 1, 3, 4, Cause.GONE)]
    assert contents(answers) == ["5", "6"]
    assert contents(take(core, [sent[6]], source=FILTER)) == []  # the previous packet


def test_the_start_that_a_replaced_filter_announced_is_kept_until_the_first_packet() -> None:
    core, sent = receiver(), packets(9)
    expect(core, 3)
    expect(core, 7, source=NEXT_FILTER)
    take(core, [sent[6]], source=NEXT_FILTER)
    assert decode(core.handle(Tick(), 0)[0].data).ranges == [(3, 6)]


def test_a_late_announcement_reports_the_missing_packets_before_it() -> None:
    core, sent = receiver(), packets(9)
    assert contents(take(core, sent[4:5], source=FILTER)) == ["5"]
    assert expect(core, 3) == [LossReceipt(KEY, 1, 3, 4, Cause.BEFORE_JOIN)]
    assert expect(core, 3) == []
    assert contents(take(core, sent[5:6], source=FILTER)) == ["6"]
    assert core.counters.by_cause("packets_lost") == {Cause.BEFORE_JOIN: 2}


def test_losses_beyond_the_window_are_reported_at_once() -> None:
    core, sent = receiver(window_packets_max=4), packets(2)
    expect(core, 1)
    take(core, sent, source=FILTER)
    answers = expect(core, 103)
    assert answers == [LossReceipt(KEY, 1, 3, 98, Cause.WINDOW)]
    assert decode(core.handle(Tick(), 0)[0].data).ranges == [(99, 102)]


def test_a_stream_without_listeners_starts_again() -> None:
    core, sent = receiver(), packets(9)
    expect(core, 1)
    take(core, sent[:2], source=FILTER)
    assert expect(core, 6, is_anew=True) == [StreamEnded(KEY, 1, 3, Cause.CLOSED)]
    answers = take(core, sent[5:7], source=FILTER)
    assert of(StreamStarted, answers) == [StreamStarted(KEY, 1, 6)]
    assert contents(answers) == ["6", "7"]
    assert core.handle(Tick(), MS) == []


def test_a_late_announcement_of_a_new_start_withdraws_the_loss() -> None:
    core, sent = receiver(), packets(9)
    expect(core, 1)
    take(core, [sent[0], sent[2]], source=FILTER)  # 2 was lost while the group was joined
    assert contents(take(core, sent[6:7], source=FILTER)) == []
    assert expect(core, 7, is_anew=True) == []
    assert decode(core.handle(Tick(), 0)[0].data).ranges == [(2, 2)]
    answers = take(core, [sent[1], sent[7]], source=FILTER)
    assert contents(answers) == ["2", "3", "7", "8"]
    assert of(LossReceipt, answers) == of(StreamEnded, answers) == []


def test_a_stream_that_continues_after_a_silence_is_not_started_again() -> None:
    core, sent = receiver(publisher_expiry_ms=4), packets(9)
    expect(core, 1)
    take(core, sent[:2], source=FILTER)
    for at_ms in range(1, 7):
        core.handle(Tick(), at_ms * MS)
    assert core.streams() == []
    expect(core, 5)
    assert of(StreamStarted, take(core, sent[4:5], source=FILTER)) == [StreamStarted(KEY, 1, 3)]


def test_an_older_epoch_is_no_longer_expected() -> None:
    core = receiver()
    expect(core, 1, epoch=2)
    take(core, packets(2, epoch=2), source=FILTER)
    assert expect(core, 9, epoch=1) == []
    assert expect(core, 1, epoch=3) == []
    answers = take(core, packets(1, epoch=3), source=FILTER)
    assert of(StreamEnded, answers) == [StreamEnded(KEY, 2, 3, Cause.RESTARTED)]
    assert of(StreamStarted, answers) == [StreamStarted(KEY, 3, 1)]


def test_behind_a_filter_only_the_filter_starts_a_stream() -> None:
    core, sent = Receiver(ReceiverConfig(publisher_expiry_ms=4), NoRandomness(), only_expected=True), packets(9)
    assert take(core, sent[:1], source=FILTER) == []
    assert core.counters.by_cause("packets_dropped") == {Cause.UNKNOWN_STREAM: 1}
    expect(core, 1)
    assert contents(take(core, sent[:2], source=FILTER)) == ["1", "2"]
    for at_ms in range(1, 7):
        core.handle(Tick(), at_ms * MS)
    assert core.streams() == []
    assert contents(take(core, sent[2:4], source=FILTER)) == ["3", "4"]  # the filter has not forgotten it
    assert take(core, packets(1, epoch=2), source=FILTER) == []


@pytest.mark.spec("FILT-4")
def test_a_new_epoch_is_still_expected_after_the_epoch_before_it_expired() -> None:
    """The filter announces once that the publisher has restarted; a slow application then lets the old stream
    expire."""
    core = Receiver(ReceiverConfig(publisher_expiry_ms=4), NoRandomness(), only_expected=True)
    expect(core, 1)
    take(core, packets(2), source=FILTER)
    expect(core, 1, epoch=2)
    for at_ms in range(1, 7):
        core.handle(Tick(), at_ms * MS)
    assert core.streams() == []
    assert contents(take(core, packets(2, epoch=2), source=FILTER)) == ["1", "2"]


def test_expectations_are_bounded() -> None:
    core = receiver(streams_max=4)
    for number in range(1, 100):
        core.handle(Expect(StreamKey(number, GROUP), 1, 1, FILTER), 0)
    known = [number for number in range(1, 100) if core.is_expected(StreamKey(number, GROUP), FILTER)]
    assert known == [96, 97, 98, 99]


@pytest.mark.spec("FILT-5", "FILT-10")
def test_the_loss_of_the_last_packets_is_found_when_the_filter_announces_the_end() -> None:
    core, sent = receiver(), packets(4)
    expect(core, 1)
    assert core.handle(ExpectEnd(KEY, 1, 1), 0) == []  # no packet was sent
    take(core, sent[:2], source=FILTER)
    assert core.handle(ExpectEnd(KEY, 2, 9), 0) == []  # of another epoch
    assert core.handle(ExpectEnd(KEY, 1, 3), 0) == []  # no packet is missing
    assert core.handle(ExpectEnd(KEY, 1, 5), 0) == []
    (request,) = core.handle(Tick(), 0)
    assert (request.destination, decode(request.data).ranges) == (FILTER, [(3, 4)])
    assert contents(take(core, [repaired(each) for each in sent[2:]], source=FILTER)) == ["3", "4"]
    assert core.handle(ExpectEnd(KEY, 1, 5), 0) == []


@pytest.mark.spec("FILT-5", "FILT-10")
def test_a_stream_without_any_packet_is_reported_as_lost_at_its_end() -> None:
    core = receiver()
    expect(core, 5, repair_source=PUBLISHER)
    assert core.handle(ExpectEnd(KEY, 1, 5), 0) == []
    assert core.handle(ExpectEnd(KEY, 1, 7), 0) == [StreamStarted(KEY, 1, 5)]
    (request,) = core.handle(Tick(), 0)
    assert (request.destination, decode(request.data).ranges) == (PUBLISHER, [(5, 6)])
    gone = encode_gone(PUBLISHER_ID, GROUP, 1, [(5, 6)])
    assert of(LossReceipt, take(core, [gone], source=PUBLISHER)) == [LossReceipt(KEY, 1, 5, 6, Cause.GONE)]


@pytest.mark.spec("FILT-10")
def test_missing_last_packets_are_reported_when_the_publisher_restarts() -> None:
    core, sent = receiver(), packets(2)
    expect(core, 1)
    take(core, sent[:1], source=FILTER)
    core.handle(ExpectEnd(KEY, 1, 3), 0)
    expect(core, 1, epoch=2)
    answers = take(core, packets(1, epoch=2), source=FILTER)
    assert of(LossReceipt, answers) == [LossReceipt(KEY, 1, 2, 2, Cause.RESTARTED)]


@pytest.mark.spec("FILT-5", "FILT-10")
def test_an_epoch_known_only_by_its_end_is_reported_as_lost_from_its_start() -> None:
    core, config = receiver(), ReceiverConfig()
    expect(core, 1)
    take(core, packets(2), source=FILTER)
    expired: list[ReceiverInstruction] = []
    for quarter in range(1, 7):
        expired += core.handle(Tick(), quarter * config.publisher_expiry_ms * MS // 4)
    assert of(StreamEnded, expired) == [StreamEnded(KEY, 1, 3, Cause.EXPIRED)]
    expect(core, 5, epoch=2)
    assert core.handle(ExpectEnd(KEY, 2, 6), 0) == [StreamStarted(KEY, 2, 1)]
    (request,) = core.handle(Tick(), 0)
    assert decode(request.data).ranges == [(1, 5)]
