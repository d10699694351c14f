"""The nodes of the middleware's plant: a publisher with a workload and a disk, and a receiver."""

from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND, NS_PER_US
from penstock.base.ids import Group, format_group
from penstock.middleware import (
    Address,
    Close,
    Closed,
    DatagramReceived,
    Deliver,
    DeliverBatch,
    Multicast,
    MulticastStored,
    OutgoingBatch,
    OutgoingMessage,
    Packable,
    Publish,
    PublishBatch,
    Publisher,
    PublisherConfig,
    Receiver,
    StreamKey,
    TopicList,
    Unicast,
)
from penstock.middleware.core.epoch import encode_epoch, next_epoch, slot_offset
from penstock.middleware.core.events import PublisherEvent, PublisherInstruction, ReceiverInstruction
from penstock.middleware.core.incoming_stream import IncomingStream
from penstock.sim.datagram_node import DatagramNode
from penstock.sim.disk import Disk, DiskFaults
from penstock.sim.log import describe
from penstock.sim.middleware.stranger import KEY, scope
from penstock.sim.network import Network
from penstock.sim.node import Node
from penstock.sim.world import World
from penstock.wire import Authenticator, PacketStore, decode
from penstock.wire._authentication import strip_trailer

if TYPE_CHECKING:
    from penstock.sim.middleware.plant import MiddlewarePlant


class PublishingOptions(Protocol):
    """Options of a plant with publishers."""

    messages_per_s: int
    message_size_max: int
    large_messages: float
    publisher: PublisherConfig
    disk: DiskFaults
    is_authentic: bool


class PublishingPlant(Protocol):
    """A plant that has publishers."""

    world: World
    network: Network
    groups: list[Group]

    @property
    def options(self) -> PublishingOptions: ...

    def published(self, key: StreamKey, epoch: int, message: OutgoingMessage) -> None: ...

    def sent(self, key: StreamKey, epoch: int, data: bytes) -> None: ...


EPOCH_FILE = "epoch"
TOPICS = ("md.sim.AAA.trade", "md.sim.BBB.trade", "md.sim.CCC.quote")
TOPIC_LIST = TopicList(TOPICS)
MODELS = 7
BATCHES = 0.3
"""The share of bursts that are published as a batch."""
BATCH_RECORD_SIZE_MAX = 128
"""Longest time from a datagram's arrival until the receiver's process runs."""


class PublisherNode(Node):
    """Publishes bursts of numbered messages; its epochs are stored on a disk that may fail."""

    def __init__(self, plant: PublishingPlant, number: int) -> None:
        super().__init__(plant.world, f"pub-{number}", "publisher")
        self.plant = plant
        self.publisher_id = number
        self.disk = Disk(plant.world, self.name, msgspec.structs.replace(plant.options.disk))
        self.farewells: list[tuple[StreamKey, int, int, bool]] = []
        """Each stream at its end: epoch, next sequence number, and whether the publisher was killed."""
        self._next_sequence: dict[int, int] = {}
        self._randomness = plant.world.randomness.fork(self.name)
        self._published = 0
        self._is_resting = False
        self._waiting: set[int] = set()
        """Groups with messages that wait for further messages, as those of a burst do."""

    def address(self) -> Address:
        return (self.name, 1_000 + self.incarnation)

    def on_start(self) -> None:
        self._claim_epoch()

    def on_crash(self) -> None:
        self.plant.network.detach(self.address())
        self._waiting.clear()
        self.disk.crash()

    def rest(self) -> None:
        """Publish no more messages; keep-alives continue."""
        self._is_resting = True

    def end(self, *, is_killed: bool) -> None:
        """Say goodbye or crash, and report the end of each stream to the checkers."""
        publisher = self._publisher()
        if publisher is None:
            return
        if not is_killed:
            self.handle(Close())
        for group in self.plant.groups:
            if (next_sequence := publisher.next_sequence(group)) > 1:
                self.farewells.append((StreamKey(self.publisher_id, group), publisher.epoch, next_sequence, is_killed))
        if is_killed:
            self.crash()

    def epoch(self) -> int | None:
        """The current epoch, if the publisher has one."""
        publisher = self._publisher()
        return publisher.epoch if publisher else None

    def kept(self) -> list[PacketStore]:
        publisher = self._publisher()
        buffers = [publisher.kept(group) for group in self.plant.groups] if publisher else []
        return [buffer for buffer in buffers if buffer is not None]

    def take(self, event: PublisherEvent) -> None:
        publisher = self._publisher()
        for group in sorted(self._waiting):
            self._flush(group)
        if isinstance(event, Publish | PublishBatch) and publisher is not None:
            messages = event.messages if isinstance(event, Publish) else _one_by_one(event.batch)
            for message in messages:
                self.plant.published(StreamKey(self.publisher_id, event.group), publisher.epoch, message)
        super().take(event)

    def carry_out(self, instruction: PublisherInstruction) -> None:
        match instruction:
            case Multicast(group, data):
                self._note_first_time(group, data)
                self.log(f"multicast {describe(data)}")
                self.plant.network.multicast(self.address(), group, data)
            case MulticastStored(group, store, first, last):
                for sequence in range(first, last + 1):
                    self.carry_out(Multicast(group, store.get(sequence) + store.trailer(sequence)))
            case Unicast(destination, data):
                self.log(f"send to {destination[0]} {describe(data)}")
                self.plant.network.unicast(self.address(), destination, data)
            case Closed():
                self.log("closed")

    def _note_first_time(self, group: int, data: bytes) -> None:
        data = bytes(strip_trailer(data))
        packet = decode(data)
        if packet.sequence == self._next_sequence.get(group, 1):
            self._next_sequence[group] = packet.sequence + 1
            self.plant.sent(StreamKey(self.publisher_id, group), packet.epoch, data)

    def _publisher(self) -> Publisher | None:
        assert self.core is None or isinstance(self.core, Publisher)
        return self.core

    def _claim_epoch(self) -> None:
        """Claim the next epoch, and start when the epoch is on the disk; retry if the write fails."""
        content = self.disk.read(EPOCH_FILE)
        epoch, incarnation = next_epoch(content), self.incarnation

        def again() -> None:
            if self.incarnation == incarnation and self.is_up:
                self._claim_epoch()

        def synced(is_durable: bool) -> None:
            if not is_durable:
                again()
            elif self.incarnation == incarnation and self.is_up:
                self._begin(epoch)

        try:
            self.disk.write(EPOCH_FILE, slot_offset(content), encode_epoch(epoch))
        except OSError as error:
            self.log(f"cannot write the epoch: {error.strerror}")
            self.world.after(NS_PER_SECOND, again)
        else:
            self.disk.fsync(EPOCH_FILE, synced)

    def _begin(self, epoch: int) -> None:
        self.log(f"epoch {epoch}")
        self._next_sequence.clear()
        options = self.plant.options
        publisher = Publisher(
            self.publisher_id, epoch, options.publisher, self.counters, is_authenticated=options.is_authentic
        )
        if options.is_authentic:
            publisher.authenticate([KEY], KEY.key_id)
        self.run(publisher)
        network, incarnation = self.plant.network, self.incarnation
        network.attach(self.address(), lambda data, source: self._receive(data, source, incarnation))
        for group in self.plant.groups:
            network.join(self.address(), group)
        self._work(incarnation)

    def _receive(self, data: bytes, source: Address, incarnation: int) -> None:
        if self.incarnation == incarnation:
            self.handle(DatagramReceived(data, source))

    def _work(self, incarnation: int) -> None:
        if self.incarnation != incarnation or not self.is_up or self._is_resting:
            return
        count = self._randomness.between(1, 8)
        group = self._randomness.choose(self.plant.groups)
        if self._randomness.chance(BATCHES):
            self.handle(PublishBatch(group, self._batch(count)))
        elif self.plant.options.publisher.linger_us:
            for _ in range(count):
                self._publish_in_burst(group, self._message())
        elif count > 1 or not self._publish_one(group, self._message()):
            self.handle(Publish(group, [self._message() for _ in range(count)]))
        mean_ns = NS_PER_SECOND * count // self.plant.options.messages_per_s
        is_pause = self._randomness.chance(0.01)  # long enough for keep-alives to matter
        delay_ns = 800 * NS_PER_MS if is_pause else self._randomness.below(2 * mean_ns)
        self.world.after(delay_ns, lambda: self._work(incarnation))

    def _message(self) -> OutgoingMessage:
        options = self.plant.options
        self._published += 1
        is_large = self._randomness.chance(options.large_messages)
        size = self._randomness.below(20 * options.publisher.packet_size_max if is_large else options.message_size_max)
        # the number makes every message of this publisher different from all others
        payload = self._published.to_bytes(8, "little") + self._randomness.bytes(size)
        return OutgoingMessage(self._randomness.choose(TOPICS), payload, model_id=self._randomness.below(MODELS))

    def _publish_one(self, group: int, message: OutgoingMessage) -> bool:
        """Publish a single message on the fast path, as a driver does; False if that is not possible."""
        publisher = self._publisher()
        if publisher is None or self.world.now_ns() < self.stalled_until_ns:
            return False
        now_ns = self.world.now_ns()
        stream = publisher.stream(group, now_ns)
        sequence = stream.publish_one(message.topic, message.payload, message.model_id, message.model_version, now_ns)
        if sequence:
            self.plant.published(StreamKey(self.publisher_id, group), publisher.epoch, message)
            self.carry_out(MulticastStored(group, stream.kept, sequence, sequence))
        return bool(sequence)

    def _publish_in_burst(self, group: int, message: OutgoingMessage) -> None:
        """Let the message wait for further messages, as a driver does in a burst, unless it takes the core."""
        publisher = self._publisher()
        now_ns = self.world.now_ns()
        if publisher is None or now_ns < self.stalled_until_ns or message.extensions:
            self.handle(Publish(group, [message]))
            return
        stream = publisher.stream(group, now_ns)
        if not stream.append(message.topic, message.payload, message.model_id, message.model_version):
            self.handle(Publish(group, [message]))
            return
        self.plant.published(StreamKey(self.publisher_id, group), publisher.epoch, message)
        is_first = group not in self._waiting
        self._waiting.add(group)
        if stream.is_full:
            self._flush(group)
        elif is_first:
            linger_ns, incarnation = self.plant.options.publisher.linger_us * NS_PER_US, self.incarnation
            self.world.after(linger_ns, lambda: self._flush(group) if self.incarnation == incarnation else None)

    def _flush(self, group: int) -> None:
        """Send what waits, as a driver's compiled thread does, even while the process is stalled."""
        publisher = self._publisher()
        if publisher is None or group not in self._waiting:
            return
        self._waiting.remove(group)
        now_ns = self.world.now_ns()
        stream = publisher.stream(group, now_ns)
        first, last = stream.take_unsent(now_ns)
        if first <= last:
            self.carry_out(MulticastStored(group, stream.kept, first, last))

    def _batch(self, count: int) -> OutgoingBatch:
        size = 8 + self._randomness.below(min(self.plant.options.message_size_max, BATCH_RECORD_SIZE_MAX))
        records = numpy.zeros((count, size), numpy.uint8)
        for record in records:
            self._published += 1
            content = self._published.to_bytes(8, "little") + self._randomness.bytes(size - 8)
            record[:] = numpy.frombuffer(content, numpy.uint8)
        which = [self._randomness.below(len(TOPICS)) for _ in range(count)]
        return OutgoingBatch(TOPIC_LIST, which, records)


def _one_by_one(batch: Packable) -> list[OutgoingMessage]:
    """The messages of a batch, for the checkers."""
    messages = []
    for offset, size, topic_offset, topic_size in batch.rows[
        ["payload_offset", "payload_size", "topic_offset", "topic_size"]
    ].tolist():
        topic = bytes(batch.topic_data[topic_offset : topic_offset + topic_size]).decode()
        messages.append(OutgoingMessage(topic, batch.payloads[offset : offset + size].tobytes()))
    return messages


class ReceiverNode(DatagramNode):
    """Receives all groups and reports everything to the checkers."""

    def __init__(self, plant: "MiddlewarePlant", number: int) -> None:
        super().__init__(plant.world, f"recv-{number}", "receiver", plant.network, plant.groups)
        self.plant = plant

    def on_start(self) -> None:
        randomness = self.world.randomness.fork(f"{self.name}/{self.incarnation}")
        authenticator = (
            Authenticator([scope(self.plant.options.publishers)]) if self.plant.options.is_authentic else None
        )
        self.run(Receiver(self.plant.options.receiver, randomness, self.counters, authenticator=authenticator))
        self.listen()

    def streams(self) -> list[IncomingStream]:
        assert self.core is None or isinstance(self.core, Receiver)
        return self.core.streams() if self.core else []

    def carry_out(self, instruction: ReceiverInstruction) -> None:
        match instruction:
            case Multicast(group, data):
                self.log(f"multicast {describe(data)}")
                self.plant.network.multicast(self.address(), group, data)
            case Unicast(destination, data):
                self.log(f"send to {destination[0]} {describe(data)}")
                self.plant.network.unicast(self.address(), destination, data)
            case DeliverBatch():
                for deliver in instruction.one_by_one():
                    self.carry_out(deliver)
                return
            case Deliver():
                stream = f"publisher {instruction.stream.publisher_id} epoch {instruction.epoch}"
                group_name = format_group(instruction.stream.group)
                packets = f"{instruction.first}-{instruction.sequence}"
                self.log(f"deliver {stream} {group_name} packets {packets}: {len(instruction.messages)} messages")
            case _:
                self.log(f"{instruction}")
        self.plant.said(self.viewer(), instruction)
