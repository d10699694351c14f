"""Publishers and filter modules of a plant with filters."""

from typing import TYPE_CHECKING, Any

import numpy

from penstock.base.ids import parse_group
from penstock.filter import FilterModule
from penstock.filter.core.events import (
    Attach,
    Attached,
    Detach,
    FilterInstruction,
    Join,
    Leave,
    Multicast,
    Opened,
    Send,
    Shut,
    Tell,
    Unicast,
)
from penstock.middleware import Collision, OutgoingBatch, OutgoingMessage, TopicList
from penstock.sim.datagram_node import DatagramNode
from penstock.sim.filter.control import Change, Connection, Gone, Holds, Register, Registered, Said
from penstock.sim.filter.wants import DIRECT, MARKED, MODEL, PATTERN, TAGGED, TOPICS
from penstock.sim.log import describe
from penstock.sim.middleware.nodes import PublisherNode
from penstock.sim.middleware.stranger import scope
from penstock.wire import (
    Authenticator,
    Extension,
    MessageFlag,
    encode_destination,
    encode_extensions,
    encode_tags,
)
from penstock.wire._authentication import trailer_under

if TYPE_CHECKING:
    from penstock.sim.filter.plant import FilterPlant

TOPIC_LIST = TopicList(TOPICS)
WITHOUT_PATTERN = bytes(byte | 0x80 for byte in range(256))
"""Replaces random bytes that could match the pattern."""
HALTED = encode_extensions({Extension.TAGS: encode_tags(["halted"])})


class FilteredPublisherNode(PublisherNode):
    """Publishes messages that differ in all properties that interests can match."""

    def __init__(self, plant: "FilterPlant", number: int) -> None:
        super().__init__(plant, number)
        self._filters = plant

    def _message(self) -> OutgoingMessage:
        pick = self._randomness
        marks = (TAGGED if pick.chance(0.2) else 0) | (MARKED if pick.chance(0.3) else 0)
        if pick.chance(0.05):
            return self._direct_message(marks)
        model_id = MODEL.id if pick.chance(0.5) else 0
        payload = self._payload(pick.below(100), marks, is_large=pick.chance(self.plant.options.large_messages))
        extensions = HALTED if marks & TAGGED else b""
        return OutgoingMessage(pick.choose(TOPICS), payload, model_id, 1, extensions=extensions)

    def _direct_message(self, marks: int) -> OutgoingMessage:
        """Send a direct message to a current or former application."""
        number = self._randomness.choose(self._filters.applications).number
        payload = self._payload(number, marks & ~TAGGED | DIRECT, is_large=False)
        extensions = encode_extensions({Extension.DESTINATION: encode_destination(number)})
        return OutgoingMessage("", payload, flags=int(MessageFlag.DIRECT), extensions=extensions)

    def _payload(self, level: int, marks: int, *, is_large: bool) -> bytes:
        options = self.plant.options
        self._published += 1
        size = self._randomness.below(20 * options.publisher.packet_size_max if is_large else options.message_size_max)
        record = bytes(MODEL.new(number=self._published, level=level, marks=marks))
        filling = self._randomness.bytes(size).translate(WITHOUT_PATTERN)
        return record + (PATTERN if marks & MARKED else b"") + filling

    def _publish_one(self, group: int, message: OutgoingMessage) -> bool:
        """Messages with extensions cannot take this path."""
        return not message.extensions and super()._publish_one(group, message)

    def _batch(self, count: int) -> OutgoingBatch:
        records = numpy.zeros((count, MODEL.record_size), numpy.uint8)
        for record in records:
            payload = self._payload(self._randomness.below(100), 0, is_large=False)
            record[:] = numpy.frombuffer(payload[: MODEL.record_size], numpy.uint8)
        which = [self._randomness.below(len(TOPICS)) for _ in range(count)]
        return OutgoingBatch(TOPIC_LIST, which, records)


class FilterNode(DatagramNode):
    """A filter module and its control connections."""

    def __init__(self, plant: "FilterPlant", number: int) -> None:
        super().__init__(plant.world, f"filter-{number}", "filter", plant.network, ())
        self.plant = plant
        self.local = plant.locals[number]
        self.connections: list[Connection] = []
        self.registered: dict[int, Connection] = {}
        self._consumers: dict[int, Opened] = {}

    def on_start(self) -> None:
        randomness = self.world.randomness.fork(f"{self.name}/{self.incarnation}")
        options = self.plant.options
        groups = self.plant.groups
        authenticator = Authenticator([scope(options.publishers)]) if options.is_authentic else None
        self.run(
            FilterModule(
                options.filter,
                randomness,
                self.counters,
                groups=groups,
                models=[MODEL],
                keeps_books=True,
                authenticator=authenticator,
            )
        )
        self.listen()
        self.local.attach(self.address(), self._arrive)

    def on_crash(self) -> None:
        super().on_crash()
        self.local.detach(self.address())
        self._consumers.clear()
        for connection in self.connections:
            connection.break_off()
        self.connections.clear()
        self.registered.clear()

    def module(self) -> FilterModule | None:
        assert self.core is None or isinstance(self.core, FilterModule)
        return self.core

    def take(self, event: Any) -> None:
        if not isinstance(event, Said):
            super().take(event)
            return
        message = event.connection.at_filter()
        match message:
            case Register(application, address, delivery, entitlement):
                self.registered[application] = event.connection
                super().take(Attach(application, address, delivery, self.name, entitlement))
            case Change(number, want):
                super().take(want)
                event.connection.to_application(Holds(number))
            case Gone():
                self.connections.remove(event.connection)
                for application in [each for each, its in self.registered.items() if its is event.connection]:
                    super().take(Detach(application))
                    del self.registered[application]

    def carry_out(self, instruction: FilterInstruction) -> None:
        match instruction:
            case Send(outbox):
                for consumer, data in outbox.packets():
                    self._deliver(self._consumers[consumer], data)
            case Unicast(destination, data):
                self.log(f"send to {destination[0]} {describe(data)}")
                is_local = destination[0] in self.plant.application_names
                (self.local if is_local else self.network).unicast(self.address(), destination, data)
            case Multicast(group, data):
                self.log(f"multicast {describe(data)}")
                self.network.multicast(self.address(), group, data)
            case Tell(application, what):
                self.log(f"tell {application}: {what}")
                self.registered[application].to_application(what)
            case Attached():
                self.registered[instruction.application].to_application(Registered(instruction, self.address()))
            case Opened():
                self._consumers[instruction.consumer] = instruction
            case Shut(consumer):
                del self._consumers[consumer]
            case Join(group):
                self.network.join(self.address(), group)
            case Leave(group):
                self.network.leave(self.address(), group)
            case Collision():
                self.plant.collided(self.name, instruction)

    def _deliver(self, consumer: Opened, data: bytes) -> None:
        self.log(f"to consumer {consumer.consumer} {describe(data)}")
        self.plant.forwarded(consumer, data)
        if consumer.key is not None:
            data += trailer_under(data, consumer.key)
        if consumer.delivery == "ring":
            self.plant.application_names[consumer.address[0]].write_ring(data, self.address(), consumer.address)
        elif consumer.delivery == "unicast":
            self.local.unicast(self.address(), consumer.address, data)
        else:
            self.local.multicast(self.address(), parse_group(consumer.address[0]), data)
