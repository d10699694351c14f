"""A filter module without repair of its own: it never waits, and receivers request only missing packets."""

import pytest

from penstock.base.counters import Cause
from penstock.filter.core.pass_through import PassThroughStream
from penstock.middleware import DatagramReceived, Expect, Receiver, ReceiverConfig, Tick, Unicast
from penstock.middleware.core.budget import GAP_OVERHEAD
from penstock.wire import Kind, PacketFlag, decode, encode_gone, encode_nack, restamp
from unit.filter_module_kit import GROUP, KEY, MS, PUBLISHER_ID, SOURCE, Harness, address_of, harness, packets, stream
from unit.middleware_kit import NoRandomness


def passing(**more: object) -> Harness:
    module = harness(repair="receivers", **more)  # type: ignore[arg-type]
    module.attach(1, "a")
    module.attach(2, "b")
    return module


def repaired(data: list[bytes]) -> list[bytes]:
    return [restamp(each, set_flags=PacketFlag.REPAIR) for each in data]


@pytest.mark.spec("FILT-9")
@pytest.mark.parametrize("in_batches", [True, False])
def test_before_a_jump_accounts_are_brought_up_to_date_and_later_packets_reach_all(in_batches: bool) -> None:
    module = passing()
    data = stream("abxxxxxaab")
    module.take(data[:1])
    (module.take_batch if in_batches else module.take)([*data[1:4], *data[6:]])  # packets 5 and 6 are lost
    # packet 4 brings both up to date; packet 7 is empty for both, and goes to both with gap 0
    assert module.got(1) == [(1, 0, "a"), (4, 2, ""), (7, 0, ""), (8, 0, "a"), (9, 0, "a")]
    assert module.got(2) == [(2, 1, "b"), (4, 1, ""), (7, 0, ""), (10, 2, "b")]
    module.tick(100 * MS)
    assert module.unicast == {}  # the module requests nothing
    assert module.module.counters["packets_left"] == 2


@pytest.mark.spec("FILT-9")
def test_an_application_that_is_up_to_date_gets_no_packet_for_it() -> None:
    module = passing()
    data = stream("aaxa")
    module.take([*data[:2], data[3]])
    assert module.got(1) == [(1, 0, "a"), (2, 0, "a"), (4, 0, "a")]
    assert module.got(2) == [(2, 1, ""), (4, 0, "")]


@pytest.mark.spec("FILT-9", "FILT-10")
def test_late_and_repeated_packets_go_to_all_applications_with_gap_0() -> None:
    module = passing()
    data = stream("aabaab")
    module.take([data[0], data[3], data[1]])  # 2 was only late, 3 is missing
    assert module.got(1) == [(1, 0, "a"), (4, 0, "a"), (2, 0, "a")]
    assert module.got(2) == [(1, 0, ""), (4, 0, ""), (2, 0, "")]
    module.take([data[1]])
    module.take(repaired(data[2:3]))
    assert module.got(1) == [(3, 0, "")]
    assert module.got(2) == [(3, 0, "b")]
    module.take(repaired(data[2:3]))  # requested by another receiver: an application may lack it as well
    assert module.got(2) == [(3, 0, "b")]
    module.got(1)
    module.take(data[4:])
    assert module.got(1) == [(5, 0, "a")]
    assert module.got(2) == [(6, 1, "b")]
    assert module.module.counters.by_cause("packets_dropped") == {Cause.DUPLICATE: 1}


@pytest.mark.spec("FILT-9")
def test_an_application_requests_exactly_the_missing_packets() -> None:
    module = passing()
    data = stream("axxxxxxxa")
    module.take([*data[:4], *data[6:]])
    application = Receiver(ReceiverConfig(nack_delay_us=0), NoRandomness())
    filter_address = ("10.0.0.2", 7_400)
    (position,) = module.positions(1)
    expected = Expect(KEY, 1, position.next_sequence, filter_address, repair_source=position.source)
    application.handle(expected, 0)
    for packet in module.sent[module.attached[1].consumer]:
        application.handle(DatagramReceived(bytes(packet.data), filter_address), 0)
    (request,) = application.handle(Tick(), 0)
    assert isinstance(request, Unicast)
    assert request.destination == SOURCE
    assert decode(request.data).ranges == [(5, 6)]


@pytest.mark.spec("FILT-10")
def test_reports_on_the_group_are_forwarded_to_the_applications() -> None:
    module = passing(receiver={"nack": "multicast"})
    data = stream("axxa")
    module.take([data[0], data[3]])
    gone = encode_gone(PUBLISHER_ID, GROUP, 1, [(2, 2)])
    module.take([gone])
    module.take([gone], source=("10.0.0.66", 1))  # not reports from an address whose packets are dropped
    for application in (1, 2):
        (heard,) = module.unicast[address_of(application)]
        assert (heard.kind, heard.ranges) == (Kind.GONE, [(2, 2)])
    module.take([encode_nack(PUBLISHER_ID, GROUP, 1, [(3, 3)])], source=address_of(1))
    assert [each.kind for each in module.unicast[address_of(1)]] == [Kind.GONE]
    assert [each.kind for each in module.unicast[address_of(2)]] == [Kind.GONE, Kind.NACK]
    assert module.module.counters.by_cause("packets_dropped") == {Cause.UNEXPECTED: 1}


def test_where_requests_go_to_the_publisher_the_module_answers_none() -> None:
    module = passing()
    module.take(stream("aaa"))
    assert module.nack(1, (1, 2)) == []
    assert module.unicast[address_of(2)] == []
    assert module.module.counters.by_cause("packets_dropped") == {Cause.UNEXPECTED: 1}


@pytest.mark.spec("FILT-5")
def test_goodbyes_end_a_stream_and_are_forwarded_again() -> None:
    module = passing()
    data = stream("aa") + packets([], first=3, flags=PacketFlag.KEEP_ALIVE | PacketFlag.GOODBYE)
    module.take([data[0], data[2]])
    assert module.ends(1) == []  # packet 2 may still come
    module.take(repaired(data[1:2]))
    assert [each.cause for each in module.ends(1)] == [Cause.GOODBYE]
    assert module.got(1) == [(1, 0, "a"), (3, 0, ""), (2, 0, "a")]
    module.take([data[2], *repaired(data[1:2])])
    assert module.got(1) == [(3, 0, ""), (2, 0, "a")]
    module.take([data[2]], source=("10.0.0.66", 1))
    assert module.got(1) == []


def test_packets_missing_for_too_long_are_forgotten() -> None:
    module = passing(receiver={"window_packets_max": 4})
    data = stream("aaaaaaaaaa")
    module.take([data[0], *data[3:]])
    module.got(1)
    module.take(data[1:3])
    assert module.got(1) == []
    assert module.module.counters.by_cause("packets_dropped") == {Cause.DUPLICATE: 2}


@pytest.mark.spec("AUTH-4")
def test_ranges_of_missing_packets_are_bounded_in_total_and_repairs_are_still_forwarded() -> None:
    module = passing(receiver={"buffer_bytes_max": 10 * GAP_OVERHEAD})
    data = stream("a" * 200)
    module.take(data[::2])
    receiver = module.module.receiver
    assert receiver._budget.used <= receiver._budget.bytes_max
    (received,) = receiver.streams()
    assert isinstance(received, PassThroughStream)
    assert len(received.missing) <= 10
    assert not received.missing.overlaps(2, 2)
    module.got(1)
    module.take(repaired(data[1:2]))
    assert module.got(1) == [(2, 0, "a")]
