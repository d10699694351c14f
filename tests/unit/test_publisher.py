import pytest

from penstock.base.core import Tick
from penstock.base.counters import Cause
from penstock.base.errors import LocalProtocolError, TopicError
from penstock.middleware import (
    Close,
    Closed,
    DatagramReceived,
    Multicast,
    OutgoingMessage,
    Publish,
    Publisher,
    PublisherConfig,
    Unicast,
)
from penstock.wire import Kind, PacketFlag, decode, encode_nack
from unit.middleware_kit import GROUP, MS, PUBLISHER_ID, SOURCE, of, packets, publish, publisher


def nack(core: Publisher, *ranges: tuple[int, int], now_ns: int = 0, epoch: int = 1) -> list:
    return core.handle(DatagramReceived(encode_nack(PUBLISHER_ID, GROUP, epoch, ranges), SOURCE), now_ns)


@pytest.mark.spec("FILT-3")
def test_messages_of_one_event_share_a_packet_and_are_sent_at_once() -> None:
    sent = publish(publisher(), b"a", b"b", b"c")
    assert [len(packet) for packet in sent] == [3]
    assert (sent[0].sequence, sent[0].epoch, sent[0].gap, sent[0].flags) == (1, 1, 0, 0)


@pytest.mark.spec("FILT-3")
def test_appended_messages_share_packets() -> None:
    core = publisher(packet_size_max=600)
    publish(core, b"first")
    stream = core.stream(GROUP, 0)
    for number in range(5):
        assert stream.append("t", bytes([number]) * 200, 3, 4)
    assert stream.take_unsent(7) == (2, 4)
    assert stream.take_unsent(7) == (1, 0)
    sent = [decode(stream.kept.get(sequence)) for sequence in (2, 3, 4)]
    assert [[message.payload[0] for message in packet] for packet in sent] == [[0, 1], [2, 3], [4]]
    assert {(message.model_id, message.model_version) for packet in sent for message in packet} == {(3, 4)}
    assert [packet.sequence for packet in publish(core, b"later")] == [5]
    assert core.next_deadline_ns() == stream.silence_first_ns  # of the last publish(), at 0
    for sequence in (2, 3, 4):
        assert [decode(answer.data).sequence for answer in nack(core, (sequence, sequence))] == [sequence]


def test_a_message_that_needs_the_core_is_not_appended() -> None:
    core = publisher(packet_size_max=600)
    stream = core.stream(GROUP, 0)
    assert not stream.append("t", b"x", 0, 0)  # the topic has not been checked
    publish(core, b"first")
    assert not stream.append("t", bytes(600), 0, 0)
    assert not stream.append("t", b"x", 70_000, 0)
    assert not stream.append("t", b"x", 0, -1)
    assert stream.take_unsent(0) == (1, 0)
    core.handle(Close(), 0)
    assert not stream.append("t", b"x", 0, 0)


@pytest.mark.spec("FILT-2")
def test_a_long_message_is_fragmented() -> None:
    sent = publish(publisher(), bytes(10_000))
    assert len(sent) == 8
    assert [packet.sequence for packet in sent] == list(range(1, 9))
    assert b"".join(bytes(message.payload) for packet in sent for message in packet) == bytes(10_000)


def test_keep_alives_become_less_frequent_during_silence() -> None:
    core = publisher(keep_alive_first_ms=10, keep_alive_ms=100)
    publish(core, b"a")
    times = []
    for _ in range(6):
        now_ns = core.next_deadline_ns()
        assert now_ns is not None
        (answer,) = core.handle(Tick(), now_ns)
        packet = decode(answer.data)
        assert packet.flags == PacketFlag.KEEP_ALIVE
        assert len(packet) == 0
        times.append(now_ns // MS)
    assert times == [10, 30, 70, 150, 250, 350]
    assert core.next_sequence(GROUP) == 8  # a keep-alive has a number like any other packet


def test_one_of_every_n_packets_has_the_keep_alive_mark() -> None:
    core = publisher(keep_alive_packets=3)
    sent = publish(core, *[bytes(1_000)] * 9, now_ns=0) + publish(core, *[bytes(1_000)] * 9, now_ns=1)
    marked = [packet.sequence for packet in sent if packet.flags & PacketFlag.KEEP_ALIVE]
    assert marked == [n for n in range(1, len(sent) + 1) if n % 3 == 0]


def test_a_busy_group_does_not_delay_keep_alives_of_a_quiet_one() -> None:
    core = publisher(keep_alive_first_ms=10, keep_alive_ms=100)
    publish(core, b"quiet")
    times = []
    for now_ms in range(1_000):
        core.handle(Publish(GROUP + 1, [OutgoingMessage("t", b"busy")]), now_ms * MS)
        answers = core.handle(Tick(), now_ms * MS)
        times += [now_ms for answer in answers if isinstance(answer, Multicast) and answer.group == GROUP]
    assert times[:4] == [10, 30, 70, 150]
    assert len(times) == 12


def test_an_unsendable_message_affects_only_itself() -> None:
    core = publisher()
    good, bad = OutgoingMessage("t", bytes(1_000)), OutgoingMessage("", b"no topic")
    with pytest.raises(LocalProtocolError, match="needs a topic"):
        core.handle(Publish(GROUP, [good, good, good, bad, good]), 0)
    sent = [decode(answer.data) for answer in core.handle(Tick(), 0)]
    assert [packet.sequence for packet in sent] == [1, 2, 3]
    assert [packet.sequence for packet in publish(core, b"later")] == [4]
    for sequence in (1, 2, 3, 4):
        assert [decode(answer.data).sequence for answer in nack(core, (sequence, sequence))] == [sequence]


def test_topics_are_checked_when_they_are_created() -> None:
    core = publisher()
    with pytest.raises(TopicError):
        core.handle(Publish(GROUP, [OutgoingMessage("a.* b", b"x")]), 0)


@pytest.mark.parametrize(("publisher_id", "epoch"), [(0, 1), (2**64, 1), (1, 0), (1, 2**32)])
def test_impossible_identities_are_refused_at_once(publisher_id: int, epoch: int) -> None:
    with pytest.raises(LocalProtocolError):
        Publisher(publisher_id, epoch, PublisherConfig())


def test_a_request_for_a_waiting_message_is_answered_with_nothing() -> None:
    core = publisher()
    publish(core, b"sent")
    assert core.stream(GROUP, 0).append("t", b"waiting", 0, 0)
    assert nack(core, (2, 2**64 - 1)) == []


def test_repairs_go_to_the_requester() -> None:
    core = publisher()
    originals = publish(core, *[bytes(1_000)] * 4)
    answers = nack(core, (2, 3))
    assert [answer.destination for answer in of(Unicast, answers)] == [SOURCE, SOURCE]
    repairs = [decode(answer.data) for answer in answers]
    assert [repair.sequence for repair in repairs] == [2, 3]
    assert all(repair.flags == PacketFlag.REPAIR for repair in repairs)
    assert [bytes(message.payload) for message in repairs[0]] == [bytes(message.payload) for message in originals[1]]


def test_several_requesters_get_one_multicast_repair() -> None:
    core = publisher(repair="multicast", repair_hold_ms=5)
    publish(core, b"a")
    assert len(of(Multicast, nack(core, (1, 1), now_ns=0))) == 1
    assert nack(core, (1, 1), now_ns=4 * MS) == []
    assert len(nack(core, (1, 1), now_ns=6 * MS)) == 1
    assert core.counters["repairs_suppressed"] == 1


def test_the_memory_of_repairs_is_bounded() -> None:
    core = publisher(repair="multicast", repair_hold_ms=3_600_000, retransmission_packets_max=16)
    for n in range(500):
        (packet,) = publish(core, b"a", now_ns=n)
        nack(core, (packet.sequence, packet.sequence), now_ns=n)
    assert len(core._streams[GROUP]._repaired_ns) <= 32


def test_the_first_keep_alive_pause_is_at_most_the_longest() -> None:
    core = publisher(keep_alive_first_ms=60_000, keep_alive_ms=100)
    publish(core, b"a")
    assert core.next_deadline_ns() == 100 * MS


def test_packets_that_are_no_longer_kept_are_named() -> None:
    core = publisher(retransmission_packets_max=2)
    for n in range(5):
        publish(core, b"a", now_ns=n)
    kept = core.kept(GROUP)
    assert kept is not None
    assert len(kept) == 2
    *repairs, gone = [decode(answer.data) for answer in nack(core, (1, 4), (7, 9))]
    assert [repair.sequence for repair in repairs] == [4]
    assert (gone.kind, gone.ranges) == (Kind.GONE, [(1, 3)])  # 7 to 9 have not been sent yet
    assert core.counters["repairs_unavailable"] == 3


def test_the_buffer_is_bounded_in_bytes() -> None:
    core = publisher(retransmission_bytes_max=3_000)
    for n in range(9):
        publish(core, bytes(1_000), now_ns=n)
    kept = core.kept(GROUP)
    assert kept is not None
    assert kept.bytes_kept <= 3_000
    assert len(kept) == 2


def test_a_single_request_is_bounded() -> None:
    core = publisher(repair_packets_max=3)
    for n in range(10):
        publish(core, b"a", now_ns=n)
    assert len(nack(core, *[(1, 10)] * 50)) == 3


@pytest.mark.parametrize("size", [1, 2**63])
def test_hostile_ranges_cost_nothing(size: int) -> None:
    core = publisher()
    publish(core, b"a")
    assert len(nack(core, (1, 2**64 - 1), (2**63, 2**63 + size - 1))) == 1


def test_requests_for_others_and_invalid_datagrams_are_not_answered() -> None:
    core = publisher()
    publish(core, b"a")
    assert nack(core, (1, 1), epoch=2) == []
    foreign = encode_nack(PUBLISHER_ID + 1, GROUP, 1, [(1, 1)])
    other_group = encode_nack(PUBLISHER_ID, GROUP + 1, 1, [(1, 1)])
    for data in (foreign, other_group, packets(1)[0], b"", b"garbage" * 20, other_group[:-1]):
        assert core.handle(DatagramReceived(data, SOURCE), 0) == []
    expected = {Cause.FOREIGN: 2, Cause.TRUNCATED: 1, Cause.UNKNOWN_STREAM: 2}
    assert core.counters.by_cause("packets_dropped") == expected


def test_a_goodbye_is_the_last_packet_and_is_repeated_during_the_linger_time() -> None:
    core = publisher(linger_ms=50, keep_alive_first_ms=10, keep_alive_packets=1)
    publish(core, b"a")
    goodbye = [decode(answer.data) for answer in core.handle(Close(), 0)][-1]
    assert goodbye.flags == PacketFlag.GOODBYE | PacketFlag.KEEP_ALIVE
    last = core.next_sequence(GROUP) - 1
    assert goodbye.sequence == last
    repeated = decode(core.handle(Tick(), 10 * MS)[0].data)
    assert (repeated.sequence, repeated.flags) == (last, goodbye.flags)
    assert len(nack(core, (1, 1))) == 1
    assert of(Closed, core.handle(Tick(), 50 * MS)) == [Closed()]
    assert core.next_deadline_ns() is None
    assert core.handle(Close(), 60 * MS) == []
    with pytest.raises(LocalProtocolError, match="publish after close"):
        publish(core, b"too late")


def test_publishing_after_close_raises() -> None:
    core = publisher()
    core.handle(Close(), 0)
    with pytest.raises(LocalProtocolError, match="publish after close"):
        core.handle(Publish(GROUP, [OutgoingMessage("t", b"")]), 0)


def test_a_request_with_repetitions_costs_no_more_than_its_limit() -> None:
    core = publisher(repair="multicast", repair_packets_max=8)
    for _ in range(100):
        publish(core, b"content")
    request = encode_nack(PUBLISHER_ID, GROUP, 1, [(1, 100)] * 60)
    assert len(core.handle(DatagramReceived(request, SOURCE), 0)) == 8
    assert core.handle(DatagramReceived(request, SOURCE), 0) == []
    assert core.counters["repairs_suppressed"] == 8
