"""The one shape of every protocol core.

A core is a state machine that does no I/O. Its driver (asyncio for real, the simulator in tests) does this and nothing
else:

    instructions = core.handle(event, now_ns)     whenever something happened
    instructions = core.handle(Tick(), now_ns)    when next_deadline_ns() has come

and carries out the instructions in their order. A core imports no clock, socket, thread or random source; the tidy
test holds it to that. Events and instructions are plain values, so a run can be logged and replayed.
"""

from typing import Never, Protocol, TypeVar

import msgspec

from penstock.base.errors import LocalProtocolError

Event = TypeVar("Event", contravariant=True)
Instruction = TypeVar("Instruction")


class Core(Protocol[Event, Instruction]):
    def handle(self, event: Event, now_ns: int) -> list[Instruction]:
        """Take one event in and say what is to be done; the only method that changes the core's state."""
        ...

    def next_deadline_ns(self) -> int | None:
        """When the core wants a Tick at the latest, or None while only other events can move it."""
        ...


class Tick(msgspec.Struct, frozen=True):
    """A deadline has come."""


def refuse(core: object, event: Never) -> Never:
    """For the last case of a core's handle(): the caller gave it an event that is not one of its own."""
    raise LocalProtocolError(f"{type(core).__name__} takes no {type(event).__name__}", hint="see its events module")
