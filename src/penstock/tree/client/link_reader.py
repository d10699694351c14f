"""A subscription's reading thread receives from the agent's link itself while nothing unusual happens. If the loop's
thread received each message first, two more changes of threads would be needed per message.

The loop's thread lends the link to the thread that waits for messages. The loop's thread takes the link back when the
first bytes arrive that are not packets of known streams in order, or when the reading thread has not read for
AWAY_SECONDS.
"""

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

from penstock.base.clock import NS_PER_SECOND
from penstock.net._tcp import Receiver
from penstock.net.live.link import Link
from penstock.net.live.loop_condition import LoopCondition
from penstock.tree.client.core.subscriber import Subscriber
from penstock.tree.client.core_runner import TreeCoreRunner

AWAY_SECONDS = 0.05


class LinkReader:
    """Reads the link of one subscription, whose lock guards the reader and the core. `deliver` carries out the core's
    instructions."""

    def __init__(self, core: Subscriber, lock: LoopCondition, deliver: Callable[[Any], None]) -> None:
        self._core = core
        self._lock = lock
        self._deliver = deliver
        self._loop: asyncio.AbstractEventLoop | None = None
        self._receiver = Receiver(0)
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._link: Link | None = None
        """The lent link."""
        self._fd = -1
        """A duplicate of its descriptor, which stays valid when the loop closes the link."""
        self._kept = b""
        """The beginning of a frame."""
        self._is_asked = False
        self._is_reading = False
        self._is_used = False
        """True if the thread has read since the last look."""
        self._heard_ns = 0
        self._is_over = False

    def begin(self, runner: TreeCoreRunner, loop: asyncio.AbstractEventLoop) -> None:
        self._runner, self._loop = runner, loop

    # The reading thread

    @property
    def is_lent(self) -> bool:
        return self._link is not None

    def ask(self) -> None:
        """With the lock: ask the loop for the link."""
        if not self._is_asked and not self._is_over and self._loop is not None:
            self._is_asked = True
            self._loop.call_soon_threadsafe(self._lend)

    def read(self, seconds: float | None) -> None:
        """Without the lock: deliver what arrives within this time; returns earlier when the subscription changes."""
        with self._lock:
            link, fd = self._link, self._fd
            if link is None:
                return
            self._is_reading = self._is_used = True
        timeout_ns = NS_PER_SECOND if seconds is None else max(0, round(seconds * NS_PER_SECOND))
        data = self._receiver.receive(fd, timeout_ns=timeout_ns, bell=self._bell)
        with self._lock:
            self._is_reading = False
            if self._link is not link:  # the subscription is over
                self._close_fd()
                os.close(self._bell)
            elif data is None:
                self._silence_bell()
            else:
                self._take(link, data)

    def _take(self, link: Link, data: bytes) -> None:
        assert self._loop is not None
        self._heard_ns = time.monotonic_ns()
        if link.number != self._core.link:  # another link has replaced it
            self._kept = b""
            self._end()
            return
        instructions, at, unusual = self._core.take_frames(self._kept + data if self._kept else data)
        for each in instructions:
            self._deliver(each)
        if unusual or not data:
            rest = unusual if data else self._kept
            self._kept = b""
            self._end()
            self._is_asked = True
            self._loop.call_soon_threadsafe(self._give_back, link, rest, not data)
        else:
            self._kept = (self._kept + data)[at:]

    # Any thread, with the lock

    def wake(self) -> None:
        """Make the reading thread look at the subscription."""
        if self._is_reading:
            os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """The subscription is over."""
        if not self._is_over:
            self._is_over = True
            self.wake()
            self._end()
            if not self._is_reading:
                os.close(self._bell)

    def _end(self) -> None:
        self._link = None
        if not self._is_reading:
            self._close_fd()

    def _close_fd(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _silence_bell(self) -> None:
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            return

    # The loop's thread

    def _lend(self) -> None:
        assert self._loop is not None
        with self._lock:
            if self._is_over or self._link is not None:
                return
            lent = self._runner.lend(self._core.link) if self._core.is_settled else None
            if lent is None:
                self._loop.call_later(AWAY_SECONDS, self._allow_to_ask)
                return
            self._link, self._kept = lent
            self._fd = os.dup(self._link.fd)
            self._heard_ns = 0
            self._is_asked = False
            self._is_used = True
            self._lock.notify_all()
            self._loop.call_later(AWAY_SECONDS, self._look, self._link)

    def _allow_to_ask(self) -> None:
        self._is_asked = False

    def _look(self, link: Link) -> None:
        """Take the link back from a thread that is away, or when it ends."""
        assert self._loop is not None
        with self._lock:
            if self._link is not link:
                return
            if self._heard_ns:
                self._core.session.hear(link.number, self._heard_ns)
                self._heard_ns = 0
            is_used, self._is_used = self._is_used or self._is_reading, False
            if self._is_reading or (is_used and not link.is_closing):
                self._loop.call_later(AWAY_SECONDS, self._look, link)
                return
            rest, self._kept = self._kept, b""
            self._end()
        self._runner.take_back(link, rest)

    def _give_back(self, link: Link, rest: bytes, has_ended: bool) -> None:
        """Read from the link again, and lend it again at once, unless the connection has ended."""
        assert self._loop is not None
        self._runner.take_back(link, rest)
        if has_ended:
            self._loop.call_later(AWAY_SECONDS, self._allow_to_ask)
        else:
            self._lend()
