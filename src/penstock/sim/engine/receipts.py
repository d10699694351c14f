"""Observers of the behaviour of a simulated distribution plant under load and faults.

ReceiptChecker    each receipt has a cause, and a healthy plant makes no more receipts (StoryChecker and RecordChecker
                  check that each loss has a receipt)
SignalChecker     while a node sheds load, conflatable updates are no longer critical, and others stay critical
"""

from typing import TYPE_CHECKING

from penstock.base.clock import NS_PER_SECOND
from penstock.engine import Event
from penstock.engine.core.kernel._event import EventFlag, EventKind, ReceiptCause, TransmissionClass
from penstock.model import Message
from penstock.sim.engine.checkers import EngineChecker
from penstock.sim.engine.consumers import Connection, Defined
from penstock.sim.engine.market import NEVER, Market

if TYPE_CHECKING:
    from penstock.sim.engine.consumers import ConsumerNode
    from penstock.sim.engine.options import EnginePlantOptions
    from penstock.sim.engine.plant import EnginePlant

CALM_NS = 2 * NS_PER_SECOND
"""Time after the last update and the last fault during which their effects may still be reported."""


class ReceiptChecker(EngineChecker):
    def __init__(self, market: Market, options: "EnginePlantOptions") -> None:
        super().__init__(market)
        self._has_budget = options.budget_bytes >= 0
        self._overrun: set[Connection] = set()
        self._resting_since_ns: int | None = None

    def overran(self, connection: Connection) -> None:
        self._overrun.add(connection)

    def step(self, plant: "EnginePlant") -> None:
        if plant.is_resting and self._resting_since_ns is None:
            self._resting_since_ns = plant.world.now_ns()

    def wrote_receipt(self, connection: Connection, cause: ReceiptCause, now_ns: int) -> None:
        """A receipt was written into a ring, or read from a session."""
        where = f"{connection} gets a receipt, {cause.name}"
        reasons = {
            ReceiptCause.UPSTREAM: connection.is_below,
            ReceiptCause.OVERRUN: connection in self._overrun,
            ReceiptCause.SATURATED: self._has_budget,
            ReceiptCause.SLOW: True,
        }
        self.require(reasons[cause], f"{where}, for no reason")
        since_ns = self._resting_since_ns
        self.require(since_ns is None or now_ns < since_ns + CALM_NS, f"{where}, in a quiet plant")

    def told(self, connection: Connection, event: Event, defined: Defined | None, message: Message | None) -> None:
        if event.kind == EventKind.RECEIPT:
            first, last, cause = event.lost
            where = f"{connection}, a receipt for {first} to {last}"
            self.require(0 < first <= last, where)
            self.require(
                cause != ReceiptCause.OVERRUN or connection in self._overrun, f"{where}: the ring was not overrun"
            )


class SignalChecker(EngineChecker):
    """Observes events written into rings; sessions receive them later."""

    def __init__(self, market: Market) -> None:
        super().__init__(market)
        self.relieved = 0
        """Updates that would have been critical."""

    def told(self, connection: Connection, event: Event, defined: Defined | None, message: Message | None) -> None:
        if event.kind == EventKind.UPDATE and defined is not None and defined.model is NEVER:
            is_critical = event.cls == TransmissionClass.CRITICAL
            self.require(is_critical, f"{connection}, {defined.topic}: it comes in class {event.cls}")

    def wrote(self, consumer: "ConsumerNode", event: Event, defined: Defined) -> None:
        node = consumer.node
        if consumer.taste.cls != "auto" or defined.model is NEVER or not node.is_relieved_for_long:
            return
        is_critical = event.cls == TransmissionClass.CRITICAL and not event.flags & EventFlag.REPLAYED
        self.relieved += not is_critical
        self.require(not is_critical, f"{consumer.connection}, {defined.topic}: critical, though the node is relieved")
