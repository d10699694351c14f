"""A chain between nodes by UDP: the same events; lost packets are retransmitted or replaced by refreshes."""

import os
import socket
from collections.abc import Iterator

import pytest

from integration.distribution_kit import Consumer, NodeHere, mux_config, node_here, packed, plant_config, quote, trade
from penstock.base.counters import Cause, Counters
from penstock.base.errors import RemoteProtocolError
from penstock.base.ids import parse_group
from penstock.engine import EventKind, TransmissionClass, make_event
from penstock.engine.control import ClassWish
from penstock.middleware.live import MulticastPublisher
from penstock.plant.config import FRESH, SURE, DatagramsConfig, UpstreamConfig
from penstock.plant.core.event_blocks import EPOCH, TOPIC
from penstock.plant.core.incoming import Incoming
from penstock.plant.live.datagrams import split_events
from penstock.wire import (
    AuthenticationKey,
    AuthenticationScope,
    Authenticator,
    Packer,
    PacketFlag,
    VouchedPublisher,
    encode_gone,
    encode_nack,
)
from waiting import wait_until

LOCAL = "127.0.0.1"


@pytest.fixture(params=["resend", "wait"])
def plant(request: pytest.FixtureRequest) -> Iterator[NodeHere]:
    with node_here(plant_config(datagrams=DatagramsConfig(interface=LOCAL, missed=request.param))) as made:
        yield made


def mux_of(plant: NodeHere, cls: ClassWish = "critical") -> object:
    return node_here(mux_config(plant.port, upstream=UpstreamConfig(port=plant.port, interface=LOCAL, cls=cls)))


def sender_of(plant: NodeHere) -> object:
    (sender,) = plant.node._server._downstream.senders.values()
    return sender


@pytest.mark.spec("MUX-3")
def test_every_critical_update_comes_by_udp(plant: NodeHere) -> None:
    plant.publish(packed("md.A.trade", trade("A", 1)))
    with mux_of(plant) as mux, Consumer(mux.port) as consumer:
        wait_until(lambda: mux.node.status().is_fed, "the plant")
        consumer.wait_live(consumer.attached().subscribe("md.>"))
        (record,) = plant.node.status().consumers
        assert record.destination == "datagram.127.0.0.1"
        for first in range(2, 20_000, 500):
            plant.publish(*(packed("md.A.trade", trade("A", n)) for n in range(first, first + 500)))
        assert consumer.wait_for("md.A.trade", 20_001) == list(range(1, 20_002))
        assert not consumer.of_kind(EventKind.RECEIPT)


@pytest.mark.spec("MUX-3", "ADPT-9")
@pytest.mark.parametrize("cls", ["critical", "adaptive"])
def test_packets_that_are_lost_are_sent_again_or_made_up_for(plant: NodeHere, cls: ClassWish) -> None:
    is_resent = cls == "critical" or plant.node.config.datagrams.missed == "resend"
    with mux_of(plant, cls) as mux, Consumer(mux.port) as consumer:
        wait_until(lambda: mux.node.status().is_fed, "the plant")
        plant.publish(packed("md.A.quote", quote("A", 1)))
        consumer.wait_live(consumer.attached().subscribe("md.>"))
        sender = sender_of(plant)
        stream = sender._sure if is_resent or sender._fresh is None else sender._fresh
        key, stream._only_key = stream._only_key, 1  # packets are sent to no address for a while
        stream.close_lanes()  # lanes hold the destinations of packets
        plant.publish(packed("md.A.quote", quote("A", 2)))
        stream.close_lanes()
        stream._only_key = key
        plant.publish(packed("md.A.quote", quote("A", 3)))
        seen = consumer.wait_for("md.A.quote", 3)
        assert seen == ([1, 2, 3] if is_resent else [1, 3])


@pytest.mark.spec("MUX-3", "TP-2")
def test_images_follow_what_is_lost_for_good(plant: NodeHere) -> None:
    with mux_of(plant) as mux, Consumer(mux.port) as consumer:
        wait_until(lambda: mux.node.status().is_fed, "the plant")
        plant.publish(packed("md.A.quote", quote("A", 1)))
        consumer.wait_live(consumer.attached().subscribe("md.>"))
        consumer.wait_for("md.A.quote", 1)
        before = len(consumer.of_kind(EventKind.REFRESH))
        mux.node._source.upstream.lose_datagrams()  # as the receiver does when no node has the packets any more
        wait_until(lambda: consumer.receive() or len(consumer.of_kind(EventKind.REFRESH)) > before, "the image")
        assert consumer.of_kind(EventKind.RECEIPT)


@pytest.mark.spec("MUX-3")
def test_strangers_datagrams_are_dropped(plant: NodeHere) -> None:
    with mux_of(plant) as mux, Consumer(mux.port) as consumer:
        wait_until(lambda: mux.node.status().is_fed, "the plant")
        plant.publish(packed("md.A.quote", quote("A", 1)))
        consumer.wait_live(consumer.attached().subscribe("md.>"))
        port = mux.node._source.upstream._datagrams.port
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for size in (0, 1, 48, 1_400):
                stranger.sendto(b"\x55" * size, (LOCAL, port))
        plant.publish(packed("md.A.quote", quote("A", 2)))
        assert consumer.wait_for("md.A.quote", 2) == [1, 2]


def forgeries(publisher: MulticastPublisher, group: int) -> list[bytes]:
    """Packets that would disturb the stream: an event that nobody sent, a goodbye, a jump, an end of repairs."""
    stream = (publisher.publisher_id, group, EPOCH)
    sequence = publisher.next_sequence
    forged = make_event(EventKind.UPDATE, item=1, cls=TransmissionClass.CRITICAL, version=99, number=99, body=b"x" * 8)
    made = []
    for first in (sequence, sequence + 1, sequence + 5_000, 2**63):
        packer = Packer(*stream, first_sequence=first)
        packer.add(TOPIC, forged)
        made += [packer.flush() or b"", Packer(*stream, first_sequence=first).empty(PacketFlag.GOODBYE)]
    return [*made, encode_gone(*stream, [(1, sequence + 1_000)])]


def refused(counters: Counters, cause: Cause) -> int:
    return counters.by_cause("packets_dropped").get(cause, 0)


@pytest.mark.spec("AUTH-1", "MUX-3")
def test_a_stranger_with_the_address_of_the_node_above_changes_nothing(plant: NodeHere) -> None:
    with mux_of(plant) as mux, Consumer(mux.port) as consumer:
        wait_until(lambda: mux.node.status().is_fed, "the plant")
        plant.publish(packed("md.A.trade", trade("A", 1)))
        consumer.wait_live(consumer.attached().subscribe("md.>"))
        consumer.wait_for("md.A.trade", 1)
        upstream = mux.node._source.upstream
        to, sender = (LOCAL, upstream._datagrams.port), sender_of(plant)
        streams = [(sender._sure, SURE), *([(sender._fresh, FRESH)] if sender._fresh is not None else [])]
        vouched = VouchedPublisher(sender._sure.publisher_id, EPOCH, EPOCH)
        guessed = Authenticator([AuthenticationScope("guessed", (AuthenticationKey(1, bytes(16)),), 1, (vouched,))])
        sent = 0
        for number in range(2, 12):
            for publisher, group in streams:
                # its own socket: the datagrams come from the address of the upstream node itself
                with socket.socket(fileno=os.dup(publisher._socket.fileno())) as stranger:
                    for packet in forgeries(publisher, parse_group(group)):
                        stranger.sendto(packet, to)
                        stranger.sendto(packet + guessed.trailer(packet), to)
                        sent += 1
            plant.publish(packed("md.A.trade", trade("A", number)))
        assert consumer.wait_for("md.A.trade", 11) == list(range(1, 12))
        assert not consumer.of_kind(EventKind.RECEIPT)
        counters = upstream._counters
        wait_until(lambda: refused(counters, Cause.UNAUTHENTICATED) == sent, "the drops of packets without a trailer")
        wait_until(lambda: refused(counters, Cause.FORGED) == sent, "the drops of packets with a guessed key")


@pytest.mark.spec("AUTH-1", "AUTH-3")
def test_a_stranger_gets_no_repairs_from_the_node_above(plant: NodeHere) -> None:
    with mux_of(plant) as mux, Consumer(mux.port) as consumer:
        wait_until(lambda: mux.node.status().is_fed, "the plant")
        plant.publish(packed("md.A.trade", trade("A", 1)))
        consumer.wait_live(consumer.attached().subscribe("md.>"))
        publisher = sender_of(plant)._sure
        request = encode_nack(publisher.publisher_id, parse_group(SURE), EPOCH, [(1, 1)])
        before = publisher.counters["repairs_sent"]
        with socket.socket(fileno=os.dup(mux.node._source.upstream._datagrams._socket.fileno())) as stranger:
            stranger.sendto(request, publisher.address)
        wait_until(lambda: refused(publisher.counters, Cause.UNAUTHENTICATED) == 1, "the drop")
        assert publisher.counters["repairs_sent"] == before


def test_a_plant_sends_datagrams_only_where_it_is_told() -> None:
    with node_here(plant_config()) as plant, Consumer(plant.port, "low", "datagram", is_node=True, port=9) as consumer:
        wait_until(lambda: consumer.refusals, "the refusal")
        assert consumer.refusals[0].peer_code == "transport"


@pytest.mark.spec("METR-4")
def test_fresh_updates_are_told_from_those_that_must_come() -> None:
    made = [
        make_event(EventKind.DEFINE, item=1, body=b"a"),
        make_event(EventKind.UPDATE, item=1, cls=TransmissionClass.ADAPTIVE, version=2, number=2, body=b"123456789"),
        make_event(EventKind.UPDATE, item=1, cls=TransmissionClass.CRITICAL, version=3, number=3, body=b"12345678"),
        make_event(EventKind.REFRESH, item=1, cls=TransmissionClass.METERED, version=1, number=1, body=b""),
        make_event(EventKind.UPDATE, item=1, cls=TransmissionClass.METERED, version=4, number=4, body=b"1"),
    ]
    assert split_events(b"".join(made)) == (made[0] + made[2] + made[3] + made[4], made[1])
    incoming = Incoming(lambda number: ())
    assert not list(incoming.read_fresh(made[1]))  # not defined yet
    assert not list(incoming.read(made[0]))
    assert [each.version for each in incoming.read_fresh(made[1])] == [2]
    assert not list(incoming.read(made[3]))  # overtaken
    with pytest.raises(RemoteProtocolError):
        list(incoming.read(make_event(EventKind.UPDATE, item=9, body=b"")))
