"""A session's link in the hands of the application's thread that waits for an acknowledgement.

Two threads that wake each other take longer than a quick disk. So while a session does nothing but publish, one message
after the other, waiting for each, its link is lent: the thread that publishes writes to it and reads from it itself
(_loan.pyx). Whatever else is wanted of the session has it called back first, and the loop's thread goes on where the
other one left.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable

from penstock.assured.client._loan import Loan
from penstock.assured.core.session.parts import PublisherPart
from penstock.assured.core.session.session import Session
from penstock.assured.wire._frames import FrameSplitter
from penstock.base.clock import NS_PER_SECOND
from penstock.net._tcp import Receiver
from penstock.net.link import Link

IDLE_SECONDS = 0.02
"""Without use of it, a link goes back: nobody reads from it meanwhile."""

FETCH_SECONDS = 0.001
"""Until a thread that uses it has heard the bell."""

HOME_SECONDS = 5.0
"""At the end: a thread that does not let go of it then stands still itself."""

STREAK = 8
STREAK_SECONDS = 0.01
"""So many messages published alone, each so soon after the one before: then it is worth while."""

CROWDED = 1_000
"""Others published while the link was in use: so many messages go the other way first."""

SPIN_NS = 300_000
"""A quick disk takes less."""


class Lending:
    """Of one session; made and called in the loop's thread, but for exchange(). There `asked` is told when lend() would
    be of use, and `returned` which link is back, with what the other thread left. That thread calls `told` when it has
    taken something in, with what was refused."""

    def __init__(
        self,
        core: Session,
        told: Callable[[PublisherPart, list[tuple[int, int, int]]], None],
        asked: Callable[[], None],
        returned: Callable[[Link, Loan], None],
    ) -> None:
        self._core = core
        self._told = told
        self._asked = asked
        self._returned = returned
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._loan: Loan | None = None
        self._receiver = Receiver(SPIN_NS)
        self._fd = -1
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._uses_seen = 0
        self._streak = 0
        self._last = 0.0
        self._looking: asyncio.TimerHandle | None = None
        self._home = asyncio.Event()
        self._home.set()

    # The loop's thread

    @property
    def is_lent(self) -> bool:
        return self._loan is not None

    @property
    def is_busy(self) -> bool:
        """Whether a thread uses it."""
        return self._loan is not None and self._loan.is_busy

    def lend(self, link: Link, splitter: FrameSplitter) -> None:
        if self._loan is not None or link.fd < 0:
            return
        link.pause()
        self._link = link
        self._fd = os.dup(link.fd)
        self._home.clear()
        self._uses_seen = 0
        self._loan = Loan(self._fd, splitter, self._receiver, self._core.named, self._bell)
        self._look_in(IDLE_SECONDS)

    def call_back(self, *, is_crowded: bool = False) -> None:
        """It is home now, or as soon as the thread that uses it has heard of it. `is_crowded`: for others' messages."""
        if self._loan is None:
            return
        if self._loan.want_back():
            self._come_home()
            return
        self._streak = -CROWDED if is_crowded else 0
        os.eventfd_write(self._bell, 1)
        self._look_in(FETCH_SECONDS)

    async def close(self) -> None:
        self.call_back()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._home.wait(), HOME_SECONDS)
            os.close(self._bell)

    def _look_in(self, seconds: float) -> None:
        if self._looking is not None:
            self._looking.cancel()
        self._looking = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """Whether it is wanted, here or there, or not used any more."""
        loan = self._loan
        if loan is None:
            return
        if loan.is_wanted or (loan.uses == self._uses_seen and not loan.is_busy):
            self.call_back()
        else:
            self._uses_seen = loan.uses
            self._look_in(IDLE_SECONDS)

    def _come_home(self) -> None:
        loan, self._loan = self._loan, None
        link, self._link = self._link, None
        assert loan is not None
        assert link is not None
        os.close(self._fd)
        if self._looking is not None:
            self._looking.cancel()
        with contextlib.suppress(BlockingIOError):  # it was not rung
            os.eventfd_read(self._bell)
        link.resume()
        self._home.set()
        self._returned(link, loan)

    # The thread that publishes

    def exchange(self, part: PublisherPart, number: int, until: float | None) -> bool:
        """Send what a publisher has to send, and wait until this message of it has an outcome. False: it has none yet,
        and the loop's thread is to see to it."""
        until_ns = None if until is None else int(until * NS_PER_SECOND)
        is_done = False
        while (loan := self._loan) is not None and not is_done and part.handle:
            left_ns = NS_PER_SECOND if until_ns is None else until_ns - time.monotonic_ns()
            if left_ns <= 0:
                return False
            refused: list[tuple[int, int, int]] = []
            try:
                is_done = loan.exchange(part.outbox, part.handle, number, left_ns, refused)
            finally:  # others may have waited for what came before
                self._told(part, refused)
            if is_done:
                self._core.heard(time.monotonic_ns())
            if loan.is_wanted:
                self._call(self._look)
            if loan.is_wanted or loan.is_busy:  # by another thread
                break
        if not is_done:
            self._count()
        return is_done

    def _count(self) -> None:
        last, self._last = self._last, time.monotonic()
        self._streak = self._streak + 1 if self._last - last < STREAK_SECONDS else min(self._streak, 0)
        if self._streak >= STREAK:
            self._streak = 0
            self._call(self._asked)

    def _call(self, function: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            self._loop.call_soon_threadsafe(function)
