"""Notifications of a node on their way from the event loop of its link to the application's thread."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from penstock.base.errors import LimitError, PenstockError, RemoteProtocolError
from penstock.base.segment import Segment
from penstock.engine.control import Events, OpenRegion, Welcome
from penstock.engine.live.link import Told as Said
from penstock.net.live.handover import await_segment
from penstock.net.secret import Secret

INBOX_MAX = 65_536
EVENTS_WAITING_MAX = 64
"""Maximum number of event messages read ahead of the application. Above it, the node waits and conflates."""

ROOM_LOOK_S = 0.001


class Attached(msgspec.Struct, frozen=True):
    """Attached to the node; with the rings, if events do not arrive on the connection itself."""

    welcome: Welcome
    ring: Segment | None = None
    notices: Segment | None = None

    def close(self) -> None:
        for each in (self.ring, self.notices):
            if each is not None:
                each.close()


class RegionOpened(msgspec.Struct, frozen=True):
    """Records of a model are in this segment from now on."""

    opened: OpenRegion
    segment: Segment
    marks: Segment | None = None

    def close(self) -> None:
        self.segment.close()
        if self.marks is not None:
            self.marks.close()


class Detached(msgspec.Struct, frozen=True):
    """The connection was lost; nothing follows until the next one."""

    def close(self) -> None:
        """No effect: nothing is open."""


class EventsReceived(msgspec.Struct, frozen=True):
    """Events that came on the connection."""

    data: bytes

    def close(self) -> None:
        """No effect: nothing is open."""


Notification: TypeAlias = Attached | RegionOpened | Detached | EventsReceived


class Inbox:
    """The listener of a link. `position` returns the number of the last event that the application has read.
    `is_asking` is true while the application waits for an answer of the node; messages before the answer must not
    wait for the application then."""

    def __init__(self, secret: Secret | None, position: Callable[[], int], is_asking: Callable[[], bool]) -> None:
        self.position = position
        self._secret = secret
        self._is_asking = is_asking
        self._told: deque[Notification] = deque()
        self._arrived = threading.Condition()
        self._path = ""
        self._is_welcome = False

    # For the application's thread

    def take(self) -> Notification | None:
        """The next notification, or None."""
        return self._told.popleft() if self._told else None

    @property
    def is_empty(self) -> bool:
        return not self._told

    def wait(self, timeout: float) -> None:
        """Wait for a notification, or until the timeout."""
        with self._arrived:
            if not self._told:
                self._arrived.wait(timeout)

    def close(self) -> None:
        while self._told:
            self._told.popleft().close()

    # For the link

    async def welcomed(self, welcome: Welcome) -> None:
        self._path = welcome.path
        ring = await self._segment(welcome.ring)
        try:
            notices = await self._segment(welcome.notices)
        except BaseException:
            if ring is not None:
                ring.close()
            raise
        self._put(Attached(welcome, ring, notices))
        self._is_welcome = True

    async def told(self, message: Said) -> None:
        if isinstance(message, Events):
            while len(self._told) >= EVENTS_WAITING_MAX and not self._is_asking():
                await asyncio.sleep(ROOM_LOOK_S)
            self._put(EventsReceived(message.data))
        elif isinstance(message, OpenRegion):
            segment = await self._segment(message.segment)
            if segment is None:
                raise RemoteProtocolError("the node opens a region that has no name")
            try:
                marks = await self._segment(message.marks)
            except BaseException:
                segment.close()
                raise
            self._put(RegionOpened(message, segment, marks))

    def lost(self, error: PenstockError) -> None:
        if self._is_welcome:
            self._is_welcome = False
            self._put(Detached())

    async def _segment(self, name: str) -> Segment | None:
        if not self._path or not name:
            return None
        return await await_segment(self._path, name, secret=self._secret)

    def _put(self, told: Notification) -> None:
        if len(self._told) >= INBOX_MAX and not isinstance(told, Detached):
            told.close()
            raise LimitError(f"{INBOX_MAX} notifications of the node wait to be read")
        with self._arrived:
            self._told.append(told)
            self._arrived.notify_all()
