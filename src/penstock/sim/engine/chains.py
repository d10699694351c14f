"""Datagram links of a simulated distribution plant: streams of packets from a node to the nodes below and to a group,
over a network that loses, repeats and reorders datagrams.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.base.core import Tick
from penstock.base.counters import Counters
from penstock.engine import EVENT_SIZE_MAX, SessionBuffer, control
from penstock.engine.control import ClassName, Login, Welcome
from penstock.engine.core.events import EngineEvent, Sinks
from penstock.middleware import (
    Address,
    Close,
    Closed,
    DatagramReceived,
    Multicast,
    MulticastStored,
    OutgoingMessage,
    Publish,
    Publisher,
    PublisherConfig,
    Receiver,
    ReceiverConfig,
    Unicast,
)
from penstock.middleware.core.events import PublisherInstruction, ReceiverInstruction
from penstock.net.udp import Channel
from penstock.plant.config import DatagramsConfig
from penstock.plant.core.access import Consumer
from penstock.plant.core.event_blocks import BLOCK_SIZE_MAX, Sender
from penstock.plant.live.datagrams import DatagramSender, Hearer, Way, authenticator_of, hear, streams_of
from penstock.plant.live.downstream import DownstreamNodes
from penstock.sim.node import Node
from penstock.wire import AuthenticationKey

if TYPE_CHECKING:
    from penstock.sim.engine.nodes import DistributionNode

INTERFACE, GROUP = "127.0.0.1", "239.255.1.2:7420"
CLASSES: tuple[ClassName, ...] = ("critical", "adaptive", "metered")


class PublishedStream(Node):
    """Replaces a MulticastPublisher: the same core on the simulated network."""

    def __init__(
        self,
        node: "DistributionNode",
        channel: Channel,
        *,
        to: Address | None = None,
        counters: Counters,
        config: PublisherConfig | None = None,
        publisher_id: int = 0,
        epoch: int = 1,
        keys: Sequence[AuthenticationKey] = (),
    ) -> None:
        super().__init__(node.world, f"{node.name}/stream", "publisher")
        self.address: Address = (node.name, node.plant.new_port())
        self.publisher_id = publisher_id or node.randomness.below(2**48) + 1
        self._network = node.plant.network
        self._group = channel.group_id
        self._to = to
        kept = PublisherConfig(retransmission_packets_max=node.plant.options.kept_packets)
        self._publisher = Publisher(self.publisher_id, epoch, config or kept, counters, is_authenticated=bool(keys))
        if keys:
            self._publisher.authenticate(keys, keys[-1].key_id)
        self.start()

    @property
    def next_sequence(self) -> int:
        return self._publisher.next_sequence(self._group)

    def publish(self, topic: str, payload: bytes) -> None:
        self.handle(Publish(self._group, (OutgoingMessage(topic, payload),)))

    def authenticate(self, keys: Sequence[AuthenticationKey], active_key_id: int) -> None:
        self._publisher.authenticate(keys, active_key_id)

    def close(self, *, linger: bool = True) -> None:
        if self.is_up:
            self.handle(Close())
            self.crash()

    def on_start(self) -> None:
        self._network.attach(self.address, lambda data, source: self.handle(DatagramReceived(data, source)))
        self.run(self._publisher)

    def on_crash(self) -> None:
        self._network.detach(self.address)

    def carry_out(self, instruction: PublisherInstruction) -> None:
        match instruction:
            case Multicast(group, data):
                if self._to is None:
                    self._network.multicast(self.address, group, data)
                else:
                    self._network.unicast(self.address, self._to, data)
            case MulticastStored(group, store, first, last):
                for sequence in range(first, last + 1):
                    self.carry_out(Multicast(group, store.get(sequence) + store.trailer(sequence)))
            case Unicast(destination, data):
                self._network.unicast(self.address, destination, data)
            case Closed():
                """Nothing to do: the caller drops it."""


class HeardStreams(Node):
    """The receiver of a node below, for one connection."""

    def __init__(self, node: "DistributionNode", address: Address, welcome: Welcome, hearer: Hearer) -> None:
        super().__init__(node.world, f"{node.name}/hearing", "receiver")
        self._node = node
        self._address = address
        self._hearer = hearer
        self._network = node.plant.network
        self._streams = streams_of(welcome, INTERFACE)
        self._authenticator = authenticator_of(welcome)
        self._host = welcome.host
        self._ways: dict[int, Way] = {each.channel.group_id: each.way for each in self._streams}
        self.start()

    def on_start(self) -> None:
        config = ReceiverConfig(nack_attempts_max=self._node.plant.options.nack_attempts)
        randomness = self._node.randomness.fork(f"hearing/{self._address[1]}")
        self.run(Receiver(config, randomness, self.counters, only_expected=True, authenticator=self._authenticator))
        self._network.attach(self._address, lambda data, source: self.handle(DatagramReceived(data, source)))
        for each in self._streams:
            if each.way == "group":
                self._network.join(self._address, each.channel.group_id)
            self.handle(each.expected_from(self._host))

    def on_crash(self) -> None:
        self._network.detach(self._address)

    def carry_out(self, instruction: ReceiverInstruction) -> None:
        match instruction:
            case Unicast(destination, data):
                self._network.unicast(self._address, destination, data)
            case Multicast():
                """Requests go to the publisher alone."""
            case _:
                hear(instruction, self._ways, self._hearer)


class Outlet:
    """A consumer of datagrams: events in its buffer are sent at once."""

    def __init__(self, node: "DistributionNode", buffer: SessionBuffer, sender: Sender) -> None:
        self._node = node
        self._buffer = buffer
        self._sender = sender

    def wake(self) -> None:
        is_any = False
        while block := self._buffer.take(BLOCK_SIZE_MAX):
            self._sender.send(block)
            is_any = True
        if is_any:  # updates without room in the buffer
            self._node.world.after(0, lambda: self._node.handle(Tick()))

    def is_congested(self) -> bool:
        return False  # the buffer is emptied at once

    def observe(self) -> None:
        """Consumers of the nodes below are observed."""

    def node_is_gone(self) -> None:
        """Each member of the group gets its own notification."""

    def region_opened(self, *_: Any) -> None:
        """The group has no regions."""


class Chaining:
    """The upstream side, in its thread: DownstreamNodes with the required parts of a node."""

    def __init__(self, node: "DistributionNode", config: DatagramsConfig) -> None:
        self._node = node
        self._parties: dict[int, Consumer] = {}
        self._streams: list[PublishedStream] = []
        randomness = node.randomness.fork("keys")

        def random(size: int) -> bytes:
            return bytes(randomness.below(256) for _ in range(size))

        self._downstream = DownstreamNodes(config, self, self, node.counters, self._publish, random)

    def _publish(self, channel: Channel, **options: Any) -> PublishedStream:
        stream = PublishedStream(self._node, channel, **options)
        self._streams.append(stream)
        return stream

    def enter(self, host: str, login: Login) -> Consumer:
        return Consumer(self._node.reserve(), login, host, CLASSES)

    def handle(self, event: EngineEvent) -> None:
        self._node.say(event)

    def attach(self, party: Consumer, sender: Sender | None = None) -> None:
        """The group, as a consumer."""
        assert sender is not None
        buffer = SessionBuffer(4 * EVENT_SIZE_MAX)
        self._node.attach(Outlet(self._node, buffer, sender), party.name, Sinks(buffer=buffer), party.number)

    def open(self, number: int, name: str, address: Address, *, takes_group: bool) -> tuple[DatagramSender, Welcome]:
        """Called when a node below was attached."""
        login = Login(name, "datagram", is_node=True, port=address[1], takes_group=takes_group)
        party = self._parties[number] = Consumer(number, login, address[0], CLASSES)
        sender = self._downstream.open(party)
        return sender, sender.introduce(Welcome(self._node.name, self._node.incarnation, number, list(CLASSES)))

    def subscribed(self, number: int, request: control.Subscribe) -> None:
        self._downstream.subscribed(self._parties[number], request, request.topics)

    def unsubscribed(self, number: int, subscription: int) -> None:
        self._downstream.unsubscribed(self._parties[number], subscription)

    def missed(self, number: int, first_sequence: int, last_sequence: int) -> None:
        self._downstream.missed(self._parties[number], control.Missed(first_sequence, last_sequence))

    def leave(self, number: int) -> None:
        party = self._parties.pop(number, None)
        sender = None if party is None else self._downstream.leave(party)
        if sender is not None:
            sender.close()

    def close(self) -> None:
        """The node has crashed."""
        for stream in self._streams:
            stream.crash()
