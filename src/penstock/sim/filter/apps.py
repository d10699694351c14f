"""Applications behind a filter module: a receiver, a control connection, and interests that change."""

from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.base.clock import NS_PER_MS
from penstock.base.errors import SimulationError
from penstock.base.ids import format_group, parse_group
from penstock.filter.core.events import Attached, StreamOver, StreamPosition, Want, Wish
from penstock.middleware import (
    Address,
    Collision,
    Deliver,
    DeliverBatch,
    Expect,
    ExpectEnd,
    Multicast,
    Receiver,
    StreamKey,
    Unicast,
)
from penstock.middleware.core.events import ReceiverInstruction
from penstock.middleware.core.incoming_stream import IncomingStream
from penstock.sim.datagram_node import DatagramNode
from penstock.sim.filter.control import RETRY_NS_MAX, Change, Connection, Gone, Holds, Register, Registered, Said
from penstock.sim.filter.wants import SentMessage, Wants
from penstock.sim.log import describe
from penstock.sim.middleware.stranger import scope
from penstock.wire import Authenticator, Extension, PacketMessage, decode_interest_mask
from penstock.wire._codec import PACKET_GROUP_AT, PACKET_PUBLISHER_ID_AT

if TYPE_CHECKING:
    from penstock.sim.filter.nodes import FilterNode
    from penstock.sim.filter.plant import FilterPlant

RING_PACKETS_MAX = 64
NUMBERS_PER_APPLICATION = 1_000


class ApplicationNode(DatagramNode):
    """An application that changes its interests and reports everything to the checkers. After each start it is a new
    application for the filter."""

    def __init__(self, plant: "FilterPlant", index: int, module: "FilterNode", delivery: Wish) -> None:
        super().__init__(plant.world, f"app-{index}", "receiver", plant.network, ())
        self.plant = plant
        self.module = module
        self.delivery = delivery
        self.entitlement = plant.world.randomness.fork(f"entitlement/{index}").choose(["gold", "gold", "silver"])
        self.wants = Wants(0)
        self._index = index
        self._connection: Connection | None = None
        self._attached: Attached | None = None
        self._filter: Address | None = None
        self._changes = 0
        self._pending: dict[int, Wants] = {}
        self._positions: dict[StreamKey, tuple[int, int]] = {}  # since the registration with this filter
        self._is_resting = False
        self._authenticator: Authenticator | None = None

    @property
    def number(self) -> int:
        """The application's address for direct messages."""
        return self._index * NUMBERS_PER_APPLICATION + self.incarnation

    @property
    def groups(self) -> tuple[int, ...]:
        """Groups that the application has joined."""
        return self.wants.groups

    def listens_to(self, group: int) -> bool:
        return group in self.groups

    def on_start(self) -> None:
        randomness = self.world.randomness.fork(f"{self.name}/{self.incarnation}")
        options = self.plant.options
        self._authenticator = Authenticator([scope(options.publishers)]) if options.is_authentic else None
        self.run(
            Receiver(options.receiver, randomness, self.counters, only_expected=True, authenticator=self._authenticator)
        )
        self.wants = Wants(self.number)
        self._pending.clear()
        self._positions.clear()
        self._attached = self._filter = self._connection = None
        self.listen()
        self.module.local.attach(self.address(), self._arrive)
        incarnation = self.incarnation
        self._connect(incarnation)
        self.world.after(self._randomness.below(5 * NS_PER_MS), lambda: self._work(incarnation))

    def on_crash(self) -> None:
        super().on_crash()
        self.module.local.detach(self.address())
        if self._connection is not None:
            self._connection.break_off()

    def rest(self) -> None:
        """Stop changing interests."""
        self._is_resting = True

    def streams(self) -> list[IncomingStream]:
        assert self.core is None or isinstance(self.core, Receiver)
        return self.core.streams() if self.core else []

    def write_ring(self, data: bytes, source: Address, reader: Address) -> None:
        """A ring does not wait for its reader, which may have ended."""
        if self.is_up and self.address() == reader and len(self._waiting) < RING_PACKETS_MAX:
            self._arrive(data, source)

    # Interests and the control connection

    def _work(self, incarnation: int) -> None:
        if self.incarnation != incarnation or not self.is_up or (self._is_resting and self.wants.groups):
            return
        wants = Wants.draw(self.number, [*self.plant.groups], self._randomness)
        if self.wants.groups and self._randomness.chance(0.1):
            wants = Wants(self.number)  # no interests for a while
        before, self.wants = self.wants, wants
        self.log(f"wants {wants}")
        for group in set(before.groups) - set(wants.groups):
            self._forget(group)
        self._ask(wants.added_since(before), wants.removed_since(before))
        interval_ns = self.plant.options.change_interval_ms * NS_PER_MS
        self.world.after(self._randomness.below(2 * interval_ns), lambda: self._work(incarnation))

    def _forget(self, group: int) -> None:
        """Leave the group; after the next join, streams begin at the position given by the filter."""
        assert isinstance(self.core, Receiver)
        self._waiting = deque(each for each in self._waiting if _group_of(each[0]) != group)
        self._positions = {key: since for key, since in self._positions.items() if key.group != group}
        for instruction in self.core.forget(group):
            self.carry_out(instruction)
        self.plant.forgot(self.viewer(), group)

    def _ask(self, add: Any, remove: Any) -> None:
        self._changes += 1
        self._pending[self._changes] = self.wants
        self.plant.wanted(self.viewer(), self._changes, self.wants)
        if self._connection is not None and self._attached is not None:
            self._connection.to_filter(Change(self._changes, Want(self.number, add, remove)))

    def _connect(self, incarnation: int) -> None:
        if self.incarnation != incarnation or not self.is_up or self._connection is not None:
            return
        if self.module.core is None:
            self.world.after(1 + self._randomness.below(RETRY_NS_MAX), lambda: self._connect(incarnation))
            return
        self._connection = Connection(self.world, self, self.module)
        self._connection.to_filter(Register(self.number, self.address(), self.delivery, self.entitlement))

    def take(self, event: Any) -> None:
        if isinstance(event, Said):
            message = event.connection.at_application()
            if event.connection is self._connection:
                self._hear(message)
            return
        super().take(event)

    def _hear(self, message: Any) -> None:
        match message:
            case Registered(attached, filter_address):
                self._attached, self._filter = attached, filter_address
                if self._authenticator is not None:  # as an application's receiver does
                    keys = (attached.key, attached.group_key)
                    self._authenticator.trust({filter_address: [key for key in keys if key is not None]})
                self._positions.clear()
                if self.delivery == "shared":
                    self.module.local.join(self.address(), parse_group(attached.address[0]))
                self._ask(self.wants.as_interests(), ())
            case Holds(number):
                for each in [each for each in self._pending if each <= number]:
                    del self._pending[each]
                    self.plant.held(self.viewer(), each)
            case StreamPosition():
                self._expect(message)
            case StreamOver(key, epoch, next_sequence):
                self.log(f"is told {message}")
                if key in self._positions:
                    super().take(ExpectEnd(key, epoch, next_sequence))
            case Collision():
                self.log(f"is told {message}")
            case Gone():
                if self._attached is not None and self.delivery == "shared":  # another socket may soon have the address
                    self.module.local.leave(self.address(), parse_group(self._attached.address[0]))
                self._connection = self._attached = None
                self._connect(self.incarnation)
            case _:
                raise SimulationError(f"{self.name} hears {message}")

    def _expect(self, position: StreamPosition) -> None:
        assert self._filter is not None
        key = position.stream
        repair_source = position.source if self.plant.options.filter.repair == "receivers" else None
        if key.group in self.wants.groups:
            self._positions[key] = (position.epoch, position.next_sequence)
            super().take(Expect(key, position.epoch, position.next_sequence, self._filter, repair_source))

    # Packets

    def _arrive(self, data: bytes, source: Address) -> None:
        """With shared delivery, some packets are for other applications, or precede the start of the stream for this
        one.
        """
        if _group_of(data) not in self.wants.groups:
            return
        if self.delivery == "shared" and _stream_of(data) not in self._positions:
            return
        super()._arrive(data, source)

    def carry_out(self, instruction: ReceiverInstruction) -> None:
        match instruction:
            case Multicast(group, data):
                self.log(f"multicast {describe(data)}")
                self.network.multicast(self.address(), group, data)
            case Unicast(destination, data):
                self.log(f"send to {destination[0]} {describe(data)}")
                is_local = destination[0] == self.module.name
                (self.module.local if is_local else self.network).unicast(self.address(), destination, data)
            case DeliverBatch():
                for deliver in instruction.one_by_one():
                    self.carry_out(deliver)
                return
            case Deliver():
                chosen = [message for message in instruction.messages if self._is_mine(instruction, message)]
                instruction = msgspec.structs.replace(instruction, messages=chosen)
                stream = f"publisher {instruction.stream.publisher_id} epoch {instruction.epoch}"
                packets = f"{format_group(instruction.stream.group)} packets {instruction.first}-{instruction.sequence}"
                self.log(f"deliver {stream} {packets}: {len(chosen)} messages")
            case _:
                self.log(f"{instruction}")
        self.plant.said(self.viewer(), instruction)

    def _is_mine(self, deliver: Deliver, message: PacketMessage) -> bool:
        """True if the message matches the interests; the filter's own result is used where the packet has it."""
        mask = message.extensions.get(Extension.INTEREST_MASK)
        since = self._positions.get(deliver.stream)
        is_bit_known = since is not None and since <= (deliver.epoch, deliver.sequence)
        if mask is not None and self._attached is not None and is_bit_known:
            return bool(decode_interest_mask(mask) >> self._attached.bit & 1)
        if self.delivery != "shared" and self.plant.options.filter.repair == "filter":
            return True
        group, payload = deliver.stream.group, bytes(message.payload)
        return self.wants.want(SentMessage.of(group, message.topic, message.model_id, payload))


def _stream_of(data: bytes) -> StreamKey:
    return StreamKey(
        int.from_bytes(data[PACKET_PUBLISHER_ID_AT : PACKET_PUBLISHER_ID_AT + 8], "little"), _group_of(data)
    )


def _group_of(data: bytes) -> int:
    return int.from_bytes(data[PACKET_GROUP_AT : PACKET_GROUP_AT + 4], "little")
