"""The nodes of a feed's plant: adapters with their disks, and subscribers that merge what the adapters send."""

from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.base.clock import NS_PER_MS
from penstock.base.core import Tick
from penstock.feed.core.adapter import FeedAdapter
from penstock.feed.core.events import (
    AdapterEvent,
    AdapterInstruction,
    Announce,
    HealthMeasured,
    LaneAdvanced,
    PersistTerm,
    PublishConverted,
    RequestSource,
    RoleChanged,
    SendPeer,
    ServiceChanged,
    SourceDatagram,
    TermPersisted,
)
from penstock.feed.core.lines.arbiter import LineArbiter
from penstock.feed.core.lines.events import LineDatagram, LineInstruction, SessionStarted, SourceReady
from penstock.feed.core.session_dates import SessionDates
from penstock.feed.core.sync.health import Health
from penstock.feed.formats.mold import MoldUDP64
from penstock.middleware import (
    Address,
    DatagramReceived,
    DatagramsReceived,
    Discontinuity,
    Merged,
    MergedBatch,
    MergeGap,
    Merger,
    Multicast,
    MulticastStored,
    Publish,
    PublishBatch,
    Publisher,
    Receiver,
    SessionEvent,
    Unicast,
)
from penstock.middleware.core.batch import Packable
from penstock.middleware.core.epoch import encode_epoch, next_epoch, slot_offset
from penstock.middleware.core.events import MergerInstruction, PublisherInstruction
from penstock.sim.datagram_node import DatagramNode
from penstock.sim.disk import Disk
from penstock.sim.feed.exchange import CALENDAR, LINES
from penstock.sim.feed.packables import messages_of, origin_in
from penstock.sim.node import Node
from penstock.wire import Extension, decode_origin

if TYPE_CHECKING:
    from penstock.sim.feed.plant import FeedPlant

TERM_FILE = "term"
RETRY_NS = 20 * NS_PER_MS


class AdapterProcess:
    """The cores of an adapter, run as by its driver: sometimes the lane bypasses the core."""

    def __init__(self, node: "AdapterNode", feed: FeedAdapter, publisher: Publisher) -> None:
        self._node = node
        self.feed = feed
        self.publisher = publisher

    def handle(self, event: AdapterEvent | DatagramReceived, now_ns: int) -> list[Any]:
        match event:
            case DatagramReceived():
                return [*self.publisher.handle(event, now_ns)]
            case Tick():
                out = self._publish(self.feed.handle(event, now_ns), now_ns)
                return [*out, *self.publisher.handle(event, now_ns)]
            case SourceDatagram(stream_id, line, data, receive_ns):
                said = self.feed.arbiters[stream_id].handle(LineDatagram(line, data, receive_ns), now_ns)
                return self._take_lines(stream_id, said, now_ns)
            case _:
                return self._publish(self.feed.handle(event, now_ns), now_ns)

    def next_deadline_ns(self) -> int | None:
        deadlines = (self.feed.next_deadline_ns(), self.publisher.next_deadline_ns())
        return min((each for each in deadlines if each is not None), default=None)

    def _take_lines(self, stream_id: int, said: list[LineInstruction], now_ns: int) -> list[Any]:
        batches = [each.batch for each in said if isinstance(each, SourceReady)]
        is_plain = len(batches) == len(said) and self.feed.is_flowing(stream_id) and self._node.takes_lane()
        out: list[Any] = []
        if not is_plain:
            for piece in _cut_at_sessions(said):
                if isinstance(piece[0], SessionStarted):
                    self._node.sessions[stream_id] = piece[0].name
                out += self._publish(self.feed.take_line_instructions(stream_id, piece, now_ns), now_ns)
            return out
        for batch in batches:
            out += self._publish_batch(stream_id, self.feed.converters[stream_id].convert(batch), now_ns)
        return out + self._publish(self.feed.handle(LaneAdvanced(stream_id), now_ns), now_ns)

    def _publish(self, instructions: list[AdapterInstruction], now_ns: int) -> list[Any]:
        """Pass messages to the publisher, in order with the others."""
        out: list[Any] = []
        for instruction in instructions:
            match instruction:
                case PublishConverted(stream_id, converted):
                    out += self._publish_batch(stream_id, converted, now_ns)
                case Announce(stream_id, message):
                    self._node.note(stream_id, [(message.topic, origin_in(message.extensions), bytes(message.payload))])
                    out += self.publisher.handle(Publish(self._node.group, [message]), now_ns)
                case _:
                    out.append(instruction)
        return out

    def _publish_batch(self, stream_id: int, converted: Packable, now_ns: int) -> list[PublisherInstruction]:
        if not len(converted):
            return []
        self._node.note(stream_id, messages_of(converted))
        return self.publisher.handle(PublishBatch(self._node.group, converted), now_ns)


def _cut_at_sessions(said: list[LineInstruction]) -> list[list[LineInstruction]]:
    """Split the messages by session."""
    pieces: list[list[LineInstruction]] = []
    for each in said:
        if not pieces or isinstance(each, SessionStarted):
            pieces.append([])
        pieces[-1].append(each)
    return pieces


class AdapterNode(Node):
    """One adapter; its terms are on a disk that may be slow or fail."""

    def __init__(self, plant: "FeedPlant", index: int) -> None:
        super().__init__(plant.world, f"adapter-{index}", "feed")
        self.plant = plant
        self.index = index
        self.group = plant.groups[index]
        self.disk = Disk(plant.world, self.name, msgspec.structs.replace(plant.options.disk))
        self.health = Health()
        self.is_online = True
        self.persisted = 0
        self.sessions: dict[int, str] = {}
        """Handle the instructions of the lines of each source stream."""
        self._late: deque[Any] = deque()
        self._randomness = plant.world.randomness.fork(self.name)

    def handle(self, event: Any) -> None:
        """Events that arrive during a stall keep their order, as channels between adapters do."""
        if self.world.now_ns() >= self.stalled_until_ns and not self._late:
            super().handle(event)
            return
        self._late.append(event)
        if len(self._late) == 1:
            self.world.at(self.stalled_until_ns, self._catch_up)

    def _catch_up(self) -> None:
        if self.world.now_ns() < self.stalled_until_ns:
            self.world.at(self.stalled_until_ns, self._catch_up)
            return
        while self._late:
            super().handle(self._late.popleft())

    def address(self) -> Address:
        return (self.name, 1_000 + self.incarnation)

    def process(self) -> AdapterProcess | None:
        assert self.core is None or isinstance(self.core, AdapterProcess)
        return self.core

    def takes_lane(self) -> bool:
        return self._randomness.chance(0.5)

    def durable_term(self) -> int:
        return next_epoch(self.disk.read(TERM_FILE)) - 1

    def on_start(self) -> None:
        options, now_ns = self.plant.options, self.world.now_ns()
        self.is_online, self.persisted = True, self.durable_term()
        self.sessions.clear()
        config = msgspec.structs.replace(options.sync, index=self.index)
        arbiters = {each: LineArbiter(options.line, MoldUDP64(), lines=LINES) for each in self.plant.stream_ids}
        converters = {
            each: self.plant.market.converter(each, config.checkpoint_interval) for each in self.plant.stream_ids
        }
        dates = dict.fromkeys(self.plant.stream_ids, SessionDates(CALENDAR))
        feed = FeedAdapter(
            arbiters, converters, config, term=self.persisted, now_ns=now_ns, counters=self.counters, dates=dates
        )
        publisher = Publisher(self.index + 1, self.incarnation, options.publisher, self.counters)
        self.run(AdapterProcess(self, feed, publisher))
        network, incarnation = self.plant.network, self.incarnation
        network.attach(self.address(), lambda data, source: self._receive(data, source, incarnation))
        network.join(self.address(), self.group)
        self.handle(HealthMeasured(self.health))
        self.plant.peers.started(self.index)

    def on_crash(self) -> None:
        self._late.clear()
        self.plant.network.detach(self.address())
        self.disk.crash()
        self.plant.peers.crashed(self.index)

    def _receive(self, data: bytes, source: Address, incarnation: int) -> None:
        if self.incarnation == incarnation:
            self.handle(DatagramReceived(data, source))

    def note(self, stream_id: int, messages: list[Any]) -> None:
        self.plant.published(self, self.sessions.get(stream_id, ""), messages)

    def carry_out(self, instruction: Any) -> None:
        match instruction:
            case Multicast(group, data):
                self.plant.network.multicast(self.address(), group, data)
            case MulticastStored(group, store, first, last):
                for sequence in range(first, last + 1):
                    self.plant.network.multicast(self.address(), group, store.get(sequence))
            case Unicast(destination, data):
                self.plant.network.unicast(self.address(), destination, data)
            case SendPeer(index, message):
                self.plant.peers.send(self.index, index, message)
            case PersistTerm(term):
                self._persist(term)
            case RequestSource():
                self.plant.exchange.answer(self.index, instruction)
            case _:
                self.log(f"{instruction}")
                if isinstance(instruction, ServiceChanged):
                    self.is_online = instruction.is_online
                elif isinstance(instruction, RoleChanged):
                    self.plant.role_changed(self, instruction)

    def _persist(self, term: int) -> None:
        self.log(f"persist term {term}")
        incarnation = self.incarnation

        def again() -> None:
            if self.incarnation == incarnation and self.is_up:
                self._persist(term)

        def done(is_durable: bool) -> None:
            if not is_durable:
                self.world.after(RETRY_NS, again)
            elif self.incarnation == incarnation and self.is_up:
                self.persisted = max(self.persisted, term)
                self.handle(TermPersisted(term))

        try:
            self.disk.write(TERM_FILE, slot_offset(self.disk.read(TERM_FILE)), encode_epoch(term))
        except OSError:
            self.world.after(RETRY_NS, again)
        else:
            self.disk.fsync(TERM_FILE, done)


class SubscriberProcess:
    """A receiver and a merger behind it."""

    def __init__(self, receiver: Receiver, merger: Merger) -> None:
        self._receiver = receiver
        self._merger = merger

    def handle(self, event: DatagramsReceived | Tick, now_ns: int) -> list[MergerInstruction]:
        out: list[MergerInstruction] = []
        for instruction in self._receiver.handle(event, now_ns):
            out += self._merger.handle(instruction, now_ns)
        return out + (self._merger.handle(event, now_ns) if isinstance(event, Tick) else [])

    def next_deadline_ns(self) -> int | None:
        deadlines = (self._receiver.next_deadline_ns(), self._merger.next_deadline_ns())
        return min((each for each in deadlines if each is not None), default=None)


class SubscriberNode(DatagramNode):
    """Listens to all adapters and passes the events of an application to the checkers."""

    def __init__(self, plant: "FeedPlant", number: int) -> None:
        super().__init__(plant.world, f"sub-{number}", "subscriber", plant.network, plant.groups)
        self.plant = plant

    def on_start(self) -> None:
        randomness = self.world.randomness.fork(f"{self.name}/{self.incarnation}")
        receiver = Receiver(self.plant.options.receiver, randomness, self.counters)
        self.run(SubscriberProcess(receiver, Merger(self.plant.options.merger, self.counters)))
        self.listen()

    def carry_out(self, instruction: MergerInstruction) -> None:
        match instruction:
            case Multicast(group, data):
                self.plant.network.multicast(self.address(), group, data)
            case Unicast(destination, data):
                self.plant.network.unicast(self.address(), destination, data)
            case Merged() | MergedBatch():
                for message in instruction.messages:
                    origin = decode_origin(message.extensions[Extension.ORIGIN])
                    self.plant.delivered(self.viewer(), (message.topic, origin, bytes(message.payload)))
            case SessionEvent():
                self.log(f"{instruction}")
                self.plant.session(self.viewer(), instruction)
            case MergeGap() | Discontinuity():
                self.log(f"{instruction}")
                self.plant.told(self.viewer(), instruction)
            case _:
                self.log(f"{instruction}")
