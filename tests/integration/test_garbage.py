"""Random datagrams and bytes at all ports: they are counted and dropped, and the streams continue."""

import json
import random
import socket
import struct

from integration.command_kit import completed, running
from penstock.middleware import Deliver, DeliverBatch, LossReceipt, ReceiverConfig, StreamEnded
from penstock.middleware.live import MulticastPublisher, MulticastReceiver
from penstock.net.udp import Channel, free_channel
from penstock.wire import Packer, encode_gone, encode_nack
from waiting import PATIENCE_SECONDS


def thrown(group: int, randomness: random.Random) -> list[bytes]:
    """Bytes without a meaning, or with a misleading one."""
    packer = Packer(99, group, 1)
    packer.add("a.b", b"payload")
    good = packer.flush() or b""
    forged = [encode_nack(5, group, 1, [(1, 2**62)]), encode_gone(5, group, 1, [(1, 2**62)])]
    noise = [randomness.randbytes(randomness.randrange(1_500)) for _ in range(100)]
    return [b"", *truncated(good), *damaged(good), *forged, *noise]


def truncated(packet: bytes) -> list[bytes]:
    return [packet[:at] for at in range(0, len(packet), 5)]


def damaged(packet: bytes) -> list[bytes]:
    return [packet[:at] + bytes([packet[at] ^ 0x41]) + packet[at + 1 :] for at in range(0, len(packet), 3)]


def sender() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(("127.0.0.1", 0))
    made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
    return made


def test_every_port_of_the_middleware() -> None:
    channel = free_channel()
    config = ReceiverConfig(join="start")
    randomness = random.Random(5)
    wanted = [b"%d" % number for number in range(600)]
    received: list[bytes] = []
    with (
        sender() as intruder,
        MulticastReceiver([channel], config=config, loss=0.05) as receiver,
        MulticastPublisher(channel) as publisher,
    ):
        targets = [(channel.group, channel.port), receiver._own.getsockname(), publisher._socket.getsockname()]
        request = encode_nack(publisher.publisher_id, channel.group_id, publisher.epoch, [(1, 2)])
        junk = [*truncated(request), *damaged(request), *thrown(channel.group_id, randomness)]
        for number, payload in enumerate(wanted):
            for target in targets:
                intruder.sendto(junk[number % len(junk)], target)
            publisher.publish("a.b", payload)
            received += taken(receiver, 0)
        publisher.say_goodbye()
        while not received or received[-1] != b"end":
            received += taken(receiver, PATIENCE_SECONDS)
        assert received == [*wanted, b"end"]
        for counters in (receiver.counters, publisher.counters):
            assert {"foreign", "truncated", "checksum"} <= set(counters.by_cause("packets_dropped"))
        assert receiver.counters["packets_lost"] == 0


def taken(receiver: MulticastReceiver, timeout: float) -> list[bytes]:
    """The payloads delivered from the one valid publisher; b"end" after its goodbye."""
    found = []
    for each in receiver.receive(timeout):
        match each:
            case Deliver() | DeliverBatch():
                found += [bytes(message.payload) for message in each.messages]
            case StreamEnded():
                found.append(b"end")
            case LossReceipt():
                raise AssertionError(each)
    return found


def test_sub_shows_the_messages_and_counts_the_rest() -> None:
    channel = free_channel()
    with running("sub", str(channel), "--json") as sub, sender() as intruder:
        sub.wait_for_output("listening")
        for data in [*thrown(channel.group_id, random.Random(6)), *hostile_messages(channel)]:
            intruder.sendto(data, (channel.group, channel.port))
        line = b'{"topic": "a.b", "symbol": "X", "event_time": 1}\n'
        assert completed("pub", str(channel), given=line * 3).returncode == 0
        sub.wait_for_output("goodbye")
        assert sub.interrupt() == 0
        objects = [json.loads(each) for each in sub.out.splitlines()]
        shown = [each for each in objects if "topic" in each]
        assert [each["topic"] for each in shown] == ["short.record", "a.b", "a.b", "a.b"]
        assert "base64" in shown[0]  # is marked as a quote, but is not one
        assert "2 malformed messages not shown" in sub.err
        for cause in ("foreign", "truncated", "checksum"):
            assert cause in sub.err
        assert "Traceback" not in sub.err


def hostile_messages(channel: Channel) -> list[bytes]:
    """Well-formed packets whose messages are not."""
    packer = Packer(66, channel.group_id, 1)
    packer.add("a..b", b"1")
    packer.add("\x1b[2J", b"2")
    packer.add("short.record", struct.pack("<q", 5), model_id=1, model_version=1)
    return [packer.flush() or b""]
