"""Clients of a simulated pair, and its publishers; with their own implementation of the protocol."""

from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.assured.core.router.events import Data, EndLink, RequestReceived, SendData, SendMessage
from penstock.assured.wire._layout import MESSAGE_RESENT, MESSAGE_WANTS_ASYNC, MESSAGE_WANTS_SYNC, OUTCOME_REFUSED
from penstock.assured.wire.control import (
    Begin,
    Commit,
    Ended,
    FlowActive,
    FlowEnded,
    OpenPublisher,
    PublisherOpened,
    Refused,
    Rollback,
)
from penstock.assured.wire.frames import (
    Acknowledge,
    Published,
    decode_frames,
    encode_publish,
)
from penstock.base.clock import NS_PER_MS
from penstock.sim.link import LinkEnd
from penstock.sim.replicated.nodes import PairNode

if TYPE_CHECKING:
    from penstock.sim.replicated.plant import ReplicatedPlant

RETRY_NS_MAX = 60 * NS_PER_MS
WINDOW = 50
BATCH_MAX = 4
TRANSACTION_NS_MAX = 100 * NS_PER_MS
WANTED = (MESSAGE_WANTS_SYNC,) * 8 + (MESSAGE_WANTS_ASYNC, 0)
"""Used if publishers choose the replication mode."""

WANTED_TOGETHER = (MESSAGE_WANTS_SYNC, MESSAGE_WANTS_ASYNC, 0)
"""The same choice within transactions."""


class Client:
    """Tries both routers in turn, and refuses an epoch older than the highest one it has seen."""

    def __init__(self, plant: "ReplicatedPlant", name: str) -> None:
        self.plant = plant
        self.name = name
        self.randomness = plant.world.randomness.fork(name)
        self.node: PairNode | None = None
        self._end: LinkEnd[Any] | None = None
        self._link = 0
        self._turn = self.randomness.below(2)
        self._epoch = 0
        self._request = 0
        self._attempt = 0

    def start(self) -> None:
        self.plant.world.after(self.randomness.below(RETRY_NS_MAX), self._connect)

    def _connect(self) -> None:
        self._attempt += 1
        self._turn += 1
        node = self.plant.routers[self._turn % 2]
        is_old = node.epoch() < self._epoch
        attempt = self._attempt
        ends = (
            None
            if is_old
            else self.plant.connect(self.name, node, partial(self._receive, attempt), partial(self._ended, attempt))
        )
        if ends is None:
            self._again()
            return
        self._epoch, self.node = node.epoch(), node
        self._end, theirs = ends
        self._link = node.client_opened(theirs, self.name)
        theirs.ended = partial(node.client_gone, self._link)
        theirs.receive = partial(node.client_said, self._link)
        self.opened()

    def _again(self) -> None:
        self._end = self.node = None
        self.plant.world.after(self.randomness.below(RETRY_NS_MAX), self._connect)

    def _ended(self, attempt: int) -> None:
        if attempt == self._attempt and self._end is not None:
            self.lost()
            self._again()

    def leave(self) -> None:
        if self._end is not None:
            self._end.link.end()

    def say(self, request: type, *fields: Any) -> int:
        """Send a request and return its number."""
        self._request += 1
        if self._end is not None:
            number = self._request
            self._end.send(lambda link: RequestReceived(link, request(number, *fields)))
        return self._request

    def send(self, data: bytes) -> None:
        if self._end is not None:
            self._end.send(lambda link: Data(link, data))

    def _receive(self, attempt: int, what: Any) -> None:
        if attempt != self._attempt:
            return
        match what:
            case EndLink():
                self.leave()
            case SendMessage(_, Refused() as refusal):
                self.refused(refusal)
            case SendMessage(_, FlowActive() | FlowEnded()):
                pass
            case SendMessage(_, answer):
                self.answered(answer)
            case SendData(_, data):
                for frame in decode_frames(data):
                    self.framed(frame)
            case _:
                pass

    # Provided by a subclass

    @property
    def is_committing(self) -> bool:
        """True while the outcome of a transaction is unknown."""
        raise NotImplementedError

    def opened(self) -> None:
        raise NotImplementedError

    def lost(self) -> None:
        raise NotImplementedError

    def answered(self, answer: Any) -> None:
        raise NotImplementedError

    def framed(self, frame: Any) -> None:
        raise NotImplementedError

    def refused(self, refusal: Refused) -> None:
        self.leave()


class SimPublisher(Client):
    """Publishes bursts, some of them as transactions, and repeats unacknowledged messages."""

    def __init__(self, plant: "ReplicatedPlant", number: int) -> None:
        super().__init__(plant, f"p{number}")
        self.id = 1_000 + number
        self.is_resting = False
        self.waiting: dict[int, Published] = {}
        self._handle = 0
        self._next = 1
        self._transaction = 0
        self._committing: tuple[int, list[int]] | None = None
        """(transaction, its numbers) with an unknown outcome."""
        self._commit_request = 0
        self._together: list[int] = []
        """Numbers of a transaction that is open."""

    def start(self) -> None:
        super().start()
        self._work()

    def opened(self) -> None:
        self.say(OpenPublisher, self.id)

    def lost(self) -> None:
        self._handle = 0
        self.plant.checker.rolled_back(self.id, self._together)  # the commit was not requested
        self._together = []

    @property
    def is_committing(self) -> bool:
        return self._committing is not None or bool(self._together)

    def answered(self, answer: Any) -> None:
        match answer:
            case PublisherOpened(_, handle):
                self._handle = handle
                for number, message in self.waiting.items():
                    again = message._replace(flags=message.flags | MESSAGE_RESENT)
                    self.send(encode_publish(handle, number, [again]))
                if self._committing is not None:
                    self._commit_request = self.say(Commit, handle, self._committing[0])
            case Ended(number, outcome, treatment) if number == self._commit_request and self._committing is not None:
                _, numbers = self._committing
                self._committing = None
                if outcome == "committed":
                    self.plant.checker.committed(self.id, numbers, treatment)
                else:
                    self.plant.checker.rolled_back(self.id, numbers)
            case _:
                pass

    def framed(self, frame: Any) -> None:
        if isinstance(frame, Acknowledge):
            for first, last, outcome, *_ in frame.runs:
                for number in range(first, last + 1):
                    if self.waiting.pop(number, None) is not None:
                        assert outcome < OUTCOME_REFUSED, f"{self.name} is refused {number}: {outcome}"
                        self.plant.checker.acknowledged(self.id, number, outcome)

    def _work(self) -> None:
        self.plant.world.after(self.randomness.below(80 * NS_PER_MS), self._work)
        if not self._handle or self.is_resting or len(self.waiting) >= WINDOW:
            return
        count = self.randomness.between(1, BATCH_MAX)
        if self._together:
            return  # the numbers of a transaction follow each other
        if self.randomness.chance(0.2) and self._committing is None:
            self._transact(count)
            return
        first = self._next
        messages = [self._message() for _ in range(count)]
        self.waiting.update(enumerate(messages, first))
        self.send(encode_publish(self._handle, first, messages))

    def _message(self, transaction: int = 0) -> Published:
        topic = self.randomness.choose(self.plant.topics)
        flags = self.randomness.choose(WANTED_TOGETHER if transaction else WANTED)
        message = Published(topic, self._next.to_bytes(8, "little") + bytes(self.randomness.below(200)), flags=flags)
        self.plant.checker.published(
            (self.id, self._next),
            topic,
            message.payload,
            transaction=transaction,
            treatment=self.plant.treatment(topic, flags),
        )
        self._next += 1
        return message

    def _transact(self, count: int) -> None:
        """Send a part at once and the rest later, unless the link has ended by then."""
        self._transaction += 1
        first = self._next
        messages = [self._message(self._transaction) for _ in range(count)]
        self._together = list(range(first, self._next))
        self.say(Begin, self._handle, self._transaction)
        self.send(encode_publish(self._handle, first, messages, transaction=self._transaction))
        delay_ns = self.randomness.below(TRANSACTION_NS_MAX)
        self.plant.world.after(delay_ns, partial(self._end_transaction, self._transaction))

    def _end_transaction(self, transaction: int) -> None:
        if transaction != self._transaction or not self._together:
            return
        numbers, self._together = self._together, []
        if self.randomness.chance(0.2):
            self.say(Rollback, self._handle, transaction)
            self.plant.checker.rolled_back(self.id, numbers)
            return
        first = self._next
        messages = [self._message(transaction) for _ in range(self.randomness.below(BATCH_MAX))]
        if messages:
            self.send(encode_publish(self._handle, first, messages, transaction=transaction))
        self._committing = (transaction, [*numbers, *range(first, self._next)])
        self._commit_request = self.say(Commit, self._handle, transaction)
