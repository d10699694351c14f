"""Inline commit: one quick publish() goes to the router's disk and back without a change of threads.

Two threads that wake each other take longer than a fast disk. So a publisher that sends one message at a time and waits
for each is served by one thread on each side:

    application's thread          router's loop thread
    ClientInlineCommit            RouterInlineCommit (live/inline_commit.py)
      InlineLink.exchange ──────►   InlineCommitKernel.serve: receive, check, match, accept
        │  PUBLISH                    │
        │                             ▼
        │                           InlineWriter.store (journal/live/_inline_commit.pyx): pwrite, fdatasync
        ◄── ACKNOWLEDGE ──────────────┘

Each of the three parts handles only this case. Anything else ends it, and the ordinary path continues: the session's
loop on this side, the router's loop and the journal's thread on the other.

Here is the client side. While a session does nothing but publish, its link is handed over to the thread that publishes,
which writes to the socket and reads from it (_inline_commit.pyx). Any other request reclaims the link first, and the
loop's thread continues where the publishing thread stopped. An asyncio loop whose tasks publish gets the link in the
same way (async_publishing.py): the loop does not wait in a call, because a Readiness wakes the loop.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.assured.client._inline_commit import InlineLink
from penstock.assured.core.session.parts import PublisherPart
from penstock.assured.core.session.session import AssuredSession
from penstock.assured.wire._frames import FrameSplitter
from penstock.base.clock import NS_PER_SECOND
from penstock.net._tcp import Receiver
from penstock.net.live.link import Link

if TYPE_CHECKING:
    from penstock.assured.client.async_publishing import AsyncPublishing

IDLE_SECONDS = 0.02
"""An unused link is returned to the loop after this time, because no thread reads from it in the meantime."""

RECHECK_SECONDS = 0.001
"""Interval of checks whether the publishing thread has noticed the reclaim."""

RECLAIM_SECONDS = 5.0
"""Maximum wait for the publishing thread in close(); a thread that takes longer is suspended itself."""

STREAK = 8
STREAK_SECONDS = 0.01
"""The link is handed over after STREAK single messages, each within STREAK_SECONDS of the previous one."""

CROWDED = 1_000
"""Messages that take the ordinary path first, after another thread published while the link was in use."""

SPIN_NS = 300_000
"""The publishing thread spins for this time before it blocks; a fast disk answers sooner."""


class ClientInlineCommit:
    """Of one session. The loop's thread makes it and calls all methods but exchange(), send() and receive(). `asked` is
    called in the loop's thread when hand_over() would help, with the asyncio loop that publishes or None for a thread;
    `returned` with the link that is back and what the publishing thread left. The publishing thread calls `told` with
    the refused messages when it has received acknowledgements."""

    def __init__(
        self,
        core: AssuredSession,
        told: Callable[[PublisherPart, list[tuple[int, int, int]]], None],
        asked: Callable[["AsyncPublishing | None"], None],
        returned: Callable[[Link, InlineLink], None],
    ) -> None:
        self._core = core
        self._told = told
        self._asked = asked
        self._returned = returned
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._inline: InlineLink | None = None
        self._receiver = Receiver(SPIN_NS)
        self._fd = -1
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._uses_seen = 0
        self._streak = 0
        self._last = 0.0
        self._looking: asyncio.TimerHandle | None = None
        self._returned_event = asyncio.Event()
        self._returned_event.set()

    # The loop's thread

    @property
    def is_handed_over(self) -> bool:
        return self._inline is not None

    @property
    def is_busy(self) -> bool:
        """True if a thread uses the link."""
        return self._inline is not None and self._inline.is_busy

    def hand_over(self, link: Link, splitter: FrameSplitter, publishing: "AsyncPublishing | None") -> None:
        if self._inline is not None or link.fd < 0:
            return
        link.pause()
        self._link = link
        self._fd = os.dup(link.fd)
        self._returned_event.clear()
        self._uses_seen = 0
        self._inline = InlineLink(self._fd, splitter, self._receiver, self._core.named, self._wake_fd)
        if publishing is not None:
            self._inline.attach(publishing.readiness)
            publishing.wake()
        self._look_in(IDLE_SECONDS)

    def reclaim(self, *, is_crowded: bool = False) -> None:
        """Return the link to the loop, at once or when its thread notices. `is_crowded`: other threads publish, too."""
        if self._inline is None:
            return
        if self._inline.reclaim():
            self._resume()
            return
        self._streak = -CROWDED if is_crowded else 0
        os.eventfd_write(self._wake_fd, 1)
        self._look_in(RECHECK_SECONDS)

    async def close(self) -> None:
        self.reclaim()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._returned_event.wait(), RECLAIM_SECONDS)
            os.close(self._wake_fd)

    def _look_in(self, seconds: float) -> None:
        if self._looking is not None:
            self._looking.cancel()
        self._looking = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """Check whether inline commit is requested by this side or by the router, or is unused."""
        inline = self._inline
        if inline is None:
            return
        if inline.is_wanted or (inline.uses == self._uses_seen and not inline.is_busy):
            self.reclaim()
        else:
            self._uses_seen = inline.uses
            self._look_in(IDLE_SECONDS)

    def _resume(self) -> None:
        inline, self._inline = self._inline, None
        link, self._link = self._link, None
        assert inline is not None
        assert link is not None
        os.close(self._fd)
        if self._looking is not None:
            self._looking.cancel()
        with contextlib.suppress(BlockingIOError):  # nothing was written to it
            os.eventfd_read(self._wake_fd)
        link.resume()
        self._returned_event.set()
        self._returned(link, inline)

    # The thread that publishes

    def exchange(self, part: PublisherPart, number: int, until: float | None) -> bool:
        """Send a publisher's unsent messages, and wait until message `number` has an outcome. False: the message has no
        outcome yet, and the loop's thread must continue."""
        until_ns = None if until is None else int(until * NS_PER_SECOND)
        is_done = False
        while (inline := self._inline) is not None and not is_done and part.handle:
            left_ns = NS_PER_SECOND if until_ns is None else until_ns - time.monotonic_ns()
            if left_ns <= 0:
                return False
            refused: list[tuple[int, int, int]] = []
            try:
                is_done = inline.exchange(part.window, part.handle, number, left_ns, refused)
            finally:  # other threads may wait for these acknowledgements
                self._told(part, refused)
            if is_done:
                self._core.heard(time.monotonic_ns())
            if inline.is_wanted:
                self._call(self._look)
            if inline.is_wanted or inline.is_busy:  # another thread uses the link
                break
        if not is_done:
            self._count(None)
        return is_done

    # The thread of an asyncio loop that publishes

    def send(self, publishing: "AsyncPublishing") -> bool:
        """Send what a publisher has to send. False: the session's thread is to see to it."""
        inline, part = self._inline, publishing.part
        if inline is None or not inline.send(part.window, part.handle, publishing.readiness):
            self._count(publishing)
            return False
        if inline.is_wanted:
            self._call(self._look)
        return True

    def receive(self, publishing: "AsyncPublishing") -> bool:
        """Take the acknowledgements that have come: whether there are any."""
        inline, part = self._inline, publishing.part
        if inline is None:
            return False
        refused: list[tuple[int, int, int]] = []
        has_come = inline.receive(part.window, part.handle, publishing.readiness, refused)
        if has_come:
            self._told(part, refused)
            self._core.heard(time.monotonic_ns())
        if inline.is_wanted:
            self._call(self._look)
        return has_come

    def _count(self, publishing: "AsyncPublishing | None") -> None:
        last, self._last = self._last, time.monotonic()
        self._streak = self._streak + 1 if self._last - last < STREAK_SECONDS else min(self._streak, 0)
        if self._streak >= STREAK:
            self._streak = 0
            self._call(self._asked, publishing)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            self._loop.call_soon_threadsafe(function, *arguments)
