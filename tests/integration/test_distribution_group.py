"""Two multiplexers that receive one group: one datagram for both, and recovery when a node missed it."""

import os
import socket
from collections.abc import Iterator

import pytest

from integration.distribution_kit import Consumer, NodeHere, mux_config, node_here, packed, plant_config, quote, trade
from penstock.base.counters import Cause
from penstock.engine import EventKind
from penstock.engine.control import Login
from penstock.middleware.live import MulticastPublisher
from penstock.net.udp import free_channel, group_socket
from penstock.plant.config import DatagramsConfig, UpstreamConfig
from penstock.plant.live import datagrams
from penstock.plant.live.datagrams import DatagramSender
from penstock.security import Grant
from penstock.security.core.access_control import Rights
from penstock.security.core.refusal import RefusalError
from penstock.wire import (
    AuthenticationKey,
    AuthenticationScope,
    Authenticator,
    Packer,
    PacketFlag,
    VouchedPublisher,
)
from waiting import PATIENCE_SECONDS, wait_until

LOCAL = "127.0.0.1"
TOPIC = "md.A.quote"


@pytest.fixture(params=["resend", "resend_all", "wait"])
def plant(request: pytest.FixtureRequest) -> Iterator[NodeHere]:
    sent = DatagramsConfig(interface=LOCAL, missed=request.param, group=str(free_channel()))
    with node_here(plant_config(datagrams=sent)) as made:
        made.publish(packed(TOPIC, quote("A", 1)))
        yield made


class Below:
    """A multiplexer below a plant, and a consumer of it that subscribes to everything."""

    def __init__(self, plant: NodeHere, name: str) -> None:
        above = UpstreamConfig(port=plant.port, interface=LOCAL, cls="adaptive")
        self.mux = NodeHere(mux_config(plant.port, name=name, upstream=above))
        self.consumer = Consumer(self.mux.port)
        wait_until(lambda: self.mux.node.status().is_fed, "the plant")
        self.consumer.wait_live(self.consumer.attached().subscribe("md.>"))

    def hear_group(self, does: bool) -> None:
        (joined,) = self.mux.node._source.upstream._datagrams._groups
        group = joined.getsockname()[0]
        what = socket.IP_ADD_MEMBERSHIP if does else socket.IP_DROP_MEMBERSHIP
        joined.setsockopt(socket.IPPROTO_IP, what, socket.inet_aton(group) + socket.inet_aton(LOCAL))

    @property
    def missed(self) -> int:
        return self.mux.node.node.total("upstream_missed")

    def close(self) -> None:
        self.consumer.close()
        self.mux.close()


@pytest.fixture
def below(plant: NodeHere) -> Iterator[tuple[Below, Below]]:
    one = Below(plant, "one")
    try:
        two = Below(plant, "two")
        try:
            yield one, two
        finally:
            two.close()
    finally:
        one.close()


def messages_of(publisher: MulticastPublisher) -> int:
    return sum(each.messages_published for each in publisher._core._streams.values())


def own_messages(plant: NodeHere) -> int:
    return sum(messages_of(each._sure) for each in plant.node._server._downstream.senders.values())


def group_messages(plant: NodeHere) -> int:
    return messages_of(plant.node._server._downstream._group._publisher)


@pytest.mark.spec("ADPT-3", "MUX-3")
def test_one_datagram_brings_an_update_to_all(plant: NodeHere, below: tuple[Below, Below]) -> None:
    own, by_group = own_messages(plant), group_messages(plant)
    for number in range(2, 12):
        plant.publish(packed(TOPIC, quote("A", number)))
    for each in below:
        assert each.consumer.wait_for(TOPIC, 11) == list(range(1, 12))
    assert (own_messages(plant), group_messages(plant)) == (own, by_group + 10)


@pytest.mark.spec("AUTH-1", "ADPT-3")
def test_a_stranger_with_the_address_of_the_plant_cannot_forge_the_group(
    plant: NodeHere, below: tuple[Below, Below]
) -> None:
    group = plant.node._server._downstream._group
    publisher, channel = group._publisher, group.channel
    with socket.socket(fileno=os.dup(publisher._socket.fileno())) as stranger:
        for number in range(2, 12):
            for first in (publisher.next_sequence, publisher.next_sequence + 5_000):
                packer = Packer(publisher.publisher_id, channel.group_id, 1, first_sequence=first)
                packer.add("penstock.distribution", b"forged")
                goodbye = Packer(publisher.publisher_id, channel.group_id, 1, first_sequence=first)
                for packet in (packer.flush() or b"", goodbye.empty(PacketFlag.GOODBYE)):
                    stranger.sendto(packet, (channel.group, channel.port))
            plant.publish(packed(TOPIC, quote("A", number)))
            for each in below:
                assert each.consumer.wait_for(TOPIC, number) == list(range(1, number + 1))
    for each in below:
        dropped = each.mux.node._source.upstream._counters
        wait_until(
            lambda dropped=dropped: dropped.by_cause("packets_dropped").get(Cause.UNAUTHENTICATED, 0) == 40, "drops"
        )


def key_ids(node: Below) -> set[int]:
    """The keys under which a multiplexer accepts packets of the group."""
    return {each.key_id for each in node.mux.node._source.upstream._datagrams.group_keys}


@pytest.mark.spec("AUTH-1", "AUTH-6")
def test_a_former_member_cannot_forge_the_group(plant: NodeHere, below: tuple[Below, Below]) -> None:
    one, two = below
    group = plant.node._server._downstream._group
    publisher, channel, former_key = group._publisher, group.channel, group.key
    three = Below(plant, "three")
    for each in (one, two, three):
        assert key_ids(each) == {former_key.key_id}
    three.close()
    wait_until(lambda: key_ids(one) == key_ids(two) == {former_key.key_id + 1}, "the next key")
    packer = Packer(publisher.publisher_id, channel.group_id, 1, first_sequence=publisher.next_sequence)
    packer.add("penstock.distribution", b"forged")
    forged = packer.flush() or b""
    with socket.socket(fileno=os.dup(publisher._socket.fileno())) as stranger:
        stranger.sendto(forged + trailer(forged, publisher.publisher_id, former_key), (channel.group, channel.port))
    for each in below:
        dropped = each.mux.node._source.upstream._counters
        wait_until(
            lambda dropped=dropped: dropped.by_cause("packets_dropped").get(Cause.UNKNOWN_KEY, 0) == 1, "the drop"
        )
    by_group = group_messages(plant)
    for number in range(2, 12):
        plant.publish(packed(TOPIC, quote("A", number)))
    for each in below:
        assert each.consumer.wait_for(TOPIC, 11) == list(range(1, 12))
    assert group_messages(plant) == by_group + 10
    for each in below:
        causes = each.mux.node._source.upstream._counters.by_cause("packets_dropped")
        assert causes.get(Cause.UNKNOWN_KEY, 0) == 1
    late = Below(plant, "late")
    try:
        assert key_ids(late) == {former_key.key_id + 1}
    finally:
        late.close()


@pytest.mark.spec("AUTH-6")
def test_updates_reach_the_members_while_the_key_is_replaced(plant: NodeHere, below: tuple[Below, Below]) -> None:
    former_key_id = plant.node._server._downstream._group.key.key_id
    Below(plant, "three").close()
    number = 1
    while not all(key_ids(each) == {former_key_id + 1} for each in below):
        number += 1
        plant.publish(packed(TOPIC, quote("A", number)))
        for each in below:
            each.consumer.wait_for(TOPIC, number)
    for each in below:
        assert each.consumer.wait_for(TOPIC, number)[-1] == number
        assert each.mux.node._source.upstream._counters.by_cause("packets_dropped").keys() <= {Cause.DUPLICATE}


def trailer(packet: bytes, publisher_id: int, key: AuthenticationKey) -> bytes:
    vouched = VouchedPublisher(publisher_id, 1, 1)
    return Authenticator([AuthenticationScope("former", (key,), key.key_id, (vouched,))]).trailer(packet)


@pytest.mark.spec("ADPT-3")
def test_what_may_not_be_lost_never_goes_by_the_group(plant: NodeHere, below: tuple[Below, Below]) -> None:
    by_group = group_messages(plant)
    plant.publish(*(packed("md.A.trade", trade("A", number)) for number in range(1, 501)))
    for each in below:
        assert each.consumer.wait_for("md.A.trade", 500) == list(range(1, 501))
        assert not each.consumer.of_kind(EventKind.RECEIPT)
    assert group_messages(plant) == by_group


@pytest.mark.spec("ADPT-9")
def test_what_one_node_missed_is_sent_again_to_it_or_to_all_or_waited_for(
    plant: NodeHere, below: tuple[Below, Below]
) -> None:
    missed = plant.node.config.datagrams.missed
    one, two = below
    own, by_group = own_messages(plant), group_messages(plant)
    before = one.missed, two.missed  # keep-alives from before they joined
    two.hear_group(False)
    plant.publish(packed(TOPIC, quote("A", 2)))
    assert one.consumer.wait_for(TOPIC, 2) == [1, 2]
    assert two.consumer.sequence(TOPIC) == [1]
    two.hear_group(True)
    wait_until(lambda: two.missed > before[1], "the loss to be noticed")
    if missed != "wait":
        assert two.consumer.wait_for(TOPIC, 2) == [1, 2]
    sent = (own_messages(plant) - own, group_messages(plant) - by_group)
    assert sent == {"resend": (1, 1), "resend_all": (0, 2), "wait": (0, 1)}[missed]
    plant.publish(packed(TOPIC, quote("A", 3)))
    assert one.consumer.wait_for(TOPIC, 3) == [1, 2, 3]
    assert two.consumer.wait_for(TOPIC, 3) == ([1, 3] if missed == "wait" else [1, 2, 3])
    assert one.missed == before[0]


@pytest.mark.spec("ADPT-9")
def test_what_was_missed_is_not_sent_again_when_something_newer_was(
    plant: NodeHere, below: tuple[Below, Below]
) -> None:
    one, two = below
    two.hear_group(False)
    plant.publish(packed(TOPIC, quote("A", 2)))
    two.hear_group(True)
    plant.publish(packed(TOPIC, quote("A", 3)))
    assert two.consumer.wait_for(TOPIC, 3) == [1, 3]
    assert one.consumer.wait_for(TOPIC, 3) == [1, 2, 3]


def test_a_node_that_leaves_takes_its_wishes_with_it(plant: NodeHere, below: tuple[Below, Below]) -> None:
    chained = plant.node._server._downstream
    wait_until(lambda: [len(each.users) for each in chained._shared.values()] == [2], "the subscriptions of both")
    (shared,) = chained._shared.values()
    one, two = below
    two.consumer.close()
    two.consumer = Consumer(two.mux.port)
    wait_until(lambda: len(shared.users) == 1, "the other subscription to end")
    plant.publish(packed(TOPIC, quote("A", 2)))
    assert one.consumer.wait_for(TOPIC, 2) == [1, 2]
    one.consumer.close()
    one.consumer = Consumer(one.mux.port)
    wait_until(lambda: not chained._shared and not chained._group._brings_after, "the last subscription to end")


@pytest.mark.spec("ADPT-3")
def test_a_node_that_does_not_hear_the_group_gets_everything_itself(
    plant: NodeHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = free_channel()
    monkeypatch.setattr(datagrams, "GROUP_SILENCE_NS", 1_500_000_000)
    monkeypatch.setattr(datagrams, "group_socket", lambda channel: group_socket(elsewhere))
    deaf = Below(plant, "deaf")
    try:
        plant.publish(packed(TOPIC, quote("A", 2)))  # sent to the group until the node gives the group up
        wait_until(lambda: not plant.node._server._downstream._members, "the group to be given up")
        assert deaf.consumer.wait_for(TOPIC, 2) == [1, 2]
        plant.publish(packed(TOPIC, quote("A", 3)))
        deaf.consumer.wait_for(TOPIC, 3)
    finally:
        deaf.close()


@pytest.mark.spec("ADPT-3")
@pytest.mark.parametrize("plant", ["resend"], indirect=True)
def test_only_nodes_with_equal_rights_share_the_group(plant: NodeHere) -> None:
    access, chained, data = plant.node._access, plant.node._server._downstream, plant.node._data

    def opened(name: str, rights: Rights, *, takes_group: bool = True) -> DatagramSender:
        party = access.enter(LOCAL, Login(name, "datagram", is_node=True, port=9, takes_group=takes_group))
        party.rights = rights
        return data.ask(lambda: chained.open(party)).result(PATIENCE_SECONDS)

    everything = Rights()
    less = Rights("", (Grant("md.>", "receive"), Grant("!md.A.>", "receive")))
    assert opened("unwilling", everything, takes_group=False).group is None
    first, same, other = opened("a", everything), opened("b", everything), opened("c", less)
    assert first.group is same.group is chained._group is not None
    assert other.group is None
    member = next(each for each in access.parties.values() if each.name == "a")
    chained.check_rights(member, everything.text)
    with pytest.raises(RefusalError):
        chained.check_rights(member, less.text)
