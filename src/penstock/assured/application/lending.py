"""A session's link in the hands of the application's thread that waits for an acknowledgement.

Two threads that wake each other take longer than a quick disk. So while a session does nothing but publish, one message
after the other, waiting for each, its link is lent: the thread that publishes writes to it and reads from it itself.
Whatever else is wanted of the session has it called back first, and the loop's thread goes on where the other one left.
"""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable

from penstock.assured._frames import FrameSplitter, frames_in
from penstock.assured._layout import KIND_ACKNOWLEDGE
from penstock.assured.application.events import Changed, Refusal
from penstock.assured.application.parts import PublisherPart
from penstock.assured.application.session import Session
from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import RemoteProtocolError
from penstock.net._tcp import Receiver, send_now
from penstock.net.link import Link

IDLE_SECONDS = 0.02
"""Without use of it, a link goes back: nobody reads from it meanwhile."""

STREAK = 8
STREAK_SECONDS = 0.01
"""So many messages published alone, each so soon after the one before: then it is worth while."""

CROWDED = 1_000
"""Others published while the link was in use: so many messages go the other way first."""

SPIN_NS = 300_000
"""A quick disk takes less."""


class Returned:
    """A link that was lent, and what the thread that had it leaves to the loop's."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.unsent = b""
        self.pieces: list[tuple[bool, bytes]] = []
        self.is_spoilt = False
        """The thread was interrupted: bytes may be missing."""


class Lending:
    """Of one session; made and called in the loop's thread, but for exchange(). There `asked` is told when lend() would
    be of use, and `returned` what came back."""

    def __init__(
        self,
        core: Session,
        told: Callable[[Changed], None],
        asked: Callable[[], None],
        returned: Callable[[Returned], None],
    ) -> None:
        self._core = core
        self._told = told
        self._asked = asked
        self._returned = returned
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._lent: Returned | None = None
        self._splitter = FrameSplitter()
        self._fd = -1
        self._receiver = Receiver(SPIN_NS)
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_busy = self._is_wanted = False
        self._uses = self._uses_seen = 0
        self._streak = 0
        self._last = 0.0
        self._idle: asyncio.TimerHandle | None = None
        self._home = asyncio.Event()
        self._home.set()

    # The loop's thread

    @property
    def is_lent(self) -> bool:
        return self._lent is not None

    @property
    def is_busy(self) -> bool:
        """Whether a thread uses it."""
        return self._is_busy

    def lend(self, link: Link, splitter: FrameSplitter) -> None:
        if self._lent is not None or link.fd < 0:
            return
        link.pause()
        self._fd = os.dup(link.fd)
        self._splitter = splitter
        self._home.clear()
        self._lent = Returned(link)
        self._idle = self._loop.call_later(IDLE_SECONDS, self._look)

    def call_back(self, *, is_crowded: bool = False) -> None:
        """It is home now, or as soon as the thread that uses it has heard of it. `is_crowded`: for others' messages."""
        with self._lock:
            self._is_wanted = self._lent is not None
            is_busy = self._is_busy
        if is_busy:
            self._streak = -CROWDED if is_crowded else 0
            os.eventfd_write(self._bell, 1)
        else:
            self._come_home()

    async def close(self) -> None:
        self.call_back()
        await self._home.wait()
        os.close(self._bell)

    def _look(self) -> None:
        if self._uses == self._uses_seen and not self._is_busy:
            self.call_back()
        elif self._lent is not None:
            self._uses_seen = self._uses
            self._idle = self._loop.call_later(IDLE_SECONDS, self._look)

    def _come_home(self) -> None:
        with self._lock:
            if self._lent is None or self._is_busy or not self._is_wanted:
                return
            lent, self._lent, self._is_wanted = self._lent, None, False
        os.close(self._fd)
        if self._idle is not None:
            self._idle.cancel()
        with contextlib.suppress(BlockingIOError):  # it was not rung
            os.eventfd_read(self._bell)
        lent.link.resume()
        self._home.set()
        self._returned(lent)

    # The thread that publishes

    def exchange(self, part: PublisherPart, number: int, timeout: float | None) -> bool:
        """Send what a publisher has to send, and wait until this message of it has an outcome. False: it has none yet,
        and the loop's thread is to see to it."""
        with self._lock:
            lent = self._lent
            if lent is None or self._is_busy or self._is_wanted:
                self._count()
                return False
            self._is_busy = True
        try:
            return self._exchange(lent, part, number, timeout)
        except BaseException:
            lent.is_spoilt = self._is_wanted = True
            raise
        finally:
            with self._lock:
                self._uses += 1
                self._is_busy = False
                is_wanted = self._is_wanted
            if is_wanted:
                self._loop.call_soon_threadsafe(self._come_home)

    def _count(self) -> None:
        last, self._last = self._last, time.monotonic()
        self._streak = self._streak + 1 if self._last - last < STREAK_SECONDS else min(self._streak, 0)
        if self._streak >= STREAK:
            self._streak = 0
            self._loop.call_soon_threadsafe(self._asked)

    def _exchange(self, lent: Returned, part: PublisherPart, number: int, timeout: float | None) -> bool:
        frames = part.frames()
        sent = send_now(self._fd, frames) if frames else 0
        if sent < len(frames):
            lent.unsent, self._is_wanted = frames[sent:], True
        until_ns = None if timeout is None else time.monotonic_ns() + int(timeout * NS_PER_SECOND)
        while not (is_done := part.outbox.outcome_of(number) != 0) and not self._is_wanted:
            left_ns = NS_PER_SECOND if until_ns is None else until_ns - time.monotonic_ns()
            if left_ns <= 0:
                break
            data = self._receiver.receive(self._fd, timeout_ns=left_ns, bell=self._bell)
            if data:
                self._take(lent, data)
            elif data is not None:  # the connection is over, as the loop is about to find out
                self._is_wanted = True
        return is_done

    def _take(self, lent: Returned, data: bytes) -> None:
        """Acknowledgements; all else, and what comes after it, is the loop's."""
        refused: list[Refusal] = []
        for is_data, piece in self._splitter.feed(data):
            if not is_data or lent.pieces or not self._acknowledge(piece, refused):
                lent.pieces.append((is_data, piece))
        if lent.pieces or self._splitter.failure:
            self._is_wanted = True
        self._core.heard(time.monotonic_ns())
        self._told(Changed(tuple(refused)))

    def _acknowledge(self, piece: bytes, refused: list[Refusal]) -> bool:
        """False: that is not all there is in it, or it is not as it should be."""
        try:
            frames = frames_in(piece)
            if any(kind != KIND_ACKNOWLEDGE for kind, _, _ in frames):
                return False
            for _, handle, frame in frames:
                refused += self._core.acknowledge(handle, frame)
        except RemoteProtocolError:
            return False
        return True
