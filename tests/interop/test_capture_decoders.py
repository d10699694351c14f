"""Reads a capture with code independent of the product, written from docs/reference/protocol/capture.md alone."""

from pathlib import Path

from interop import journal_decoder, packet_decoder
from penstock.capture import Capture
from penstock.journal import JournalWriter
from penstock.middleware import PublisherConfig, ReceiverConfig
from penstock.middleware.live import MulticastPublisher, MulticastReceiver
from penstock.net.udp import free_channel

KIND_DATA, KIND_GONE = 1, 3


def test_the_account_of_a_capture_with_losses_is_complete(tmp_path: Path) -> None:
    """The publisher keeps few packets and the capture misses many: some are repaired, some are gone."""
    channel = free_channel()
    sent = [b"%d" % number for number in range(400)]
    with (
        JournalWriter.open(tmp_path) as journal,
        MulticastReceiver([channel], config=ReceiverConfig(join="start"), loss=0.3) as receiver,
        MulticastPublisher(channel, config=PublisherConfig(retransmission_packets_max=8)) as publisher,
    ):
        capture = Capture(receiver, journal)
        for payload in sent:
            publisher.publish("a.b", payload)
            capture.take(0)
        publisher.say_goodbye()
        while not receiver.counters["streams_ended"]:
            capture.take(1)
    records = []
    for path in sorted(tmp_path.glob("*.journal")):
        records += journal_decoder.decode_segment(path.read_bytes())[1]
    assert records
    next_sequence, received, lost = 1, [], set()
    for record in records:
        packet = packet_decoder.decode(record.payload)
        if packet.kind == KIND_DATA:
            assert packet.sequence == next_sequence
            received += [message.payload for message in packet.messages]
            next_sequence += 1
        else:
            assert packet.kind == KIND_GONE
            ((first, last),) = packet.ranges
            assert first == next_sequence
            lost |= set(range(first, last + 1))
            next_sequence = last + 1
    assert capture.packets_lost == len(lost) > 0
    assert received == sorted(set(received), key=int)
    assert set(received) < set(sent)
    assert len(sent) - len(received) <= len(lost)  # a keep-alive may be lost as well
