"""Multiplexers of a simulated distribution plant: each subscribes at the node above to the items of its consumers."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.base.errors import RemoteProtocolError
from penstock.base.segment import Segment
from penstock.engine import EVENT_SIZE_MAX, SessionBuffer, control
from penstock.engine.control import Welcome
from penstock.engine.core.events import EngineInstruction, Lost, Sinks, Subscribe, Unsubscribe, Unwanted, Wanted
from penstock.middleware import Address
from penstock.model import MessageModel
from penstock.plant.core.incoming import FromAbove, Incoming, Updated
from penstock.plant.live.datagrams import Way
from penstock.sim.engine.chains import HeardStreams, Outlet
from penstock.sim.engine.links import SessionLink
from penstock.sim.engine.nodes import NOTICE_NS_MAX, DistributionNode, detach_later

if TYPE_CHECKING:
    from penstock.sim.engine.plant import EnginePlant


class DatagramLink:
    """The connection of a multiplexer whose events come by datagrams."""

    def __init__(self, mux: "MuxNode", buffer: SessionBuffer) -> None:
        self.address: Address = (mux.name, mux.plant.new_port())
        self._mux = mux
        self._buffer = buffer
        self._outlet: Outlet | None = None
        self._hearing: HeardStreams | None = None

    def open(self, consumer: int) -> Welcome:
        """Runs in the thread of the node above."""
        above, takes_group = self._mux.above, self._mux.plant.options.chain_class == "adaptive"
        assert above.chaining is not None
        sender, welcome = above.chaining.open(consumer, self._mux.name, self.address, takes_group=takes_group)
        self._outlet = Outlet(above, self._buffer, sender)
        return welcome

    def follow(self, welcome: Welcome) -> None:
        self._hearing = HeardStreams(self._mux, self.address, welcome, self)

    def wake(self) -> None:
        if self._outlet is not None:
            self._outlet.wake()

    def break_off(self) -> None:
        self._outlet = None
        if self._hearing is not None:
            self._hearing.crash()

    def take_datagram(self, data: bytes, way: Way) -> None:
        self._mux.ask(lambda: self._mux.read_datagram(self, data, way))

    def lose_datagrams(self) -> None:
        self._mux.ask(lambda: self._mux.lose_datagrams(self))

    def miss_datagrams(self, first_sequence: int, last_sequence: int) -> None:
        self._mux.ask(lambda: self._mux.miss_datagrams(self, first_sequence, last_sequence))

    def hear_no_group(self) -> None:
        self.miss_datagrams(0, 0)


class MuxNode(DistributionNode):
    """Subscribes at the node above to exactly the items of its consumers."""

    def __init__(self, plant: "EnginePlant", name: str, above: DistributionNode) -> None:
        super().__init__(plant, name)
        self.above = above
        self.link: SessionLink | DatagramLink | None = None
        self._consumer: int | None = None
        self._numbers: dict[str, int] = {}
        self._topics: dict[int, str] = {}
        self._held: set[int] = set()
        """Subscriptions requested on this connection; one that ends before it is requested again is not reported."""

        self._asked_above = 0
        self._incoming = Incoming(self._topics_of)
        self._was_attached = False

    def on_start(self) -> None:
        super().on_start()
        self._numbers.clear()
        self._topics.clear()
        self._was_attached = False
        self._connect()

    def on_crash(self) -> None:
        self._break_off()
        super().on_crash()

    # The link to the node above

    def wake(self) -> None:
        if self.link is not None:
            self.link.wake()

    def is_congested(self) -> bool:
        return isinstance(self.link, SessionLink) and self.link.is_congested()

    def observe(self) -> None:
        """Only the multiplexer's consumers are observed."""

    def node_is_gone(self) -> None:
        self._break_off()

    def region_opened(self, consumer: int, model: MessageModel, region: Segment, marks: Segment | None) -> None:
        """A multiplexer has no regions."""

    def cut(self) -> None:
        """Break the connection; both ends notice it later."""
        self._break_off()

    def _break_off(self) -> None:
        link, consumer, self.link, self._consumer = self.link, self._consumer, None, None
        if link is not None:
            self.log("the link to the node above is gone")
            link.break_off()
        if consumer is not None:
            above, incarnation = self.above, self.above.incarnation
            self.world.after(self.randomness.below(NOTICE_NS_MAX), lambda: detach_later(above, incarnation, consumer))
        if link is not None and self.is_up:
            self._connect_later()

    def _connect_later(self) -> None:
        incarnation = self.incarnation
        self.world.after(
            self.randomness.below(NOTICE_NS_MAX) + 1,
            lambda: self._connect() if self.incarnation == incarnation else None,
        )

    def _connect(self) -> None:
        if not self.is_up or self.link is not None:
            return
        if not self.above.is_up:
            self._connect_later()
            return
        buffer = SessionBuffer(2 * EVENT_SIZE_MAX)
        link = self._session(buffer) if self.above.chaining is None else DatagramLink(self, buffer)
        self.link = link
        self.above.ask(lambda: self._attach(link, buffer))

    def _session(self, buffer: SessionBuffer) -> SessionLink:
        speed = self.plant.options.chain_bytes_per_s
        link = SessionLink(
            self.world, self.randomness, buffer, speed, lambda: self.ask(lambda: self._read(link)), self.above.drained
        )
        return link

    def _attach(self, link: "SessionLink | DatagramLink", buffer: SessionBuffer) -> None:
        """Runs in the thread of the node above."""
        if self.link is not link:
            return
        self._consumer = number = self.above.attach(self, self.name, Sinks(buffer=buffer))
        self._held.clear()
        welcome = link.open(number) if isinstance(link, DatagramLink) else None
        self.ask(lambda: self._attached_above(link, welcome))

    def _attached_above(self, link: "SessionLink | DatagramLink", welcome: Welcome | None) -> None:
        if self.link is not link:
            return
        is_split = welcome is not None and bool(welcome.fresh_port or welcome.group)
        self._incoming.begin(is_again=self._was_attached, is_split=is_split)
        if self._was_attached:
            self.say(Lost())
        self._was_attached = True
        if welcome is not None and isinstance(link, DatagramLink):
            link.follow(welcome)
        for topic in [each for each, number in self._numbers.items() if number not in self._held]:
            self._ask_for(topic)

    def _ask_for(self, topic: str) -> None:
        self._asked_above += 1
        number = self._numbers[topic] = self._asked_above
        self._topics[number] = topic
        consumer, options = self._consumer, self.plant.options
        if consumer is not None:
            self._held.add(number)
            request = control.Subscribe(number, [topic], options.chain_class, options.chain_per_second)
            self.above.ask(lambda: self._subscribe_above(consumer, request))

    def _subscribe_above(self, consumer: int, request: control.Subscribe) -> None:
        """Runs in the thread of the node above."""
        if self._consumer == consumer and consumer in self.above.parties:
            self.above.say(Subscribe(consumer, request.number, request.topics, request.cls, request.per_second))
            if self.above.chaining is not None:
                self.above.chaining.subscribed(consumer, request)

    def _unsubscribe_above(self, consumer: int, number: int) -> None:
        """Runs in the thread of the node above."""
        if self._consumer == consumer and consumer in self.above.parties:
            self.above.say(Unsubscribe(consumer, number))
            if self.above.chaining is not None:
                self.above.chaining.unsubscribed(consumer, number)

    def _topics_of(self, subscription: int) -> list[str]:
        topic = self._topics.get(subscription)
        return [topic] if topic is not None and self._numbers.get(topic) == subscription else []

    def _read(self, link: SessionLink) -> None:
        if self.link is not link or not link.arrived:
            return
        try:
            self._take_from_above(self._incoming.read(link.arrived.popleft()))
        except RemoteProtocolError as error:
            self.plant.broke(f"{self.name} cannot read the data from the node above: {error}")

    def _take_from_above(self, events: Iterable[FromAbove]) -> None:
        for said in events:
            if isinstance(said, Updated):
                self.plant.publish_below(self.engine, said, self.world.now_ns())
            else:
                self.say(said)

    # Contents of datagrams

    def read_datagram(self, link: "DatagramLink", data: bytes, way: Way) -> None:
        if self.link is not link:
            return
        try:
            if way == "sure":
                self._take_from_above(self._incoming.read(data))
            else:
                self._take_from_above(self._incoming.read_fresh(data, is_group=way == "group"))
        except RemoteProtocolError:  # like DatagramReceiver: the item's definition was lost
            self.lose_datagrams(link)

    def lose_datagrams(self, link: "DatagramLink") -> None:
        """Like Upstream: request all subscriptions again."""
        if self.link is not link:
            return
        self.log("datagrams are lost")
        self.plant.datagram_losses += 1
        self._incoming.repair()
        self.say(Lost())
        for topic in list(self._numbers):
            self._release(topic)
            self._ask_for(topic)

    def miss_datagrams(self, link: "DatagramLink", first_sequence: int, last_sequence: int) -> None:
        consumer = self._consumer
        if self.link is link and consumer is not None:
            self.log(f"packets {first_sequence} to {last_sequence} of the group are missing")
            self.above.ask(lambda: self._miss_above(consumer, first_sequence, last_sequence))

    def _miss_above(self, consumer: int, first_sequence: int, last_sequence: int) -> None:
        """Runs in the thread of the node above."""
        if self._consumer == consumer and consumer in self.above.parties and self.above.chaining is not None:
            self.above.chaining.missed(consumer, first_sequence, last_sequence)

    def carry_out(self, instruction: EngineInstruction) -> None:
        match instruction:
            case Wanted(topics):
                for topic in topics:
                    self._ask_for(topic)
            case Unwanted(topics):
                for topic in topics:
                    self._release(topic)
            case _:
                super().carry_out(instruction)

    def _release(self, topic: str) -> None:
        number, consumer = self._numbers.pop(topic), self._consumer
        self._topics.pop(number, None)
        if consumer is not None and number in self._held:
            self._held.discard(number)
            self.above.ask(lambda: self._unsubscribe_above(consumer, number))
