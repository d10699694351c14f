import pytest

from penstock.base.core import Tick
from penstock.base.counters import Cause
from penstock.base.errors import LocalProtocolError
from penstock.middleware import (
    Collision,
    Deliver,
    LossReceipt,
    Multicast,
    Receiver,
    ReceiverConfig,
    StreamEnded,
    StreamStarted,
    Unicast,
)
from penstock.wire import Packer, PacketFlag, decode, encode_gone, encode_nack, restamp
from unit.middleware_kit import (
    GROUP,
    KEY,
    MS,
    PUBLISHER_ID,
    SOURCE,
    contents,
    of,
    packets,
    publish,
    publisher,
    receiver,
    take,
)

ELSEWHERE = ("10.0.0.9", 9_999)


def test_packets_in_order_are_delivered_at_once() -> None:
    core = receiver()
    answers = take(core, packets(3))
    assert of(StreamStarted, answers) == [StreamStarted(KEY, 1, 1)]
    assert contents(answers) == ["1", "2", "3"]


def test_a_missing_packet_is_requested_and_later_ones_wait() -> None:
    core, sent = receiver(), packets(4)
    answers = take(core, [sent[0], sent[2], sent[3]])
    assert contents(answers) == ["1"]
    (request,) = core.handle(Tick(), 0)
    assert isinstance(request, Unicast)
    assert request.destination == SOURCE
    assert decode(request.data).ranges == [(2, 2)]
    assert contents(take(core, [sent[1]])) == ["2", "3", "4"]
    assert core.handle(Tick(), 1_000 * MS) == []


def test_duplicates_are_dropped_before_and_after_delivery() -> None:
    core, sent = receiver(), packets(4)
    answers = take(core, [sent[0], sent[0], sent[2], sent[2], sent[1], sent[1], sent[3]])
    assert contents(answers) == ["1", "2", "3", "4"]
    assert core.counters.by_cause("packets_dropped") == {Cause.DUPLICATE: 3}


def test_a_live_join_begins_with_the_first_packet_seen() -> None:
    core, sent = receiver(join="live"), packets(9)
    answers = take(core, [sent[6], sent[5], sent[7]])
    assert contents(answers) == ["7", "8"]
    assert core.counters.by_cause("packets_dropped") == {Cause.BEFORE_JOIN: 1}


def test_a_join_at_the_start_requests_earlier_packets() -> None:
    core, sent = receiver(join="start"), packets(5)
    assert contents(take(core, [sent[4]])) == []
    (request,) = of(Unicast, core.handle(Tick(), 0))
    assert decode(request.data).ranges == [(1, 4)]
    assert contents(take(core, sent[:4])) == ["1", "2", "3", "4", "5"]


def test_packets_removed_by_a_filter_are_not_missing() -> None:
    """Last received + gap = current - 1."""
    core, sent = receiver(), packets(9)
    answers = take(core, [sent[0], restamp(sent[4], gap=3), sent[5]])
    assert contents(answers) == ["1", "5", "6"]
    assert [(each.first, each.sequence) for each in of(Deliver, answers)] == [(1, 1), (2, 5), (6, 6)]
    answers = take(core, [restamp(sent[8], gap=1)])
    assert contents(answers) == []
    assert decode(core.handle(Tick(), 0)[0].data).ranges == [(7, 7)]
    assert contents(take(core, [sent[6]])) == ["7", "9"]


def test_a_gap_that_covers_waiting_packets_leaves_nothing_behind() -> None:
    core, sent = receiver(), packets(9)
    answers = take(core, [sent[0], sent[3], restamp(sent[5], gap=4)])
    assert [(each.first, each.sequence) for each in of(Deliver, answers)] == [(1, 1), (2, 4), (5, 6)]
    assert_idle(core)


def test_contradictory_gaps_neither_block_nor_grow_the_stream() -> None:
    core, sent = receiver(window_packets_max=8), packets(40)
    answers = take(core, [sent[3], restamp(sent[11], gap=4), restamp(sent[9], gap=5), *sent[12:]])
    assert [each.sequence for each in of(Deliver, answers)] == [4, 10, 12, *range(13, 41)]
    assert_idle(core)


def assert_idle(core: Receiver) -> None:
    (stream,) = core.streams()
    assert (stream.window_packets, stream.window_bytes, len(stream.gaps)) == (0, 0, 0)


def test_an_impossible_gap_is_refused() -> None:
    core = receiver()
    assert take(core, [restamp(packets(1)[0], gap=1)]) == []
    assert core.counters.by_cause("packets_dropped") == {Cause.LENGTH: 1}


def test_packets_that_the_publisher_no_longer_has_are_reported_lost() -> None:
    core, sent = receiver(), packets(5)
    take(core, [sent[0], sent[4]])
    answers = take(core, [encode_gone(PUBLISHER_ID, GROUP, 1, [(2, 3)])])
    assert answers == [LossReceipt(KEY, 1, 2, 3, Cause.GONE)]
    assert contents(take(core, [sent[3]])) == ["4", "5"]
    assert core.counters.by_cause("packets_lost") == {Cause.GONE: 2}


def test_a_loss_in_the_middle_is_reported_in_order() -> None:
    core, sent = receiver(), packets(5)
    take(core, [sent[0], sent[2], sent[4]])
    assert take(core, [encode_gone(PUBLISHER_ID, GROUP, 1, [(4, 4)])]) == []
    answers = take(core, [sent[1]])
    assert contents(answers) == ["2", "3", "5"]
    assert of(LossReceipt, answers) == [LossReceipt(KEY, 1, 4, 4, Cause.GONE)]
    assert isinstance(answers[2], LossReceipt)


def test_requests_end_after_a_bounded_number_of_attempts_with_growing_pauses() -> None:
    core, sent = receiver(nack_attempts_max=4, nack_retry_ms=10), packets(3)
    take(core, [sent[0], sent[2]])
    times, answers = [], []
    while not of(LossReceipt, answers):
        now_ns = core.next_deadline_ns()
        assert now_ns is not None
        times.append(now_ns // MS)
        answers = core.handle(Tick(), now_ns)
    assert times == [0, 10, 30, 70, 150]
    assert of(LossReceipt, answers) == [LossReceipt(KEY, 1, 2, 2, Cause.NO_ANSWER)]
    assert contents(answers) == ["3"]
    assert core.counters["nacks_sent"] == 4


def test_a_multicast_request_is_suppressed_when_another_receiver_has_sent_it() -> None:
    core, sent = receiver(nack="multicast", nack_retry_ms=10), packets(4)
    take(core, [sent[0], sent[3]])
    take(core, [encode_nack(PUBLISHER_ID, GROUP, 1, [(1, 3)])], source=ELSEWHERE)
    assert core.handle(Tick(), 0) == []
    assert core.counters["nacks_suppressed"] == 1
    (request,) = core.handle(Tick(), 10 * MS)
    assert isinstance(request, Multicast)
    assert request.group == GROUP


def test_a_burst_of_losses_costs_one_request() -> None:
    core, sent = receiver(), packets(20)
    take(core, sent[::2])
    (request,) = core.handle(Tick(), 0)
    assert decode(request.data).ranges == [(n, n) for n in range(2, 19, 2)]


def test_requests_for_newer_losses_do_not_use_up_the_attempts_of_older_ones() -> None:
    core, sent = receiver(nack_delay_us=1_000_000, nack_retry_ms=10_000, nack_attempts_max=3), packets(100)
    for number, packet in enumerate(sent[::2]):
        take(core, [packet], now_ns=20 * number * MS)
        core.handle(Tick(), 20 * number * MS)
    assert core.counters["packets_lost"] == 0
    assert max(gap.attempts for gap in core.streams()[0].gaps.hopeful()) == 1


def test_the_window_is_bounded_in_packets() -> None:
    core, sent = receiver(window_packets_max=4), packets(9)
    answers = take(core, [sent[0], *sent[2:]])
    assert of(LossReceipt, answers) == [LossReceipt(KEY, 1, 2, 2, Cause.WINDOW)]
    assert contents(answers) == ["1", "3", "4", "5", "6", "7", "8", "9"]


def test_a_full_window_gives_up_as_few_packets_as_possible() -> None:
    core, sent = receiver(window_packets_max=4), packets(9)
    answers = take(core, [sent[0], sent[8]])
    assert of(LossReceipt, answers) == [LossReceipt(KEY, 1, 2, 5, Cause.WINDOW)]
    assert contents(take(core, sent[5:8])) == ["6", "7", "8", "9"]


def test_the_window_is_bounded_in_bytes() -> None:
    core, sent = receiver(window_bytes_max=200), packets(9)
    take(core, [sent[0], *sent[2:]])
    (stream,) = core.streams()
    assert core.counters.by_cause("packets_lost") == {Cause.WINDOW: 1}
    assert stream.window_bytes <= 200


def test_a_sequence_number_far_ahead_costs_one_receipt() -> None:
    core = receiver()
    answers = take(core, [packets(1)[0], packets(1, first=2**63)[0]])
    assert [(each.first, each.last) for each in of(LossReceipt, answers)] == [
        (2, 2**63 - ReceiverConfig().window_packets_max)
    ]


def test_a_restarted_publisher_begins_a_new_epoch_from_its_first_packet() -> None:
    core, old, new = receiver(), packets(5, epoch=1), packets(3, epoch=2)
    take(core, [old[0], old[2]])
    answers = take(core, [new[1]])
    assert answers[:4] == [
        LossReceipt(KEY, 1, 2, 2, Cause.RESTARTED),
        answers[1],
        StreamEnded(KEY, 1, 4, Cause.RESTARTED),
        StreamStarted(KEY, 2, 1),
    ]
    assert contents(answers) == ["3"]
    assert contents(take(core, [new[0]])) == ["1", "2"]
    assert take(core, [old[3]]) == []
    assert core.counters.by_cause("packets_dropped") == {Cause.STALE_EPOCH: 1}


def test_a_silent_publisher_expires_and_its_return_repeats_and_skips_nothing() -> None:
    core, sent = receiver(publisher_expiry_ms=1_000), packets(6)
    take(core, [sent[0], sent[2]])
    answers = []
    while not of(StreamEnded, answers):
        now_ns = core.next_deadline_ns()
        assert now_ns is not None
        answers += core.handle(Tick(), now_ns)
    assert of(LossReceipt, answers) == [LossReceipt(KEY, 1, 2, 2, Cause.EXPIRED)]
    assert of(StreamEnded, answers) == [StreamEnded(KEY, 1, 4, Cause.EXPIRED)]
    assert core.streams() == []
    assert take(core, [sent[1], sent[2]]) == []
    answers = take(core, [sent[4]], now_ns=9_000 * MS)
    assert answers == [StreamStarted(KEY, 1, 4)]
    assert contents(take(core, [sent[3]])) == ["4", "5"]


def test_a_goodbye_ends_the_stream_when_all_earlier_packets_are_there() -> None:
    core, sent = receiver(), packets(3)
    last = restamp(sent[2], set_flags=PacketFlag.GOODBYE)
    assert of(StreamEnded, take(core, [sent[0], last])) == []
    answers = take(core, [sent[1]])
    assert contents(answers) == ["2", "3"]
    assert answers[-1] == StreamEnded(KEY, 1, 4, Cause.GOODBYE)
    assert take(core, [last]) == []


def test_two_publishers_with_one_id_are_detected_and_reported_once() -> None:
    core, sent = receiver(), packets(4)
    take(core, sent[:2])
    answers = take(core, sent[2:], source=ELSEWHERE)
    assert answers == [Collision(KEY, 1, SOURCE, ELSEWHERE)]
    assert contents(take(core, sent[2:])) == ["3", "4"]
    assert core.counters.by_cause("packets_dropped") == {Cause.ID_COLLISION: 2}


def test_an_older_epoch_that_continues_is_a_collision_and_stragglers_are_not() -> None:
    core, old, new = receiver(), packets(5, epoch=1), packets(5, epoch=2)
    take(core, new[:1], now_ns=0, source=ELSEWHERE)
    assert take(core, old[:1], now_ns=10 * MS) == []
    assert take(core, old[1:3], now_ns=2_000 * MS) == [Collision(KEY, 2, ELSEWHERE, SOURCE)]


def test_a_repair_is_accepted_only_from_the_publisher() -> None:
    core, sent = receiver(), packets(4)
    forged = restamp(sent[1], set_flags=PacketFlag.REPAIR | PacketFlag.GOODBYE)
    take(core, [sent[0], sent[2]])
    assert take(core, [forged], source=ELSEWHERE) == []
    assert core.counters.by_cause("packets_dropped") == {Cause.ID_COLLISION: 1}
    assert contents(take(core, [sent[1], sent[3]])) == ["2", "3", "4"]


def test_a_stream_does_not_begin_with_a_repair() -> None:
    core, sent = receiver(), packets(4)
    assert take(core, [restamp(sent[1], set_flags=PacketFlag.REPAIR)]) == []
    assert contents(take(core, [sent[2]])) == ["3"]


def test_only_the_publisher_can_report_that_packets_are_gone() -> None:
    core, sent = receiver(), packets(3)
    take(core, [sent[0], sent[2]])
    assert take(core, [encode_gone(PUBLISHER_ID, GROUP, 1, [(2, 2)])], source=ELSEWHERE) == []
    assert core.counters.by_cause("packets_dropped") == {Cause.UNEXPECTED: 1}
    assert contents(take(core, [sent[1]])) == ["2", "3"]


def test_strangers_cannot_suppress_the_requests_of_a_receiver() -> None:
    core, sent = receiver(nack="multicast", nack_retry_ms=10), packets(3)
    take(core, [sent[0], sent[2]])
    request = encode_nack(PUBLISHER_ID, GROUP, 1, [(1, 2)])
    for now_ms in range(0, 30, 3):
        take(core, [request], now_ns=now_ms * MS, source=ELSEWHERE)
        core.handle(Tick(), now_ms * MS)
    assert core.counters["nacks_sent"] >= 1


def test_requests_of_others_have_no_effect_where_requests_are_not_shared() -> None:
    core, sent = receiver(nack="unicast"), packets(3)
    take(core, [sent[0], sent[2]])
    take(core, [encode_nack(PUBLISHER_ID, GROUP, 1, [(1, 2)])], source=ELSEWHERE)
    assert len(of(Unicast, core.handle(Tick(), 0))) == 1
    assert core.counters["nacks_suppressed"] == 0


def test_a_receivers_own_reflected_request_delays_nothing() -> None:
    core, sent = receiver(nack="multicast", nack_retry_ms=10), packets(3)
    take(core, [sent[0], sent[2]])
    (request,) = of(Multicast, core.handle(Tick(), 0))
    take(core, [request.data])
    assert len(of(Multicast, core.handle(Tick(), 10 * MS))) == 1


def test_fragments_are_not_joined_across_a_gap_of_the_filter() -> None:
    packer = Packer(PUBLISHER_ID, GROUP, 1)
    first = packer.add("m.a", bytes(4_000))[0]
    other = Packer(PUBLISHER_ID, GROUP, 1, first_sequence=5)
    last = [*other.add("m.b", bytes(2_000)), other.flush()][-1]
    assert last is not None
    answers = take(receiver(), [first, restamp(last, gap=decode(last).sequence - 2)])
    assert contents(answers) == []
    assert [each.topic for each in of(LossReceipt, answers)] == ["m.a", "m.b"]


def test_a_continuation_without_its_beginning_is_reported_after_complete_messages_too() -> None:
    whole = packets(2)
    packer = Packer(PUBLISHER_ID, GROUP, 1, first_sequence=3)
    last = [*packer.add("long", bytes(2_000)), packer.flush()][-1]
    assert last is not None
    answers = take(receiver(), [*whole, restamp(last, gap=1)])
    assert [each.cause for each in of(LossReceipt, answers)] == [Cause.FRAGMENT]


def test_an_unknown_event_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="Receiver does not accept event str"):
        receiver().handle("packet", 0)  # type: ignore[arg-type]


@pytest.mark.spec("FILT-2")
def test_a_long_message_is_reassembled() -> None:
    content = bytes(range(256)) * 40
    sent = publish(publisher(), b"before", content, b"after")
    answers = take(receiver(), [bytes(packet.data) for packet in sent])
    payloads = [bytes(message.payload) for deliver in of(Deliver, answers) for message in deliver.messages]
    assert payloads == [b"before", content, b"after"]


@pytest.mark.spec("FILT-2")
@pytest.mark.parametrize("position", ["first", "middle", "last"])
def test_a_loss_inside_a_long_message_drops_only_that_message_and_is_reported(position: str) -> None:
    sending = publisher()
    before, long, after = (publish(sending, content) for content in (b"before", bytes(5_000), b"after"))
    lost = {"first": long[0], "middle": long[1], "last": long[-1]}[position].sequence
    core = receiver()
    answers = take(core, [bytes(packet.data) for packet in (*before, *long, *after) if packet.sequence != lost])
    answers += take(core, [encode_gone(PUBLISHER_ID, GROUP, 1, [(lost, lost)])])
    assert contents(answers) == ["before", "after"]
    receipts = of(LossReceipt, answers)
    assert [(each.first, each.last, each.cause) for each in receipts if not each.topic] == [(lost, lost, Cause.GONE)]
    assert {each.cause for each in receipts if each.topic == "t"} == {Cause.FRAGMENT}
    assert core.counters["messages_lost"] >= 1


def test_a_message_beyond_the_limit_is_reported_and_the_next_one_is_delivered() -> None:
    sent = [bytes(packet.data) for packet in publish(publisher(), bytes(9_000), b"after")]
    answers = take(receiver(message_size_max=4_000), sent)
    assert contents(answers) == ["after"]
    assert [each.cause for each in of(LossReceipt, answers)] == [Cause.LENGTH]


def test_an_unfinished_fragment_does_not_swallow_the_next_message() -> None:
    """A publisher that breaks the protocol costs its own message, not the one after it."""
    packer = Packer(PUBLISHER_ID, GROUP, 1)
    cut = packer.add("long", bytes(4_000))
    whole = packets(1, first=2)
    tail = [restamp(each) for each in cut[1:]]
    answers = take(receiver(), [cut[0], whole[0], *tail])
    assert contents(answers) == ["2"]
    assert [each.cause for each in of(LossReceipt, answers)] == [Cause.FRAGMENT]


def test_joining_inside_a_long_message_reports_nothing() -> None:
    sent = [bytes(packet.data) for packet in publish(publisher(), bytes(5_000), b"after")]
    answers = take(receiver(), sent[2:])
    assert contents(answers) == ["after"]
    assert of(LossReceipt, answers) == []


@pytest.mark.spec("FILT-14")
def test_invalid_packets_are_counted_by_cause_and_dropped() -> None:
    core, good = receiver(), packets(1)[0]
    bad = {
        Cause.FOREIGN: b"GET / HTTP/1.1\r\n" * 4,
        Cause.TRUNCATED: good[:-8],
        Cause.LENGTH: good + b"more",
        Cause.CHECKSUM: good[:-1] + bytes([good[-1] ^ 1]),
        Cause.VERSION: good[:2] + b"\x09" + good[3:],
    }
    assert take(core, bad.values()) == []
    assert core.counters.by_cause("packets_dropped") == dict.fromkeys(bad, 1)
    assert contents(take(core, [good])) == ["1"]


def test_streams_are_bounded() -> None:
    core = receiver(streams_max=2)
    for publisher_id in (1, 2):
        for number, now_ns in ((1, 0), (2, 5_000 * MS)):
            take(core, packets(1, first=number, publisher_id=publisher_id), now_ns)
    take(core, packets(1, publisher_id=3), 5_000 * MS)
    assert [each.key.publisher_id for each in core.streams()] == [1, 2]
    assert core.counters.by_cause("packets_dropped") == {Cause.STREAM_LIMIT: 1}


def test_requests_and_answers_of_unknown_streams_are_counted() -> None:
    core = receiver()
    assert take(core, [encode_gone(7, GROUP, 1, [(1, 1)]), encode_nack(7, GROUP, 1, [(1, 1)])]) == []
    assert core.counters.by_cause("packets_dropped") == {Cause.UNKNOWN_STREAM: 2}


def test_waiting_packets_survive_reuse_of_the_datagrams_buffer() -> None:
    core, sent = receiver(), packets(3)
    buffer = bytearray(2_000)
    answers = []
    for packet in (sent[0], sent[2], sent[1]):
        buffer[: len(packet)] = packet
        answers += contents(take(core, [memoryview(buffer)[: len(packet)]]))
        buffer[:] = bytes(2_000)
    assert answers == ["1", "2", "3"]


def requests_during(core: Receiver, repairs: list[bytes], step_ns: int) -> list[tuple[int, list[tuple[int, int]]]]:
    """The requests of the receiver while repairs arrive one after the other."""
    asked = []
    for number, data in enumerate(repairs, start=1):
        now_ns = number * step_ns
        while (deadline_ns := core.next_deadline_ns()) is not None and deadline_ns <= now_ns:
            asked += [(deadline_ns, decode(each.data).ranges) for each in of(Unicast, core.handle(Tick(), deadline_ns))]
        take(core, [restamp(data, set_flags=PacketFlag.REPAIR)], now_ns)
    return asked


@pytest.mark.spec("FILT-10")
def test_a_long_repair_is_not_requested_again_while_it_is_under_way() -> None:
    core, sent = receiver(nack_retry_ms=10), packets(301)
    take(core, [sent[0], sent[300]])
    assert requests_during(core, sent[1:300], MS // 10) == [(0, [(2, 300)])]
    assert core.counters["nacks_sent"] == 1


@pytest.mark.spec("FILT-10")
def test_packets_that_a_repair_skipped_are_requested_in_time() -> None:
    core, sent = receiver(nack_retry_ms=10), packets(301)
    take(core, [sent[0], sent[300]])
    asked = requests_during(core, sent[1:99] + sent[100:300], MS // 10)  # packet 100 is lost again
    assert asked[0] == (0, [(2, 300)])
    # its timeout starts at the last packet before it, and later packets do not extend it
    assert asked[1] == (98 * MS // 10 + 10 * MS, [(100, 100)])
    assert len(asked) == 2


def test_a_repair_that_stops_is_requested_again() -> None:
    core, sent = receiver(nack_retry_ms=10), packets(31)
    take(core, [sent[0], sent[30]])
    assert requests_during(core, sent[1:11], MS) == [(0, [(2, 30)])]
    assert of(Unicast, core.handle(Tick(), 20 * MS - 1)) == []
    (request,) = of(Unicast, core.handle(Tick(), 20 * MS))
    assert decode(request.data).ranges == [(12, 30)]


def test_the_streams_of_a_left_group_are_forgotten() -> None:
    core, sent = receiver(), packets(9)
    take(core, [sent[0], sent[3]])
    assert core.forget(GROUP + 1) == []
    assert core.forget(GROUP) == [StreamEnded(KEY, 1, 2, Cause.CLOSED)]
    assert of(Unicast, core.handle(Tick(), 10 * MS)) == []
    answers = take(core, sent[6:8], now_ns=20 * MS)  # as if it were new: nothing is missing
    assert of(StreamStarted, answers) == [StreamStarted(KEY, 1, 7)]
    assert contents(answers) == ["7", "8"]
    assert of(LossReceipt, answers) == []


@pytest.mark.spec("SUB-2", "SYNC-7")
@pytest.mark.parametrize("epoch", [1, 2])
def test_a_stream_that_ended_while_its_group_was_left_returns_as_a_new_one(epoch: int) -> None:
    core = receiver(publisher_expiry_ms=1_000)
    take(core, packets(3))
    ended = [each for now_ms in range(0, 1_500, 100) for each in core.handle(Tick(), now_ms * MS)]
    assert ended == [StreamEnded(KEY, 1, 4, Cause.EXPIRED)]
    core.note_absence(GROUP)
    answers = take(core, packets(2, epoch=epoch, first=9_000), 2_000 * MS)
    assert of(StreamStarted, answers) == [StreamStarted(KEY, epoch, 9_000)]
    assert contents(answers) == ["9000", "9001"]
    assert core.handle(Tick(), 2_100 * MS) == [], "packets of the absence are neither requested nor reported lost"


@pytest.mark.spec("SUB-2")
def test_a_stream_repeats_nothing_after_its_group_was_left() -> None:
    core = receiver(publisher_expiry_ms=1_000, join="start")
    take(core, packets(3))
    ended = [each for now_ms in range(0, 1_500, 100) for each in core.handle(Tick(), now_ms * MS)]
    assert ended == [StreamEnded(KEY, 1, 4, Cause.EXPIRED)]
    core.note_absence(GROUP)
    assert take(core, packets(3), 2_000 * MS) == []
    answers = take(core, packets(1, first=5), 2_000 * MS)
    assert of(StreamStarted, answers) == [StreamStarted(KEY, 1, 4)]
    (request,) = core.handle(Tick(), 2_000 * MS)
    assert decode(request.data).ranges == [(4, 4)], "a receiver from the start requests all missing packets"
