"""Admission to a server, for any transport: the time limit of the first message, refusals, and the end of rights.

    handshake ─► expect() ─► first message: arrived() ─► served, until the connection ends or the rights do
                    │                │                                         │
                    └─ too late ─────┴─ refused ─► refuse() ◄─ watch_rights() ─┘

The server passes `end`, which sends a last message on its transport and closes it: the outbox of a control connection,
or a link. All calls are made in the thread of the loop.
"""

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Generic, Protocol, TypeVar

from penstock.base.counters import Counters
from penstock.base.errors import PenstockError
from penstock.base.log import Logger

RIGHTS_CHECK_SECONDS = 0.5

T = TypeVar("T")
M = TypeVar("M")
R = TypeVar("R", covariant=True)


class RefusalMessages(Protocol[R]):
    """Turns errors into refusals of a protocol (security.refusal.Refusals)."""

    def code_of(self, error: PenstockError) -> str: ...

    def of(self, error: PenstockError) -> R: ...


class Admission(Generic[T, M]):
    """Admits the peers of one server. T are its transports, M its refusals.

    `late` makes the error for a peer without a first message in time. `party` is the kind of peer in logs; refusals
    are counted as `counter`, by `cause` or, without one, by their code. Refusals with `routine_codes` are no faults of
    this server or the peer.
    """

    def __init__(
        self,
        refusals: RefusalMessages[M],
        end: Callable[[T, M], None],
        late: Callable[[str], PenstockError],
        *,
        party: str,
        counter: str,
        counters: Counters,
        log: Logger,
        cause: str = "",
        routine_codes: Collection[str] = (),
    ) -> None:
        self._refusals = refusals
        self._end = end
        self._late = late
        self._party = party
        self._counter = counter
        self._counters = counters
        self._log = log
        self._cause = cause
        self._routine_codes = routine_codes
        self._timers: dict[T, asyncio.TimerHandle] = {}

    @property
    def expected(self) -> set[T]:
        """The transports whose first message has not arrived."""
        return set(self._timers)

    def expect(self, transport: T, seconds: float, **who: str) -> None:
        """Refuse the peer if its first message does not arrive in this time. `who` is for the log."""
        self._timers[transport] = asyncio.get_running_loop().call_later(
            seconds, self._time_out, transport, seconds, who
        )

    def arrived(self, transport: T) -> None:
        """The first message has arrived, or the connection has ended."""
        if (timer := self._timers.pop(transport, None)) is not None:
            timer.cancel()

    def refuse(self, transport: T, error: PenstockError, **who: str) -> None:
        """Refuse a peer and end its connection."""
        self.note(self._refusals.code_of(error), str(error), **who)
        self.end(transport, self._refusals.of(error))

    def end(self, transport: T, last: M) -> None:
        """End a connection with a last message."""
        self.arrived(transport)
        self._end(transport, last)

    def note(self, code: str, why: str, **who: str) -> None:
        """Log and count a refusal."""
        say = self._log.info if code in self._routine_codes else self._log.warning
        say(f"{self._party}_refused", **who, code=code, why=why[:256])
        self._counters.add(self._counter, cause=self._cause or code)

    def _time_out(self, transport: T, seconds: float, who: dict[str, str]) -> None:
        self.refuse(transport, self._late(f"no login within {seconds:g} s"), **who)


async def watch_rights(check: Callable[[int], None]) -> None:
    """Call `check` with the wall-clock time regularly, so that it ends parties with expired rights, until cancelled."""
    while True:
        check(time.time_ns())
        await asyncio.sleep(RIGHTS_CHECK_SECONDS)
