"""A filter's kernel: the recipients of messages, and the ranges in gaps."""

import pytest

from penstock.base.errors import LimitError, LocalProtocolError, PacketError
from penstock.filter import Forwarder, Mode, Outbox
from penstock.topics import InterestTable
from penstock.wire import (
    Extension,
    MessageFlag,
    Packer,
    PacketFlag,
    decode,
    decode_interest_mask,
    encode_destination,
    encode_extensions,
)
from unit.filter_kit import PUBLISHER_ID, application, batch_of, forwarder, opened, packets, sent, topics, want


@pytest.mark.spec("FILT-7")
def test_each_application_gets_only_its_own_messages() -> None:
    module = forwarder()
    application(module, 0, "a.*")
    application(module, 1, "a.x", "b")
    opened(module, 0, 1)
    (packet,) = packets([("a.x", b"1"), ("b", b"2"), ("c", b"3"), ("a.y", b"4")])
    assert module.forward(batch_of([packet])) == 1
    found = sent(module)
    assert topics(found[0][0]) == ["a.x", "a.y"]
    assert topics(found[1][0]) == ["a.x", "b"]
    assert [bytes(message.payload) for message in found[1][0]] == [b"1", b"2"]
    assert module.messages_unwanted == 1
    assert (module.packets_in, module.messages_in, module.packets_out, module.messages_out) == (1, 4, 2, 4)
    assert module.counts(1) == (1, 2)


@pytest.mark.spec("FILT-4", "FILT-7")
def test_removed_packets_are_in_the_gap() -> None:
    module = forwarder()
    application(module, 0, "a")
    application(module, 1, "b")
    account = opened(module, 0, 1)
    module.forward(batch_of(packets([("a", b"")], [("b", b"")], [("c", b"")], [("a", b"")], [("b", b"")])))
    found = sent(module)
    assert [(packet.sequence, packet.gap) for packet in found[0]] == [(1, 0), (4, 2)]
    assert [(packet.sequence, packet.gap) for packet in found[1]] == [(2, 1), (5, 2)]
    assert [account.expected_by(0), account.expected_by(1), account.expected_by(2)] == [5, 6, 0]


def test_the_packet_header_is_kept() -> None:
    module = forwarder()
    application(module, 0, "a")
    opened(module, 0)
    (packet,) = packets([("a", b"1"), ("b", b"2")], flags=PacketFlag.REPLAY | 1 << 15)
    assert module.forward_packet(packet, module.open(42, decode(packet).group, 1)) == 0  # no subscriber
    opened(module, 0)
    messages = module.open(42, decode(packet).group, 1)
    messages.listen(0, 1)
    assert module.forward_packet(packet, messages) == 1
    ((_, data),) = module.outbox.packets()
    before, after = decode(packet), decode(data)
    assert (after.publisher_id, after.group, after.epoch, after.sequence) == (
        before.publisher_id, before.group, before.epoch, before.sequence,
    )  # fmt: skip
    assert after.flags == before.flags
    assert len(after) == 1


@pytest.mark.spec("FILT-5")
@pytest.mark.parametrize("flag", [PacketFlag.KEEP_ALIVE, PacketFlag.GOODBYE])
def test_keep_alives_reach_all_subscribers(flag: PacketFlag) -> None:
    module = forwarder()
    for number in range(3):
        application(module, number, "a" if number else "b")
    account = opened(module, 0, 1)  # the third is not subscribed
    data = [*packets([("a", b"")]), *packets([], [("b", b"")], first=2, flags=int(flag))]
    for packet in data:
        module.forward_packet(packet, account)
    found = sent(module)
    assert [(packet.sequence, packet.gap, len(packet)) for packet in found[0]] == [(2, 1, 0), (3, 0, 1)]
    assert [(packet.sequence, packet.gap, len(packet)) for packet in found[1]] == [(1, 0, 1), (2, 0, 0), (3, 0, 0)]
    assert 2 not in found
    assert found[0][0].flags == flag


def test_an_unsubscribed_application_gets_nothing_and_a_later_one_only_later_packets() -> None:
    module = forwarder()
    application(module, 0, "a")
    application(module, 1, "a")
    account = opened(module, 0)
    data = packets([("a", b"1")], [("a", b"2")], [("a", b"3")])
    module.forward(batch_of(data[:1]))
    account.listen(1, 3)
    module.forward(batch_of(data[1:], first=2))
    found = sent(module)
    assert [packet.sequence for packet in found[0]] == [1, 2, 3]
    assert [(packet.sequence, packet.gap) for packet in found[1]] == [(3, 0)]
    assert account.listeners() == [0, 1]
    account.leave(0)
    module.forward(batch_of(packets([("a", b"4")], first=4), first=4))
    assert list(sent(module)) == [1]


def test_interests_of_one_application_in_several_slots_deliver_a_message_once() -> None:
    module = forwarder()
    application(module, 0, "a.>", "!a.z")
    module.set_slot(9, 0)
    want(module, 9, "a.x", "b")
    opened(module, 0)
    module.forward(batch_of(packets([("a.x", b""), ("a.z", b""), ("b", b"")])))
    assert [topics(packet) for packet in sent(module)[0]] == [["a.x", "b"]]
    module.clear_slot(9)
    module.forward(batch_of(packets([("b", b""), ("a.x", b"")], first=2), first=2))
    assert [topics(packet) for packet in sent(module)[0]] == [["a.x"]]


def test_a_removed_consumer_leaves_nothing_behind() -> None:
    module = forwarder()
    application(module, 0, "a")
    module.set_application(77, 0)
    account = opened(module, 0)
    module.clear_consumer(0)
    assert account.listeners() == []
    module.set_consumer(0, Mode.OWN)
    account.listen(0, 1)
    module.forward(batch_of(packets([("a", b"")])))
    assert sent(module) == {}
    assert module.counts(0) == (0, 0)


def test_a_full_outbox_is_sent_and_forwarding_continues() -> None:
    table = InterestTable(seed=bytes(16))
    module = Forwarder(table, consumers_max=2, slots_max=2, outbox=Outbox(3, 200_000), seed=1)
    application(module, 0, "a")
    application(module, 1, ">")
    opened(module, 0, 1)
    batch = batch_of(packets(*([("a", str(number).encode())] for number in range(7))))
    found: dict[int, list[bytes]] = {0: [], 1: []}
    done, rounds = 0, 0
    while done < batch.packet_count:
        before = done
        done = module.forward(batch, done)
        assert done > before
        rounds += 1
        for consumer, got in sent(module).items():
            found[consumer] += [bytes(message.payload) for packet in got for message in packet]
    assert found[0] == found[1] == [str(number).encode() for number in range(7)]
    assert rounds == 7
    with pytest.raises(LocalProtocolError):
        Forwarder(table, consumers_max=4, slots_max=2, outbox=Outbox(3, 200_000), seed=1)


@pytest.mark.spec("FILT-9")
def test_a_jump_is_reported_before_later_packets() -> None:
    module = forwarder()
    for number, topic in enumerate(["a", "b", "c"]):
        application(module, number, topic)
    account = opened(module, 0, 1, 2)
    first = packets([("a", b"1")], [("b", b"2")], [("b", b"3")])
    for packet in first:
        module.forward_packet(packet, account)
    sent(module)
    (late, after) = packets([("c", b"4")], [("a", b"5")], first=4)
    assert module.catch_up(account, 3) == 2  # the consumer that got packet 3 knows
    found = sent(module)
    assert list(found) == [0, 2]
    assert [(packet.sequence, packet.gap, len(packet)) for packet in (*found[0], *found[2])] == [(3, 1, 0), (3, 2, 0)]
    assert module.catch_up(account, 3) == 0
    assert module.forward_packet(after, account, gap=0, to_all=True) == 3
    assert [[len(packet) for packet in got] for got in sent(module).values()] == [[1], [0], [0]]
    assert module.forward_packet(late, account, gap=0, to_all=True, flags=PacketFlag.REPAIR) == 3
    found = sent(module)
    assert [(packet.sequence, packet.gap, len(packet)) for got in found.values() for packet in got] == [
        (4, 0, 1), (4, 0, 0), (4, 0, 0),
    ]  # fmt: skip
    assert topics(found[2][0]) == ["c"]
    assert all(got[0].flags & PacketFlag.REPAIR for got in found.values())
    assert [account.expected_by(number) for number in range(3)] == [6, 6, 6]
    assert module.forward_packet(late, account) == 0  # the jump was reported to them


def test_an_answer_to_one_consumer() -> None:
    module = forwarder()
    application(module, 0, "a")
    application(module, 1, "a")
    account = opened(module, 0, 1)
    (packet,) = packets([("a", b"1"), ("b", b"2")])
    module.forward_packet(packet, account)
    sent(module)
    assert module.forward_packet(packet, account, gap=0, only=1, flags=PacketFlag.REPAIR) == 1
    assert [topics(packet) for packet in sent(module)[1]] == [["a"]]
    (unwanted,) = packets([("c", b"1")], first=2)
    assert module.forward_packet(unwanted, account, gap=0, only=1) == 0
    assert module.forward_packet(unwanted, account, gap=5, only=1, to_all=True) == 1
    ((consumer, data),) = module.outbox.packets()
    assert (consumer, len(decode(data)), decode(data).gap) == (1, 0, 5)


def test_a_fragmented_message_goes_to_the_recipients_of_its_first_fragment() -> None:
    module = forwarder()
    application(module, 0, "large")
    application(module, 1, "small")
    account = opened(module, 0, 1)
    data = packets([("small", b"x"), ("large", bytes(5_000)), ("small", b"y")])
    assert len(data) == 5
    module.forward(batch_of(data[:2]))
    module.table.add("large", 1)  # too late for the message under way
    assert module.table.remove("large", 0)
    module.forward(batch_of(data[2:], first=3))
    found = sent(module)
    assert b"".join(bytes(message.payload) for packet in found[0] for message in packet) == bytes(5_000)
    assert [topics(packet) for packet in found[1]] == [["small"], ["small"]]
    assert [(packet.sequence, packet.gap) for packet in found[1]] == [(1, 0), (5, 3)]
    assert account.position == 6


def test_a_fragment_with_an_unknown_beginning_is_matched_by_its_topic() -> None:
    module = forwarder()
    application(module, 0, "large", condition=b"never")
    application(module, 1, "small")
    account = opened(module, 0, 1)
    data = packets([("large", bytes(5_000))])
    assert module.forward_packet(data[1], account, gap=0) == 1
    assert list(sent(module)) == [0]


def test_unknown_streams_and_invalid_packets_are_mistakes_of_the_caller() -> None:
    module = forwarder()
    application(module, 0, "a")
    (packet,) = packets([("a", b"")])
    with pytest.raises(LocalProtocolError, match="not opened"):
        module.forward(batch_of([packet]))
    account = opened(module, 0)
    with pytest.raises(PacketError):
        module.forward_packet(packet[:-1], account)
    with pytest.raises(LocalProtocolError):
        module.forward_packet(packet, module.open(43, account.group, 1))
    with pytest.raises(LocalProtocolError):
        module.forward_packet(packet, account, gap=2**32)
    with pytest.raises(LocalProtocolError):
        module.forward_packet(packet, account, only=5)
    with pytest.raises(LocalProtocolError):
        module.catch_up(forwarder(4).open(1, 1, 1), 3)
    module.close(account)
    with pytest.raises(LocalProtocolError, match="not opened"):
        module.forward(batch_of([packet]))


def test_numbers_beyond_the_limits_are_refused() -> None:
    module = forwarder(consumers_max=2, slots_max=2)
    module.set_consumer(0, Mode.OWN)
    with pytest.raises(LimitError):
        module.set_consumer(2, Mode.OWN)
    with pytest.raises(LocalProtocolError):
        module.set_consumer(0, Mode.OWN)
    with pytest.raises(LimitError):
        module.set_slot(2, 0)
    with pytest.raises(LocalProtocolError):
        module.set_slot(0, 1)
    with pytest.raises(LimitError):
        module.set_slot(0, 0, 5_000)
    with pytest.raises(LimitError):
        opened(module, 2)
    want(module, 77, "a")  # a subscriber of the table without a slot
    opened(module, 0)
    module.forward(batch_of(packets([("a", b"")])))
    assert sent(module) == {}


@pytest.mark.spec("FILT-8")
def test_a_mask_that_would_exceed_the_packet_size_is_omitted() -> None:
    module = forwarder()
    module.set_consumer(0, Mode.MASK)
    module.set_slot(0, 0, 5)
    want(module, 0, "a")
    account = opened(module, 0)
    short, long = packets([("a", bytes(100))], [("a", bytes(65_507 - 48 - 24 - 8))], size_max=65_507)
    assert len(long) > 65_507 - 16
    module.forward_packet(short, account)
    module.forward_packet(long, account)
    first, second = sent(module)[0]
    assert decode_interest_mask(first[0].extensions[Extension.INTEREST_MASK]) == 1 << 5
    assert second[0].extensions == {}
    assert len(second[0].payload) == 65_507 - 48 - 24 - 8


@pytest.mark.spec("FILT-16")
def test_a_direct_message_ignores_interests() -> None:
    module = forwarder()
    application(module, 0)
    application(module, 1, ">")
    module.set_application(2**63, 0)
    account = opened(module, 0, 1)
    packer = Packer(PUBLISHER_ID, account.group, 1)
    for destination in (encode_destination(2**63), encode_destination(5), b"short"):
        extensions = encode_extensions({Extension.DESTINATION: destination})
        packer.add("", b"for you", flags=MessageFlag.DIRECT, extensions=extensions)
    packet = packer.flush()
    assert packet is not None
    assert module.forward_packet(packet, account) == 1
    assert [len(packet) for packet in sent(module)[0]] == [1]


def test_a_hostile_jump_of_numbers_does_not_overflow_the_gap() -> None:
    module = forwarder()
    application(module, 0, "a")
    account = opened(module, 0)
    (packet,) = packets([("a", b"")], first=2**40)
    module.forward_packet(packet, account)
    assert sent(module)[0][0].gap == 2**32 - 1


def test_an_application_that_leaves_during_a_message_does_not_get_its_end() -> None:
    module = forwarder()
    application(module, 0, "large")
    application(module, 1, "large")
    account = opened(module, 0, 1)
    data = packets([("large", bytes(5_000))])
    module.forward(batch_of(data[:2]))
    account.leave(0)
    account.listen(0, 3)
    module.forward(batch_of(data[2:], first=3))
    found = sent(module)
    assert [packet.sequence for packet in found[0]] == [1, 2]
    assert [packet.sequence for packet in found[1]] == [1, 2, 3, 4]


@pytest.mark.parametrize("is_broken", [True, False])
def test_a_fragment_of_another_message_is_matched_by_its_topic(is_broken: bool) -> None:
    """After a message whose end never came, or whose end was lost together with the beginning of the next one."""
    module = forwarder()
    application(module, 0, "one")
    application(module, 1, "two")
    account = opened(module, 0, 1)
    module.forward(batch_of(packets([("one", bytes(5_000))])[:2]))
    if is_broken:
        module.forward(batch_of(packets([("x", b"")], first=3), first=3))
        module.table.remove("one", 0)
        module.table.add("one", 1)
        (*_, end) = packets([("one", bytes(5_000))], first=1)
    else:
        (*_, end) = packets([("two", bytes(5_000))], first=1)
    sent(module)
    assert module.forward_packet(end, account, gap=0) == 1
    assert list(sent(module)) == [1]


def test_a_late_packet_is_reported_correctly_to_an_application_that_lacks_it() -> None:
    module = forwarder()
    application(module, 0, "a")
    application(module, 1, "b")
    account = opened(module, 0, 1)
    data = packets(*([("a", b"")] for _ in range(5)))
    module.forward(batch_of(data))
    sent(module)
    module.forward_packet(data[2], account, gap=0, to_all=True)
    found = sent(module)
    assert [(found[number][0].gap, len(found[number][0])) for number in range(2)] == [(0, 1), (2, 0)]
    assert account.expected_by(1) == 4
