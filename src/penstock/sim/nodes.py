"""The nodes of the middleware's plant: a publisher with a workload and a disk, and a receiver."""

from typing import TYPE_CHECKING

from penstock.middleware import (
    Address,
    Close,
    Closed,
    DatagramReceived,
    Deliver,
    LossReceipt,
    Multicast,
    OutgoingMessage,
    Publish,
    Publisher,
    Receiver,
    StreamKey,
    Unicast,
)
from penstock.middleware.epoch import encode_epoch, next_epoch, slot_offset
from penstock.middleware.events import PublisherInstruction, ReceiverInstruction
from penstock.middleware.retransmission import RetransmissionBuffer
from penstock.middleware.stream import IncomingStream
from penstock.sim.checkers import Viewer
from penstock.sim.disk import Disk
from penstock.sim.node import Node
from penstock.sim.world import NS_PER_MS, NS_PER_SECOND
from penstock.wire import PacketFlag, decode

if TYPE_CHECKING:
    from penstock.sim.plant import MiddlewarePlant

EPOCH_FILE = "epoch"
TOPICS = ("md.sim.AAA.trade", "md.sim.BBB.trade", "md.sim.CCC.quote")


class PublisherNode(Node):
    """Publishes bursts of numbered messages; its epochs are on a disk that may fail."""

    def __init__(self, plant: "MiddlewarePlant", number: int) -> None:
        super().__init__(plant.world, f"pub-{number}", "publisher")
        self.plant = plant
        self.publisher_id = number
        self.disk = Disk(plant.world, self.name, plant.options.disk)
        self.farewells: list[tuple[StreamKey, int, int]] = []
        self._randomness = plant.world.randomness.fork(self.name)
        self._published = 0
        self._is_resting = False

    def address(self) -> Address:
        return (self.name, 1_000 + self.incarnation)

    def on_start(self) -> None:
        self._claim_epoch()

    def on_crash(self) -> None:
        self.plant.network.detach(self.address())
        self.disk.crash()

    def rest(self) -> None:
        """Publish nothing more; keep-alives go on."""
        self._is_resting = True

    def close(self) -> None:
        """Say goodbye, and tell the checkers where each stream ended."""
        publisher = self._publisher()
        if publisher is None:
            return
        self.handle(Close())
        for group in self.plant.groups:
            if (next_sequence := publisher.next_sequence(group)) > 1:
                self.farewells.append((StreamKey(self.publisher_id, group), publisher.epoch, next_sequence))

    def kept(self) -> list[RetransmissionBuffer]:
        publisher = self._publisher()
        buffers = [publisher.kept(group) for group in self.plant.groups] if publisher else []
        return [buffer for buffer in buffers if buffer is not None]

    def carry_out(self, instruction: PublisherInstruction) -> None:
        match instruction:
            case Multicast(group, data):
                packet = decode(data)
                if not packet.flags & PacketFlag.REPAIR and packet.ranges == []:
                    self.plant.sent(StreamKey(self.publisher_id, group), packet.epoch, data)
                self.log(f"send {packet.kind} {packet.sequence} flags {packet.flags} to {group}")
                self.plant.network.multicast(self.address(), group, data)
            case Unicast(destination, data):
                self.plant.network.unicast(self.address(), destination, data)
            case Closed():
                self.log("closed")

    def _publisher(self) -> Publisher | None:
        assert self.core is None or isinstance(self.core, Publisher)
        return self.core

    def _claim_epoch(self) -> None:
        content = self.disk.read(EPOCH_FILE)
        epoch, incarnation = next_epoch(content), self.incarnation
        self.disk.write(EPOCH_FILE, slot_offset(content), encode_epoch(epoch))

        def synced(is_durable: bool) -> None:
            if self.incarnation != incarnation or not self.is_up:
                return
            if is_durable:
                self._begin(epoch)
            else:
                self._claim_epoch()

        self.disk.fsync(EPOCH_FILE, synced)

    def _begin(self, epoch: int) -> None:
        self.log(f"epoch {epoch}")
        self.run(Publisher(self.publisher_id, epoch, self.plant.options.publisher, self.counters))
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
        burst = [self._message() for _ in range(self._randomness.between(1, 8))]
        self.handle(Publish(self._randomness.choose(self.plant.groups), burst))
        mean_ns = NS_PER_SECOND * len(burst) // self.plant.options.messages_per_s
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
        return OutgoingMessage(self._randomness.choose(TOPICS), payload)


class ReceiverNode(Node):
    """Listens to all groups and tells the checkers all it is told."""

    def __init__(self, plant: "MiddlewarePlant", number: int) -> None:
        super().__init__(plant.world, f"recv-{number}", "receiver")
        self.plant = plant

    def address(self) -> Address:
        return (self.name, 2_000 + self.incarnation)

    def viewer(self) -> Viewer:
        return Viewer(self.name, self.incarnation)

    def on_start(self) -> None:
        randomness = self.world.randomness.fork(f"{self.name}/{self.incarnation}")
        self.run(Receiver(self.plant.options.receiver, randomness, self.counters))
        network = self.plant.network
        network.attach(self.address(), lambda data, source: self.handle(DatagramReceived(data, source)))
        for group in self.plant.groups:
            network.join(self.address(), group)

    def on_crash(self) -> None:
        self.plant.network.detach(self.address())

    def streams(self) -> list[IncomingStream]:
        assert self.core is None or isinstance(self.core, Receiver)
        return self.core.streams() if self.core else []

    def carry_out(self, instruction: ReceiverInstruction) -> None:
        match instruction:
            case Multicast(group, data):
                self.log(f"nack to {group}")
                self.plant.network.multicast(self.address(), group, data)
            case Unicast(destination, data):
                self.log(f"nack to {destination}")
                self.plant.network.unicast(self.address(), destination, data)
            case Deliver():
                self.log(
                    f"deliver {instruction.stream} {instruction.epoch} {instruction.first}..{instruction.sequence}"
                )
                self.plant.said(self.viewer(), instruction)
            case LossReceipt():
                self.log(f"lost {instruction}")
                self.plant.said(self.viewer(), instruction)
            case _:
                self.log(f"{instruction}")
                self.plant.said(self.viewer(), instruction)
