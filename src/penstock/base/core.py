"""The interface of every protocol core.

A core is a state machine that does no I/O. Its driver (asyncio in production, the simulator in tests) only calls

    instructions = core.handle(event, now_ns)     when something happened
    instructions = core.handle(Tick(), now_ns)    when next_deadline_ns() has come

and executes the instructions in order. A core imports no clock, socket, thread or random source, which the tidy test
checks. Events and instructions are plain values, so a run can be logged and replayed.
"""

from typing import Never, Protocol, TypeVar

import msgspec

from penstock.base.errors import LocalProtocolError

Event = TypeVar("Event", contravariant=True)
Instruction = TypeVar("Instruction")


class Core(Protocol[Event, Instruction]):
    def handle(self, event: Event, now_ns: int) -> list[Instruction]:
        """Process one event and return instructions; the only method that changes the core's state."""
        ...

    def next_deadline_ns(self) -> int | None:
        """Return the latest time for the next Tick; None if only other events can change the core."""
        ...


class Tick(msgspec.Struct, frozen=True):
    """A deadline has passed."""


def refuse(core: object, event: Never) -> Never:
    """The final case of a core's handle(): refuse an event that does not belong to the core."""
    raise LocalProtocolError(
        f"{type(core).__name__} does not accept event {type(event).__name__}", hint="see the events module of the core"
    )
