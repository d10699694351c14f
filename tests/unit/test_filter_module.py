"""A filter module between a network and its applications: repair by the module, and recipients of packets."""

import pytest

from penstock.base.counters import Cause
from penstock.filter.core import message_starts
from penstock.filter.core.events import Collision, Multicast
from penstock.middleware import StreamKey
from penstock.wire import Kind, Packer, Packet, PacketFlag, decode, encode_gone, encode_nack, restamp
from unit.filter_module_kit import (
    GROUP,
    KEY,
    MS,
    OTHER_GROUP,
    PUBLISHER_ID,
    SOURCE,
    address_of,
    harness,
    packets,
    stream,
)


def numbers(found):  # type: ignore[no-untyped-def]
    return [(each.sequence, each.gap, "".join(message.topic for message in each)) for each in found]


@pytest.mark.spec("FILT-4", "FILT-7")
@pytest.mark.parametrize("in_batches", [True, False])
def test_each_application_gets_its_messages_and_gaps_account_for_the_rest(in_batches: bool) -> None:
    module = harness()
    module.attach(1, "a", "b")
    module.attach(2, "c")
    data = stream("abxcaxb")
    module.take(data[:1])
    (module.take_batch if in_batches else module.take)(data[1:])
    assert module.got(1) == [(1, 0, "a"), (2, 0, "b"), (5, 2, "a"), (7, 1, "b")]
    assert module.got(2) == [(4, 3, "c")]
    assert module.module.counters["messages_judged"] == 7
    assert module.module.counters["messages_unwanted"] == 2
    assert module.module.counters["messages_delivered"] == 5


@pytest.mark.spec("FILT-4", "FILT-10")
def test_one_request_for_all_applications_and_everything_in_order() -> None:
    module = harness()
    for application in (1, 2, 3):
        module.attach(application, "a", "b")
    data = stream("abab")
    module.take([data[0], data[3]])
    assert module.got(1) == [(1, 0, "a")]
    module.tick()
    (request,) = module.unicast[SOURCE]
    assert (request.kind, request.ranges) == (Kind.NACK, [(2, 3)])
    module.take(restamp(each, set_flags=PacketFlag.REPAIR) for each in data[1:3])
    for application in (1, 2, 3):
        found = module.sent[module.attached[application].consumer]
        assert not any(packet.flags & PacketFlag.REPAIR for packet in found)
    assert module.got(1) == [(2, 0, "b"), (3, 0, "a"), (4, 0, "b")]


@pytest.mark.spec("FILT-10")
def test_permanently_lost_packets_are_in_no_gap_and_are_reported() -> None:
    module = harness(receiver={"nack_attempts_max": 1, "nack_retry_ms": 1})
    module.attach(1, "a")
    module.attach(2, "b")
    data = stream("abxxxxa")
    module.take([*data[:4], data[6]])
    module.tick()
    module.take([encode_gone(PUBLISHER_ID, GROUP, 1, [(5, 6)])])
    # each is brought up to date with packet 4, then all get packet 7, then the loss is reported
    assert module.got(1) == [(1, 0, "a"), (4, 2, ""), (7, 0, "a")]
    assert module.got(2) == [(2, 1, "b"), (4, 1, ""), (7, 0, "")]
    for application in (1, 2):
        (gone,) = module.unicast[address_of(application)]
        assert (gone.kind, gone.ranges) == (Kind.GONE, [(5, 6)])
    assert module.module.counters.by_cause("packets_lost") == {Cause.GONE: 2}
    (again,) = module.nack(1, (5, 6))
    assert (again.kind, again.ranges) == (Kind.GONE, [(5, 6)])


@pytest.mark.spec("FILT-10")
def test_repairs_are_filtered_for_the_requester_and_cover_the_range() -> None:
    module = harness()
    module.attach(1, "a")
    module.attach(2, "b")
    module.take(stream("abxaxxbxa"))
    assert numbers(module.nack(1, (1, 8))) == [(1, 0, "a"), (4, 2, "a"), (8, 3, "")]
    assert numbers(module.nack(2, (3, 7))) == [(7, 4, "b")]
    assert all(each.flags & PacketFlag.REPAIR for each in module.unicast[address_of(1)])
    assert module.got(1) == [(1, 0, "a"), (4, 2, "a"), (9, 4, "a")]  # repairs do not change the reported positions
    assert module.module.counters["repairs_sent"] == 4


@pytest.mark.spec("FILT-10")
def test_recently_repaired_packets_are_not_sent_again() -> None:
    module = harness(repair_hold_ms=5)
    module.attach(1, "a")
    module.attach(2, "a")
    module.take(stream("aaaaaa"))
    assert len(module.nack(1, (2, 3))) == 2
    assert numbers(module.nack(1, (1, 5))) == [(1, 0, "a"), (4, 0, "a"), (5, 0, "a")]
    assert len(module.nack(2, (2, 3))) == 2
    assert module.module.counters["repairs_suppressed"] == 2
    module.now_ns += 5 * MS
    assert len(module.nack(1, (2, 3))) == 2


@pytest.mark.spec("FILT-10")
def test_one_request_causes_a_bounded_number_of_packets() -> None:
    module = harness(repair_packets_max=10)
    module.attach(1, "a")
    module.take(stream("x" * 50 + "a" * 50))
    assert numbers(module.nack(1, (1, 100))) == [(10, 9, "")]
    assert len(module.nack(1, (41, 100))) == 1
    assert len(module.nack(1, (51, 100), (55, 2**63))) == 10


@pytest.mark.spec("FILT-10")
def test_packets_that_are_no_longer_kept_are_reported_as_gone() -> None:
    module = harness(kept_packets_max=4)
    module.attach(1, "a")
    module.take(stream("aaaaaaaa"))
    repaired, gone = module.nack(1, (3, 5))
    assert repaired.sequence == 5
    assert gone.ranges == [(3, 4)]
    assert module.module.counters["repairs_unavailable"] == 2


def test_requests_of_strangers_and_for_unknown_streams_are_dropped_and_counted() -> None:
    module = harness()
    module.attach(1, "a", groups=[GROUP])
    module.take(stream("aaa"))
    module.take([encode_nack(PUBLISHER_ID, GROUP, 1, [(1, 2)])], source=("10.0.0.66", 1))
    assert module.module.counters.by_cause("packets_dropped") == {Cause.UNKNOWN_APPLICATION: 1}
    assert module.nack(1, (1, 1), key=StreamKey(7, GROUP)) == []
    assert module.nack(1, (1, 1), key=StreamKey(PUBLISHER_ID, OTHER_GROUP)) == []
    assert module.nack(1, (1, 1), epoch=2) == []
    assert module.module.counters.by_cause("packets_dropped")[Cause.UNKNOWN_STREAM] == 3
    assert module.unicast[("10.0.0.66", 1)] == []


def test_multicast_requests_suppress_the_modules_own_request() -> None:
    module = harness(receiver={"nack": "multicast", "nack_delay_us": 500})
    module.attach(1, "a")
    data = stream("aaa")
    module.take([data[0], data[2]])
    module.take([encode_nack(PUBLISHER_ID, GROUP, 1, [(2, 2)])], source=("10.0.0.3", 9))
    module.tick(MS)
    assert module.others == []
    module.tick(20 * MS)
    assert [type(each) for each in module.others] == [Multicast]


@pytest.mark.spec("FILT-2", "FILT-6")
def test_fragments_are_matched_by_the_first_one_in_repairs_too() -> None:
    module = harness()
    module.attach(1)
    module.attach(2)
    module.want(1, "big", content=b"YES")
    module.want(2, "big", content=b"NO")
    packer = Packer(PUBLISHER_ID, GROUP, 1, packet_size_max=384)
    data = packer.add("big", b"YES" + bytes(1_000))
    data += packer.add("big", b"NO" + bytes(1_000))
    data.append(packer.flush())
    module.take_batch(data)
    first, second = (module.got(application) for application in (1, 2))
    assert first == [(1, 0, "big"), (2, 0, "big"), (3, 0, "big"), (4, 0, "big")]
    assert second == [(5, 4, "big"), (6, 0, "big"), (7, 0, "big"), (8, 0, "big")]
    for number, (owner, other) in {3: (1, 2), 8: (2, 1)}.items():
        assert numbers(module.nack(owner, (number, number))) == [(number, 0, "big")]
        assert numbers(module.nack(other, (number, number))) == [(number, 0, "")]


@pytest.mark.spec("FILT-6", "ADM-7")
def test_fragments_with_a_lost_beginning_never_reach_subscribers_of_another_topic() -> None:
    module = harness(kept_packets_max=2)
    module.attach(1, "big")
    module.attach(2, "other")
    packer = Packer(PUBLISHER_ID, GROUP, 1, packet_size_max=384)
    data = [*packer.add("big", bytes(1_000)), packer.flush()]
    module.take_batch([each for each in data if each is not None])
    assert numbers(module.nack(1, (3, 4))) == [(3, 0, "big"), (4, 0, "big")]
    assert numbers(module.nack(2, (3, 4))) == [(4, 1, "")]


@pytest.mark.parametrize("kept_packets_max", [8_192, 300])
def test_requests_for_many_fragments_scan_the_message_once(
    kept_packets_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = harness(kept_packets_max=kept_packets_max)
    module.attach(1, "big")
    packer = Packer(PUBLISHER_ID, GROUP, 1, packet_size_max=384)
    data = packer.add("big", bytes(150_000))
    last = len(data)
    assert last > 400
    module.take_batch(data)
    decoded: list[bytes] = []

    def counted(data: bytes) -> Packet:
        decoded.append(data)
        return decode(data)

    monkeypatch.setattr(message_starts, "decode", counted)
    for start in range(0, 100, 50):
        ranges = [(number, number) for number in range(last - 200 + start, last - 150 + start, 2)]
        assert numbers(module.nack(1, *ranges)) == [(number, 0, "big") for number, _ in ranges]
    assert len(decoded) < last + 100


@pytest.mark.spec("FILT-5")
def test_keep_alives_and_goodbyes_reach_all_applications_with_the_right_gap() -> None:
    module = harness()
    module.attach(1, "a")
    module.attach(2, "b")
    module.take(stream("ax"))
    keep_alive = packets([], first=3, flags=PacketFlag.KEEP_ALIVE)
    goodbye = packets([], first=4, flags=PacketFlag.KEEP_ALIVE | PacketFlag.GOODBYE)
    module.take_batch(keep_alive + goodbye)
    assert module.got(1) == [(1, 0, "a"), (3, 1, ""), (4, 0, "")]
    assert module.got(2) == [(3, 2, ""), (4, 0, "")]
    assert [each.cause for each in module.ends(2)] == [Cause.GOODBYE]
    module.take(goodbye)  # the publisher repeats it, because some receiver may have missed it
    assert module.got(1) == [(4, 0, "")]
    # the packets before the goodbye can still be requested
    assert numbers(module.nack(2, (1, 4))) == [(3, 2, ""), (4, 0, "")]
    module.tick(6_000 * MS)
    module.take(goodbye)
    assert module.got(1) == []
    assert module.nack(2, (1, 4)) == []


@pytest.mark.spec("FILT-5")
def test_a_silent_publisher_expires_and_all_applications_are_notified() -> None:
    module = harness(receiver={"publisher_expiry_ms": 100})
    module.attach(1, "a")
    module.attach(2, "b")
    module.take(stream("abx"))
    for _ in range(5):
        module.tick(25 * MS)
    assert module.got(1) == [(1, 0, "a"), (3, 1, "")]
    assert module.got(2) == [(2, 1, "b"), (3, 0, "")]
    assert [(each.next_sequence, each.cause) for each in module.ends(1)] == [(4, Cause.EXPIRED)]
    # the publisher returns, and continues its numbers
    module.take(stream("b", first=5))
    module.tick()
    assert module.unicast[SOURCE][-1].ranges == [(4, 4)]
    module.take(restamp(each, set_flags=PacketFlag.REPAIR) for each in stream("a", first=4))
    assert module.got(1) == [(4, 0, "a")]
    assert module.got(2) == [(5, 1, "b")]
    assert [each.next_sequence for each in module.positions(1)] == [1, 4]


@pytest.mark.spec("FILT-4", "FILT-6")
def test_a_late_application_learns_the_position_of_each_stream() -> None:
    module = harness()
    module.attach(1, "a")
    module.take(stream("aaa"))
    module.take(stream("aa", publisher_id=7, group=OTHER_GROUP, epoch=3), source=("10.0.0.9", 4))
    module.attach(2, "a")
    found = {each.stream.publisher_id: (each.epoch, each.next_sequence, each.source) for each in module.positions(2)}
    assert found == {7: (3, 3, ("10.0.0.9", 4)), PUBLISHER_ID: (1, 4, SOURCE)}
    module.take(stream("xa", first=4))
    assert module.got(2) == [(5, 1, "a")]


@pytest.mark.spec("FILT-6")
def test_interests_change_while_messages_flow_and_no_matching_message_is_lost() -> None:
    module = harness()
    module.attach(1, "a")
    module.take(stream("abab"))
    module.want(1, "b")
    module.take(stream("abab", first=5))
    module.unwant(1, "a")
    module.take(stream("abab", first=9))
    assert [number for number, _, _ in module.got(1)] == [1, 3, 5, 6, 7, 8, 10, 12]
    assert module.positions(1)[0].next_sequence == 1
    assert len(module.positions(1)) == 1


@pytest.mark.spec("FILT-15")
def test_a_restarted_publisher_starts_again_and_two_publishers_with_one_id_are_reported() -> None:
    module = harness()
    module.attach(1, "a")
    module.take(stream("aa"))
    module.take(stream("xa", epoch=2))
    assert module.got(1) == [(1, 0, "a"), (2, 0, "a"), (2, 1, "a")]
    assert [(each.epoch, each.next_sequence) for each in module.positions(1)] == [(1, 1), (2, 1)]
    assert [(each.epoch, each.next_sequence, each.cause) for each in module.ends(1)] == [(1, 3, Cause.RESTARTED)]
    module.take(stream("a", epoch=2, first=3), source=("10.0.0.66", 1))
    expected = Collision(KEY, 2, SOURCE, ("10.0.0.66", 1))
    assert module.others == [expected]
    assert module.told[1][-1] == expected
    assert module.got(1) == []
    assert module.module.counters.by_cause("packets_dropped") == {Cause.ID_COLLISION: 1}


@pytest.mark.spec("FILT-14")
def test_invalid_packets_are_counted_and_dropped() -> None:
    module = harness()
    module.attach(1, "a")
    good = stream("aaaa")
    module.take(good[:1])
    module.take_batch([b"", b"x" * 100, good[1][:-8], good[1][:60] + b"\xff" + good[1][61:], good[1]])
    assert module.got(1) == [(1, 0, "a"), (2, 0, "a")]
    assert sum(module.module.counters.by_cause("packets_dropped").values()) == 4


def test_an_application_that_leaves_does_not_affect_the_others() -> None:
    module = harness()
    module.attach(1, "a")
    module.attach(2, "a")
    module.take(stream("a"))
    module.detach(1)
    assert list(module.consumers) == [module.attached[2].consumer]
    module.take(stream("xa", first=2))
    assert module.got(2) == [(1, 0, "a"), (3, 1, "a")]
    module.take([encode_nack(PUBLISHER_ID, GROUP, 1, [(1, 1)])], source=address_of(1))
    assert module.module.counters.by_cause("packets_dropped") == {Cause.UNKNOWN_APPLICATION: 1}
    module.attach(3, "a")  # reuses its number
    assert module.attached[3].consumer == module.attached[1].consumer
    module.take(stream("a", first=4))
    assert module.got(3)[-1] == (4, 0, "a")
    module.detach(1)
    assert len(module.consumers) == 2


def test_packets_are_flushed_from_a_full_outbox() -> None:
    module = harness(applications_max=4)
    for application in range(4):
        module.attach(application, ">")
    packer = Packer(PUBLISHER_ID, GROUP, 1, packet_size_max=60_000)
    data = []
    for _ in range(30):
        packer.add("a", bytes(50_000))
        data.append(packer.flush())
    module.take(data[:1])
    module.take_batch(data[1:])
    for application in range(4):
        assert [number for number, _, _ in module.got(application)] == list(range(1, 31))


@pytest.mark.spec("FILT-7")
def test_a_packet_with_several_messages_is_rewritten() -> None:
    module = harness()
    module.attach(1, "a")
    module.take(packets([("a", b"1"), ("b", b"2"), ("a", b"3")], [("b", b"4")]))
    (packet,) = module.sent[module.attached[1].consumer]
    assert [bytes(message.payload) for message in decode(bytes(packet.data))] == [b"1", b"3"]
