"""Batches of datagrams and of the messages in them."""

import numpy
import pytest

from penstock.base.errors import LocalProtocolError
from penstock.middleware import DatagramsReceived, DeliverBatch, StreamStarted
from penstock.middleware.core._inorder import InOrder, StreamCursor
from penstock.model import shipped
from penstock.wire import (
    DatagramBatch,
    MessageBatch,
    Packer,
    PacketStore,
    encode_extensions,
    encode_interest_mask,
    encode_tags,
)
from penstock.wire.packet import Extension
from unit.middleware_kit import GROUP, SOURCE, packets, receiver


def test_a_batch_holds_what_was_appended() -> None:
    batch = DatagramBatch(3)
    for number, size in enumerate((0, 1, 65_507)):
        batch.append(bytes([number]) * size, ("host", number), arrival_ns=number)
    assert [bytes(batch.datagram(n)) for n in range(3)] == [b"", b"\x01", b"\x02" * 65_507]
    assert [batch.source(n) for n in range(3)] == [("host", 0), ("host", 1), ("host", 2)]
    assert [batch.arrival_ns(n) for n in range(3)] == [0, 1, 2]
    assert len({batch.source_key(n) for n in range(3)}) == 3
    with pytest.raises(LocalProtocolError):
        batch.append(b"x", SOURCE)
    batch.clear()
    assert len(batch) == 0
    with pytest.raises(IndexError):
        batch.datagram(0)
    with pytest.raises(LocalProtocolError):
        batch.append(bytes(70_000), SOURCE)
    for capacity in (0, 1_025):
        with pytest.raises(LocalProtocolError):
            DatagramBatch(capacity)


def test_removing_a_share_of_packets_keeps_the_rest_in_order() -> None:
    batch, lost, kept = DatagramBatch(64), 0, 0
    for _ in range(200):
        batch.clear()
        for number in range(64):
            batch.append(bytes([number]) * (number + 1), ("host", number))
        lost += batch.lose(0.25)
        kept += len(batch)
        numbers = [batch.datagram(n)[0] for n in range(len(batch))]
        assert numbers == sorted(numbers)
        assert all(bytes(batch.datagram(n)) == bytes([m]) * (m + 1) for n, m in enumerate(numbers))
        assert [batch.source(n)[1] for n in range(len(batch))] == numbers
    assert lost + kept == 64 * 200
    assert 0.2 < lost / (64 * 200) < 0.3
    assert batch.lose(0.0) == 0
    assert batch.lose(1.0) == len(numbers)


def delivered(data: list[bytes]) -> MessageBatch:
    """The messages of these packets; all packets except the first, which starts the stream, are in order."""
    core, batch = receiver(), DatagramBatch(64)
    for each in (packets(1)[0], *data):
        batch.append(each, SOURCE, arrival_ns=5)
    *_, last = core.handle(DatagramsReceived(batch), 0)
    assert isinstance(last, DeliverBatch)
    return last.messages


def test_messages_are_read_one_by_one_and_as_records() -> None:
    quote = shipped("quote")
    packer, made = Packer(42, GROUP, 1, first_sequence=2), []
    for number in range(10):
        message = quote.new(symbol=f"S{number}", bid_price=number)
        packer.add(f"md.S{number}.quote", message, model_id=quote.id, model_version=quote.version)
        packer.add("md.note", b"note", extensions=encode_extensions({Extension.TAGS: encode_tags(["x"])}))
        if number % 3 == 2:
            made.append(packer.flush())
    made.append(packer.flush())
    messages = delivered(made)
    assert (len(messages), messages.packet_count) == (20, 4)
    assert [m.topic for m in messages][:4] == ["md.S0.quote", "md.note", "md.S1.quote", "md.note"]
    assert (messages[-1].payload, list(messages[1].extensions)) == (b"note", [Extension.TAGS])
    assert [m.sequence for m in messages] == [2] * 6 + [3] * 6 + [4] * 6 + [5] * 2
    records = messages.records(quote.dtype, quote.id)
    assert list(records["symbol"]) == [f"S{n}".encode() for n in range(10)]
    assert len(messages.records("V4")) == 10
    assert len(messages.records(quote.dtype, model_id=99)) == 0
    assert list(messages.packets["sequence"]) == [2, 3, 4, 5]
    assert list(messages.messages["model_id"][:2]) == [quote.id, 0]
    assert list(messages.arrivals_ns()) == [5] * 20
    assert bytes(messages.packet_data(3)) == made[3]
    assert [m.topic for m in messages.of_packet(3)] == ["md.S9.quote", "md.note"]
    for wrong in (20, -21):
        with pytest.raises(IndexError):
            messages[wrong]
    for call in (messages.of_packet, messages.packet_data):
        with pytest.raises(IndexError):
            call(4)
    with pytest.raises(LocalProtocolError):
        messages.records("V0")


def test_messages_read_from_a_batch_can_be_kept() -> None:
    messages = delivered(packets(3, first=2))
    kept, records = list(messages), messages.records("V1")
    numpy.frombuffer(messages.data, numpy.uint8)  # views are read-only
    assert messages.data.readonly
    assert [bytes(m.payload) for m in kept] == [b"2", b"3", b"4"]
    assert records.tobytes() == b"234"


def test_copies_of_received_packets_are_skipped_at_once() -> None:
    core, batch = receiver(), DatagramBatch(64)
    data = packets(12)
    for each in (*data[:10], *data[3:10], *data[10:], data[0]):
        batch.append(each, SOURCE)
    told = core.handle(DatagramsReceived(batch), 0)
    received = [
        bytes(message.payload) for each in told if not isinstance(each, StreamStarted) for message in each.messages
    ]
    assert received == [b"%d" % number for number in range(1, 13)]
    assert core.counters.by_cause("packets_dropped") == {"duplicate": 8}
    assert core.counters["packets_received"] == 20
    batch.clear()
    for each in (data[4], packets(13)[12], data[5]):
        batch.append(each, ("10.0.0.2", 1))  # a packet of another publisher is not skipped
    core.handle(DatagramsReceived(batch), 0)
    assert core.counters.by_cause("packets_dropped")["id_collision"] == 3


def test_cursors_are_found_among_many_and_after_removals() -> None:
    """Publisher ids in neighbouring slots must still be found when one of them is removed."""
    table, batch = InOrder(7), DatagramBatch(1)
    cursors = {}
    for number in range(1, 500):
        cursor = StreamCursor()
        cursor.publisher_id, cursor.group, cursor.epoch, cursor.next_sequence = number, GROUP, 1, 1
        cursor.is_smooth = True
        cursors[number] = cursor
        table.add(cursor)
    for number in range(1, 500, 3):
        table.remove(cursors.pop(number))
        table.remove(StreamCursor())  # an id that was never added
    for number in range(1, 500):
        batch.clear()
        batch.append(packets(1, publisher_id=number)[0], SOURCE)
        if number in cursors:
            cursors[number].source_key = batch.source_key(0)
        assert (table.begin(batch, 0) is not None) == (number in cursors)


def test_a_store_refuses_unusable_packets() -> None:
    store = PacketStore(4, 1_000)
    with pytest.raises(LocalProtocolError):
        store.keep(b"too short")
    with pytest.raises(LocalProtocolError):
        PacketStore(0, 1_000)
    store.keep(bytes(900))
    store.keep(bytes(1_200))  # larger than the store: sent, but not kept
    assert (len(store), store.next_sequence, store.oldest) == (0, 3, 3)
    assert store.split(1, 5) == ((1, 2), range(3, 3))


@pytest.mark.spec("FILT-8")
def test_an_application_finds_its_bit_in_the_masks() -> None:
    packer = Packer(42, GROUP, 1, first_sequence=2)
    masks = [None, 0, 1, 1 << 63, 1 << 64, 1 << 130 | 1]
    for mask in masks:
        bodies = {Extension.TAGS: encode_tags(["t"])}
        if mask is not None:
            bodies[Extension.INTEREST_MASK] = encode_interest_mask(mask)
        packer.add("t", b"", extensions=encode_extensions(bodies))
    packet = packer.flush()
    assert packet is not None
    batch = delivered([packet])
    for bit in (0, 1, 63, 64, 65, 130, 131, 2**32 - 1):
        expected = [2 if mask is None else mask >> bit & 1 if bit < 200 else 0 for mask in masks]
        assert batch.marked_for(bit).tolist()[-len(masks) :] == expected
