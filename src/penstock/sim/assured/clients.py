"""Simulated publishers and consumers of a message router, on links that break."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.assured.core.router.events import (
    Data,
    EndLink,
    Event,
    Instruction,
    LinkClosed,
    LinkOpened,
    RequestReceived,
    SendData,
    SendMessage,
)
from penstock.assured.wire._layout import OUTCOME_REFUSED, SETTLE_ACKNOWLEDGED, SETTLE_REJECTED, SETTLE_RETURNED
from penstock.assured.wire.control import (
    Begin,
    Commit,
    Ended,
    FlowEnded,
    FlowOpened,
    OpenFlow,
    OpenPublisher,
    PublisherOpened,
    Rollback,
)
from penstock.assured.wire.frames import (
    Acknowledge,
    Deliver,
    Delivered,
    Published,
    decode_frames,
    encode_credit,
    encode_publish,
    encode_settle,
)
from penstock.base.clock import NS_PER_MS
from penstock.base.errors import SimulationError
from penstock.sim.assured.deliveries import Key

if TYPE_CHECKING:
    from penstock.sim.assured.plant import AssuredPlant

DELAY_NS_MAX = 2 * NS_PER_MS
WINDOW = 64
CREDIT = 16


class Client:
    """Connects, and reconnects after each loss of the link."""

    def __init__(self, plant: "AssuredPlant", name: str) -> None:
        self.plant = plant
        self.name = name
        self.randomness = plant.world.randomness.fork(name)
        self.link = 0
        self._sent_ns = self._got_ns = 0
        self._request = 0
        self.wait(50, self._connect)

    def wait(self, ms_max: int, action: Callable[[], None]) -> None:
        self.plant.world.after(self.randomness.below(ms_max * NS_PER_MS), action)

    def _connect(self) -> None:
        if not self.plant.node.is_ready:
            self.wait(100, self._connect)
            return
        self.link = self.plant.next_link(self)
        self.send(LinkOpened(self.link, self.name))
        self.on_connect()

    def on_connect(self) -> None:
        raise NotImplementedError

    def on_lost(self) -> None:
        raise NotImplementedError

    def on_answer(self, answer: object) -> None:
        raise NotImplementedError

    def on_frame(self, frame: object) -> None:
        raise NotImplementedError

    def lost(self) -> None:
        """Called when the link has ended."""
        if self.link:
            self.plant.forget_link(self.link)
            self.link = 0
            self.on_lost()
            self.wait(100, self._connect)

    def cut(self) -> None:
        """Drop everything on the link; the router notices it later."""
        if self.link:
            link = self.link
            self.lost()
            self.wait(50, lambda: self.plant.node.from_client(link, LinkClosed(link)))

    def ask(self, make: type, *arguments: object) -> None:
        self._request += 1
        self.send(RequestReceived(self.link, make(self._request, *arguments)))

    def send(self, event: Event) -> None:
        """Deliver in order, after a delay; lost with the link."""
        link, world = self.link, self.plant.world
        self._sent_ns = max(self._sent_ns + 1, world.now_ns() + self.randomness.below(DELAY_NS_MAX))

        def arrive() -> None:
            if self.link == link:
                self.plant.node.from_client(link, event)

        world.at(self._sent_ns, arrive)

    def receive(self, instruction: Instruction) -> None:
        link, world = self.link, self.plant.world
        self._got_ns = max(self._got_ns + 1, world.now_ns() + self.randomness.below(DELAY_NS_MAX))

        def arrive() -> None:
            if self.link == link:
                self._take(instruction)

        world.at(self._got_ns, arrive)

    def _take(self, instruction: Instruction) -> None:
        match instruction:
            case SendMessage(_, FlowEnded()):
                self.lost()
            case SendMessage(_, answer):
                self.on_answer(answer)
            case SendData(_, data):
                for frame in decode_frames(data):
                    self.on_frame(frame)
            case EndLink(_, "not_active", _):
                self.lost()
            case EndLink(_, code, what):
                raise SimulationError(f"{self.name} was put out: {code}, {what}")


def _runs(messages: list[Delivered], what: int) -> list[tuple[int, int, int]]:
    """Runs of consecutive ids: a run covers all messages in flight, including those that have not arrived yet."""
    runs: list[tuple[int, int, int]] = []
    for each in sorted({message.id for message in messages}):
        if runs and runs[-1][1] + 1 == each:
            runs[-1] = (runs[-1][0], each, what)
        else:
            runs.append((each, each, what))
    return runs


class SimPublisher(Client):
    """Publishes bursts, and sends unanswered messages again on a new link."""

    def __init__(self, plant: "AssuredPlant", number: int) -> None:
        self.id = number
        self._number = 0
        self._handle = 0
        self.unresolved: dict[int, Published] = {}
        super().__init__(plant, f"publisher{number}")
        self._work()

    def on_connect(self) -> None:
        self.ask(OpenPublisher, self.id)

    def on_lost(self) -> None:
        self._handle = 0

    def on_answer(self, answer: object) -> None:
        assert isinstance(answer, PublisherOpened)
        self._handle = answer.handle
        for number, message in self.unresolved.items():
            self._send(number, [message])

    def on_frame(self, frame: object) -> None:
        assert isinstance(frame, Acknowledge)
        for run in frame.runs:
            for number in range(run.first, run.last + 1):
                if self.unresolved.pop(number, None) is None:
                    continue  # the answer to a message that was sent twice
                if run.what >= OUTCOME_REFUSED:
                    self.plant.checker.refuse(self.id, number)
                else:
                    self.plant.checker.acknowledge(self.id, number)

    def _send(self, first: int, messages: list[Published]) -> None:
        self.send(Data(self.link, encode_publish(self._handle, first, messages)))

    def _work(self) -> None:
        self.wait(20, self._work)
        if self.plant.is_resting or not self._handle or len(self.unresolved) > WINDOW:
            return
        messages = [self.plant.message(self.randomness, self.id, self._number + 1 + each) for each in range(
            self.randomness.between(1, 8)
        )]  # fmt: skip
        for each, message in enumerate(messages, start=self._number + 1):
            self.unresolved[each] = message
            self.plant.checker.publish(self.id, each, message)
        self._send(self._number + 1, messages)
        self._number += len(messages)


class SimConsumer(Client):
    """Consumes from an endpoint; acknowledges, returns, rejects or holds messages until its link breaks."""

    def __init__(self, plant: "AssuredPlant", endpoint: str, number: int) -> None:
        self.endpoint = endpoint
        self._flow = 0
        self._got = 0
        self._last: dict[tuple[int, bool], int] = {}
        """The highest id of first deliveries, by priority; separately for messages of this run of the router and of
        earlier runs.
        """
        super().__init__(plant, f"{endpoint}{number}")

    def on_connect(self) -> None:
        self._got = 0
        self._last = {}
        self.ask(OpenFlow, self.endpoint, CREDIT)

    def on_lost(self) -> None:
        self._flow = 0

    def on_answer(self, answer: object) -> None:
        assert isinstance(answer, FlowOpened)
        self._flow = answer.handle

    def on_frame(self, frame: object) -> None:
        assert isinstance(frame, Deliver)
        self._got += len(frame.messages)
        for message in frame.messages:
            self.plant.checker.deliver(self.endpoint, message)
            self._check_order(message)
        link = self.link
        self.wait(30, lambda: self._settle(frame.messages, link))
        self.send(Data(self.link, encode_credit(self._flow, self._got + CREDIT)))

    def _check_order(self, message: Delivered) -> None:
        if message.flags & 1 or self.endpoint == "dead":
            return
        before = self._last.get((message.priority, True), 0)
        if message.id <= before:
            raise SimulationError(f"{self.name} got {message.id} after {before}")
        self._last[message.priority, True] = message.id

    def _settle(self, messages: list[Delivered], link: int) -> None:
        if self.link != link or not self._flow:
            return
        draw = 0 if self.plant.is_resting else self.randomness.below(100)
        what = SETTLE_ACKNOWLEDGED if draw < 85 else SETTLE_RETURNED if draw < 93 else SETTLE_REJECTED
        self.send(Data(self.link, encode_settle(self._flow, _runs(messages, what))))


class SimTransactor(Client):
    """Consumes from an endpoint and publishes, in transactions; asks for the outcome again if its link broke."""

    def __init__(self, plant: "AssuredPlant", endpoint: str, number: int) -> None:
        self.id = number
        self.endpoint = endpoint
        self._number = 0
        self._transaction = 0
        self._handle = self._flow = self._got = 0
        self._held: list[Delivered] = []
        self._consumed: list[tuple[str, Key]] = []
        self._state = "idle"  # begun, ending, doubtful
        super().__init__(plant, f"transactor{number}")
        self._work()

    @property
    def is_settled(self) -> bool:
        return self._state == "idle"

    def on_connect(self) -> None:
        self._got = 0
        self._held = []
        self.ask(OpenPublisher, self.id)
        self.ask(OpenFlow, self.endpoint, CREDIT)

    def on_lost(self) -> None:
        self._handle = self._flow = 0
        if self._state == "begun":  # without a commit the transaction had no effect
            self._end("rolled_back")
        elif self._state == "ending":
            self._state = "doubtful"

    def on_answer(self, answer: object) -> None:
        match answer:
            case PublisherOpened(_, handle):
                self._handle = handle
                if self._state == "doubtful":
                    self._state = "ending"
                    self.ask(Commit, self._handle, self._transaction)
            case FlowOpened(_, handle):
                self._flow = handle
            case Ended(_, outcome):
                self._end(outcome)

    def _end(self, outcome: str) -> None:
        self._state = "idle"
        self.plant.checker.end(self.id, self._transaction, outcome, self._consumed)

    def on_frame(self, frame: object) -> None:
        if isinstance(frame, Deliver):
            self._got += len(frame.messages)
            for message in frame.messages:
                self.plant.checker.deliver(self.endpoint, message)
                self._held.append(message)
            self.send(Data(self.link, encode_credit(self._flow, self._got + CREDIT)))

    def _work(self) -> None:
        self.wait(40, self._work)
        if not self._handle or not self._flow:
            return
        if self._state == "idle" and (self._held or not self.plant.is_resting):
            self._state = "begun"
            self._transaction += 1
            self._consumed = []
            self.plant.checker.begin(self.id, self._transaction)
            self.ask(Begin, self._handle, self._transaction)
        elif self._state == "begun":
            self._do_some()

    def _do_some(self) -> None:
        if self._held:
            taken, self._held = self._held[:5], self._held[5:]
            runs = _runs(taken, SETTLE_ACKNOWLEDGED)
            self._consumed += [(self.endpoint, (each.publisher, each.number)) for each in taken]
            self.send(Data(self.link, encode_settle(self._flow, runs, transaction=self._transaction)))
        if not self.plant.is_resting:
            messages = [
                self.plant.message(self.randomness, self.id, self._number + 1 + each)
                for each in range(self.randomness.between(1, 4))
            ]
            for each, message in enumerate(messages, start=self._number + 1):
                self.plant.checker.publish_in(self.id, self._transaction, each, message)
            frame = encode_publish(self._handle, self._number + 1, messages, transaction=self._transaction)
            self.send(Data(self.link, frame))
            self._number += len(messages)
        if self.plant.is_resting or self.randomness.chance(0.5):
            self._finish()

    def _finish(self) -> None:
        if not self.plant.is_resting and self.randomness.chance(0.2):
            self.ask(Rollback, self._handle, self._transaction)
            self._end("rolled_back")
        else:
            self._state = "ending"
            self.ask(Commit, self._handle, self._transaction)
