"""The memory of a receiver is bounded in total, and forged publishers do not evict real ones."""

import pytest

from penstock.base.core import Tick
from penstock.base.counters import Cause
from penstock.middleware import DatagramReceived, Deliver, LossReceipt, StreamEnded, StreamKey, StreamStarted
from penstock.middleware.core.budget import GAP_OVERHEAD, PACKET_OVERHEAD
from penstock.middleware.core.events import ReceiverInstruction
from penstock.middleware.core.incoming_stream import IncomingStream
from penstock.middleware.core.receiver import OUTDATED_MAX
from penstock.wire import RANGES_MAX, Packer, encode_gone
from unit.middleware_kit import GROUP, MS, SOURCE, of, packets, receiver, take

EXPIRY_NS = 5_000 * MS
STRANGER = ("10.0.0.66", 6_666)


def made_up(first: int, count: int) -> list[bytes]:
    """One packet from each of this many publishers."""
    return [packets(1, publisher_id=number)[0] for number in range(first, first + count)]


@pytest.mark.spec("AUTH-4")
def test_forged_publishers_evict_each_other_and_not_real_ones() -> None:
    core = receiver(streams_max=8)
    take(core, packets(1, publisher_id=1))
    take(core, packets(1, first=2, publisher_id=1), EXPIRY_NS)  # established
    now_ns = EXPIRY_NS
    heard = []
    for step in range(200):
        now_ns += MS
        take(core, made_up(1_000 + 10 * step, 10), now_ns, STRANGER)
        heard += of(Deliver, take(core, packets(1, first=3 + step, publisher_id=1), now_ns))
        heard += of(Deliver, take(core, packets(1, first=1 + step, publisher_id=2), now_ns))  # new, and continues
    assert [(each.stream.publisher_id, each.sequence) for each in heard] == [
        pair for step in range(200) for pair in ((1, 3 + step), (2, 1 + step))
    ]
    assert len(core.streams()) == 8
    assert {1, 2} <= {each.key.publisher_id for each in core.streams()}
    assert len(core._positions) <= 8
    assert len(core._newcomers) <= 8
    assert core.counters.by_cause("streams_ended")[Cause.STREAM_LIMIT] > 1_900


@pytest.mark.spec("AUTH-4")
def test_forged_publishers_evict_none_of_many_proven_streams() -> None:
    core = receiver(streams_max=300)
    real = range(1, 201)
    for sequence, now_ns in ((1, 0), (2, EXPIRY_NS)):
        for publisher_id in real:
            take(core, packets(1, first=sequence, publisher_id=publisher_id), now_ns)
    take(core, made_up(1_000, 300), EXPIRY_NS + MS, STRANGER)
    assert {each.key.publisher_id for each in core.streams()} >= set(real)
    assert core.counters.by_cause("streams_ended") == {Cause.STREAM_LIMIT: 200}


@pytest.mark.spec("AUTH-4")
def test_a_full_table_of_proven_streams_refuses_a_further_stream() -> None:
    core = receiver(streams_max=200)
    for sequence, now_ns in ((1, 0), (2, EXPIRY_NS)):
        for publisher_id in range(1, 201):
            take(core, packets(1, first=sequence, publisher_id=publisher_id), now_ns)
    assert take(core, made_up(1_000, 1), EXPIRY_NS + MS, STRANGER) == []
    assert core.counters.by_cause("packets_dropped") == {Cause.STREAM_LIMIT: 1}
    assert len(core.streams()) == 200


@pytest.mark.spec("AUTH-4")
def test_an_evicted_stream_is_reported_first() -> None:
    core = receiver(streams_max=1)
    take(core, packets(1, publisher_id=1))
    answers = take(core, packets(1, publisher_id=2), MS)
    kinds = [type(each) for each in answers]
    assert kinds == [StreamEnded, StreamStarted, Deliver]
    assert answers[0].cause == Cause.STREAM_LIMIT


def gapped(publisher_id: int, count: int, size: int, first: int = 3) -> list[bytes]:
    """Packets that wait for packet 2, which is missing."""
    packer = Packer(publisher_id, GROUP, 1, first_sequence=first)
    made = []
    for _ in range(count):
        packer.add("t", bytes(size))
        made.append(packer.flush() or b"")
    return made


@pytest.mark.spec("AUTH-4")
def test_buffers_are_bounded_in_total_and_newcomers_are_evicted_first() -> None:
    core = receiver(buffer_bytes_max=64 * 1024)
    take(core, packets(1, publisher_id=1))
    take(core, packets(1, first=2, publisher_id=1), EXPIRY_NS)
    take(core, gapped(1, 10, 1_000, first=4), EXPIRY_NS)  # an established stream waits for packet 3
    receipts = []
    for publisher_id in range(2, 40):
        answers = take(core, [*packets(1, publisher_id=publisher_id), *gapped(publisher_id, 10, 1_000)], EXPIRY_NS)
        receipts += of(LossReceipt, answers)
        held = sum(
            each.window_bytes + PACKET_OVERHEAD * each.window_packets + GAP_OVERHEAD * len(each.gaps)
            for each in core.streams()
        )
        assert held == core._budget.used <= 64 * 1024
    assert {each.cause for each in receipts} == {Cause.MEMORY}
    assert {each.stream.publisher_id for each in receipts} <= set(range(2, 40))
    (known,) = [each for each in core.streams() if each.key == StreamKey(1, GROUP)]
    assert known.window_packets == 10


@pytest.mark.spec("AUTH-4")
def test_streams_are_compared_once_for_many_packets_over_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releasing one stream at a time, and comparing all for each packet, lets a flood cost quadratic time."""
    core = receiver(buffer_bytes_max=1_000_000)
    compared = 0
    original = core._is_proven

    def counted(stream: IncomingStream) -> bool:
        nonlocal compared
        compared += 1
        return original(stream)

    monkeypatch.setattr(core, "_is_proven", counted)
    streams = 2_000
    for publisher_id in range(1, streams + 1):
        take(core, [*packets(1, publisher_id=publisher_id), *gapped(publisher_id, 1, 1_000)])
        assert core._budget.used <= 1_000_000
    assert core.counters.by_cause("packets_lost")[Cause.MEMORY] > 1_000
    assert compared < 20 * streams
    take(core, gapped(streams + 1, 1, 1_000))
    assert core._budget.used > 0


@pytest.mark.spec("AUTH-4")
def test_only_streams_with_due_requests_are_visited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Visiting every stream with missing packets at each request lets many forged streams cost quadratic time."""
    core = receiver(nack_attempts_max=2)
    looked = 0
    original = IncomingStream.due_ranges

    def counted(stream: IncomingStream, now_ns: int) -> tuple[list[tuple[int, int]], list[ReceiverInstruction]]:
        nonlocal looked
        looked += 1
        return original(stream, now_ns)

    monkeypatch.setattr(IncomingStream, "due_ranges", counted)
    streams, now_ns = 1_000, 0
    for publisher_id in range(1, streams + 1):
        now_ns += MS
        take(core, [*packets(1, publisher_id=publisher_id), *gapped(publisher_id, 1, 100)], now_ns)
        core.handle(Tick(), now_ns)
    assert core.counters["nacks_sent"] > streams
    assert looked <= 3 * streams, "two requests and the receipt of each"
    assert len(core._requests_due) < 100, "most streams have given up"


@pytest.mark.spec("AUTH-4")
def test_obsolete_request_deadlines_are_bounded() -> None:
    core = receiver(nack_retry_ms=10_000)
    for number in range(2_000):
        now_ns = number * MS
        take(core, packets(1, first=1 + 2 * number), now_ns)  # a new hole each time, due sooner than the former ones
        core.handle(Tick(), now_ns)
        assert len(core._requests_due) <= 2 + OUTDATED_MAX
    assert core.counters["nacks_sent"] > OUTDATED_MAX


@pytest.mark.spec("AUTH-4")
def test_unfinished_messages_count_towards_the_limit() -> None:
    core = receiver(buffer_bytes_max=100_000)
    for publisher_id in range(1, 20):
        packer = Packer(publisher_id, GROUP, 1)
        take(core, packer.add("t", bytes(50_000)))  # all fragments but the last
        assert core._budget.used <= 100_000
    assert core.counters.by_cause("messages_lost")[Cause.MEMORY] > 10


@pytest.mark.spec("AUTH-4")
def test_ranges_of_missing_packets_count_towards_the_limit() -> None:
    """A GONE that names every second missing packet splits one range into many, and no packet waits."""
    core = receiver(buffer_bytes_max=256 * 1024)
    for publisher_id in range(1, 20):
        take(core, [*packets(1, publisher_id=publisher_id), *packets(1, first=8_000, publisher_id=publisher_id)])
        gone = [(number, number) for number in range(3, 7_999, 2)]
        for at in range(0, len(gone), RANGES_MAX):
            take(core, [encode_gone(publisher_id, GROUP, 1, gone[at : at + RANGES_MAX])])
            assert core._budget.used <= 256 * 1024
            assert sum(len(each.gaps) for each in core.streams()) <= 256 * 1024 // GAP_OVERHEAD
    assert core.counters.by_cause("packets_lost")[Cause.MEMORY] > 0


@pytest.mark.spec("AUTH-4")
def test_an_ended_stream_frees_its_memory() -> None:
    core = receiver()
    take(core, [*packets(1), *gapped(42, 10, 1_000)])
    assert core._budget.used > 10_000
    core.handle(DatagramReceived(b"", SOURCE), 0)
    now_ns = 0
    while core.streams():
        now_ns += 500 * MS
        core.handle(Tick(), now_ns)
    assert core._budget.used == 0
    assert core._budget.holders == {}
