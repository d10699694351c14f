"""Control connections between applications and filter modules: messages arrive in order, unless one side dies."""

from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from penstock.base.clock import NS_PER_MS
from penstock.filter.core.events import Attached, Collision, StreamOver, StreamPosition, Want, Wish
from penstock.middleware import Address
from penstock.sim.world import World

if TYPE_CHECKING:
    from penstock.sim.filter.apps import ApplicationNode
    from penstock.sim.filter.nodes import FilterNode

DELAY_NS_MAX = 400_000
NOTICE_NS_MAX = 100 * NS_PER_MS
"""Maximum time until one side detects that the other is gone."""
RETRY_NS_MAX = 30 * NS_PER_MS


class Register(msgspec.Struct, frozen=True):
    application: int
    address: Address
    delivery: Wish
    entitlement: str


class Change(msgspec.Struct, frozen=True):
    """A change of interests, answered by Holds."""

    number: int
    want: Want


class Registered(msgspec.Struct, frozen=True):
    attached: Attached
    filter: Address


class Holds(msgspec.Struct, frozen=True):
    number: int


class Gone(msgspec.Struct, frozen=True):
    """The other side has died."""


ToFilter: TypeAlias = Register | Change | Gone
ToApplication: TypeAlias = Registered | Holds | StreamPosition | StreamOver | Collision | Gone


class Said(msgspec.Struct, frozen=True):
    """An event of the node at either side: a message arrived over a connection, which keeps the order."""

    connection: "Connection"


class Connection:
    """One connection, from its establishment by an application until one side dies."""

    def __init__(self, world: World, application: "ApplicationNode", module: "FilterNode") -> None:
        self.application = application
        self.module = module
        self._world = world
        self._randomness = world.randomness.fork(f"control/{application.name}/{world.now_ns()}")
        self._incarnations = (application.incarnation, module.incarnation)
        self._arrival_ns = {True: 0, False: 0}
        self._inboxes: dict[bool, deque[Any]] = {True: deque(), False: deque()}
        self.is_open = True
        module.connections.append(self)

    def to_filter(self, message: ToFilter) -> None:
        self._carry(True, message)

    def to_application(self, message: ToApplication) -> None:
        self._carry(False, message)

    def break_off(self) -> None:
        """One side has died; the other side notices it later."""
        if self.is_open:
            self.is_open = False
            delay_ns = self._randomness.below(self._randomness.choose([NS_PER_MS, NOTICE_NS_MAX]))
            for is_upwards in (True, False):
                self._world.after(delay_ns, lambda is_upwards=is_upwards: self._arrive(is_upwards, Gone()))  # type: ignore[misc]

    def _carry(self, is_upwards: bool, message: ToFilter | ToApplication) -> None:
        if not self.is_open:
            return
        arrival_ns = self._world.now_ns() + 1 + self._randomness.below(DELAY_NS_MAX)
        arrival_ns = self._arrival_ns[is_upwards] = max(arrival_ns, self._arrival_ns[is_upwards] + 1)
        self._world.at(arrival_ns, lambda: self._arrive(is_upwards, message) if self.is_open else None)

    def at_filter(self) -> ToFilter:
        """Deliver the next message to the other side."""
        return self._inboxes[True].popleft()  # type: ignore[no-any-return]

    def at_application(self) -> ToApplication:
        return self._inboxes[False].popleft()  # type: ignore[no-any-return]

    def _arrive(self, is_upwards: bool, message: ToFilter | ToApplication) -> None:
        node = self.module if is_upwards else self.application
        if node.incarnation == self._incarnations[is_upwards]:
            self._inboxes[is_upwards].append(message)
            node.handle(Said(self))
