"""Consumers of a simulated pair: they settle messages one by one, or within transactions that also publish."""

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.assured.wire._layout import SETTLE_ACKNOWLEDGED, SETTLE_RETURNED
from penstock.assured.wire.control import Begin, Commit, Ended, FlowOpened, OpenFlow, OpenPublisher, PublisherOpened
from penstock.assured.wire.frames import Deliver, Delivered, Published, encode_credit, encode_publish, encode_settle
from penstock.base.clock import NS_PER_MS
from penstock.sim.replicated.clients import WANTED_TOGETHER, Client

if TYPE_CHECKING:
    from penstock.sim.replicated.plant import ReplicatedPlant

CREDIT = 20
TOGETHER = 3
"""Messages that are consumed in one transaction."""

FORWARDED = b"b.one"
"""Topic of the message that a transaction publishes."""


class _Consuming(msgspec.Struct, frozen=True):
    """A transaction with an unknown outcome."""

    transaction: int
    number: int
    """Number of the message that it publishes."""
    keys: list[tuple[int, int]]
    ids: list[int]


class SimConsumer(Client):
    """Receives an endpoint's messages and settles them sooner or later; only then more may arrive."""

    def __init__(self, plant: "ReplicatedPlant", endpoint: str, number: int, *, is_transacting: bool) -> None:
        super().__init__(plant, f"c{number}-{endpoint}")
        self.id = 2_000 + number
        self.endpoint = endpoint
        self.is_eager = False
        self._is_transacting = is_transacting
        self._handle = 0
        self._flow = 0
        self._settled = 0
        self._together: list[Delivered] = []
        self._consuming: _Consuming | None = None
        self._transaction = 0
        self._commit_request = 0

    def opened(self) -> None:
        self.say(OpenPublisher, self.id)
        self.say(OpenFlow, self.endpoint, CREDIT)

    def lost(self) -> None:
        self._handle = self._flow = self._settled = 0
        self._together.clear()

    @property
    def is_committing(self) -> bool:
        return self._consuming is not None

    def answered(self, answer: Any) -> None:
        match answer:
            case PublisherOpened(_, handle):
                self._handle = handle
                if self._consuming is not None:
                    self._commit_request = self.say(Commit, handle, self._consuming.transaction)
            case FlowOpened(_, handle):
                self._flow = handle
            case Ended(number, outcome, treatment) if number == self._commit_request and self._consuming is not None:
                consuming, self._consuming = self._consuming, None
                checker = self.plant.checker
                if outcome == "committed":
                    checker.committed(self.id, [consuming.number], treatment)
                    transaction = (self.id, consuming.transaction)
                    checker.consumed(self.endpoint, transaction, consuming.keys, consuming.ids, treatment)
                else:
                    checker.rolled_back(self.id, [consuming.number])
            case _:
                pass

    def framed(self, frame: Any) -> None:
        if not isinstance(frame, Deliver):
            return
        for message in frame.messages:
            self.plant.checker.delivered(self.endpoint, message)
            delay_ns = self.randomness.below((1 if self.is_eager else self.plant.options.settle_ms) * NS_PER_MS)
            self.plant.world.after(delay_ns, partial(self._settle, message, self._attempt))

    def _settle(self, message: Delivered, attempt: int) -> None:
        if attempt != self._attempt or not self._flow:
            return
        if self._is_transacting and not self.is_eager and self._handle and self._consuming is None:
            self._together.append(message)
            if len(self._together) == TOGETHER:
                self._transact()
        else:
            what = SETTLE_RETURNED if not self.is_eager and self.randomness.chance(0.05) else SETTLE_ACKNOWLEDGED
            self._settle_each([*self._together, message], what)
            self._together.clear()

    def hurry(self) -> None:
        """Settle everything from now on, at once."""
        self.is_eager = True
        if self._flow:
            self._settle_each(self._together, SETTLE_ACKNOWLEDGED)
        self._together.clear()

    def _settle_each(self, messages: list[Delivered], what: int) -> None:
        for each in messages:
            self.send(encode_settle(self._flow, [(each.id, each.id, what)]))
        self._give_credit(len(messages))

    def _give_credit(self, count: int) -> None:
        self._settled += count
        self.send(encode_credit(self._flow, self._settled + CREDIT))

    def _transact(self) -> None:
        """Acknowledge messages and publish one message in the same transaction."""
        self._transaction += 1
        number, together = self._transaction, self._together
        payload = b"forwarded" + number.to_bytes(8, "little")
        flags = self.randomness.choose(WANTED_TOGETHER)
        treatment = self.plant.treatment(FORWARDED, flags)
        self.plant.checker.published((self.id, number), FORWARDED, payload, transaction=number, treatment=treatment)
        keys = [(each.publisher, each.number) for each in together]
        self._consuming = _Consuming(number, number, keys, [each.id for each in together])
        self.plant.checker.consuming(self.endpoint, (self.id, number), keys)
        self.say(Begin, self._handle, number)
        for each in together:
            runs = [(each.id, each.id, SETTLE_ACKNOWLEDGED)]
            self.send(encode_settle(self._flow, runs, transaction=number))
        message = Published(FORWARDED, payload, flags=flags)
        self.send(encode_publish(self._handle, number, [message], transaction=number))
        self._commit_request = self.say(Commit, self._handle, number)
        self._give_credit(len(together))
        self._together = []
