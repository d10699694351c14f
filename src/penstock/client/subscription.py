"""A subscription from the application's view."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeAlias

import msgspec

from penstock.base.counters import Cause
from penstock.base.errors import ModelError, NotEntitledError, PenstockError, RefusedError, RevokedError
from penstock.capture.core.message_reader import Readable
from penstock.client.batch import Batch
from penstock.client.joining import Outcome, Receipt
from penstock.client.line import Line, Surroundings
from penstock.client.service import has_service
from penstock.middleware import Discontinuity, LossReceipt, MergeGap, SessionEvent
from penstock.middleware.core.delivery_record import DeliveryRecord
from penstock.security import Entitlement, StreamKey
from penstock.security.core.brokering import Authentication, Brokered, BrokeredStream
from penstock.wire import MessageBatch, PacketMessage

SLICE_SECONDS = 0.05
"""Interval at which an idle subscription checks for changes, revocation and closing."""

TURN_SECONDS = 0.002

Content: TypeAlias = MessageBatch | list[PacketMessage]


class Statistics(msgspec.Struct, frozen=True):
    messages: int
    """Messages delivered to the application."""
    duplicates: int
    """Duplicates of messages from another adapter's stream."""
    lost: int
    """Messages that no stream delivered; `losses` lists them."""
    discontinuities: int
    repairs: int
    """Packets received by retransmission."""
    held: int
    """Messages held until another stream filled the gap before them."""
    refused: int
    """Messages outside the grants; the application never receives them."""
    unreadable: int
    """Sealed messages that could not be decrypted, and messages too short for their model."""


class Manager(Protocol):
    """The part of the client that a subscription uses."""

    def modify(self, subscription: "Subscription", topics: Sequence[str]) -> None: ...

    def cancel(self, subscription: "Subscription") -> None: ...

    def expire(self, subscription: "Subscription") -> None:
        """The grants expired: fail the subscription, unless newer grants have arrived meanwhile."""

    def hurry(self) -> None:
        """Renew the grants now."""


class Subscription:
    """A subscription opened by Client.subscribe(). One thread or task reads; any may modify() or cancel()."""

    def __init__(
        self, around: Surroundings, brokered: Brokered, topics: Sequence[str], manager: Manager, *, image: bool
    ) -> None:
        self.id = brokered.subscription_id
        self.topics = tuple(topics)
        self.on_session: Callable[[SessionEvent], None] | None = None
        """Called in the reading thread at the start or end of a session of a source stream: after the last earlier
        message and before the first later one.
        """
        self._around = around
        self._manager = manager
        self._image = image
        self._lines: dict[tuple[str, int], Line] = {}
        self._brokered = brokered
        self._ready: deque[PacketMessage | SessionEvent] = deque()
        self._record: DeliveryRecord[Receipt] = DeliveryRecord(around.config.losses_max)
        self._given = 0
        self._commands: deque[Callable[[], None]] = deque()
        self._is_told = threading.Event()  # set when there are commands but no line to wait for
        self._lock = threading.RLock()  # protects receiving and changes of the lines
        self._error: PenstockError | None = None
        self._is_closed = False
        self._take_over(brokered)

    # For the application

    def next(self, timeout: float | None = None) -> Readable | None:
        """Return the next message, or None if none arrived within `timeout` seconds. Raises when the subscription has
        ended.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._raise_if_over()
            while self._ready:
                if (message := self._read(self._ready.popleft())) is not None:
                    return message
            left = SLICE_SECONDS if deadline is None else deadline - time.monotonic()
            if left < 0 or self._is_closed:
                return None
            self._fill(min(left, SLICE_SECONDS))

    def __iter__(self) -> Iterator[Readable]:
        """Yield messages until the subscription is cancelled."""
        while not self._is_closed:
            if (message := self.next(SLICE_SECONDS)) is not None:
                yield message

    async def __aiter__(self) -> AsyncIterator[Readable]:
        """Yield messages in an asyncio loop; a thread waits for them."""
        while not self._is_closed:
            self._raise_if_over()
            while self._ready:
                if (message := self._read(self._ready.popleft())) is not None:
                    yield message
                    self._raise_if_over()
            await asyncio.to_thread(self._fill, SLICE_SECONDS)

    def batches(self, timeout: float | None = None) -> Iterator[Batch]:
        """Yield batches of messages until none arrived for `timeout` seconds, or until the subscription is
        cancelled.
        """
        heard = time.monotonic()
        while not self._is_closed:
            self._raise_if_over()
            for feed, content in self._receive(SLICE_SECONDS):
                if isinstance(content, SessionEvent):
                    self._tell_session(content)
                    continue
                heard = time.monotonic()
                self._given += len(content)
                yield Batch(content, self._around.models, feed)
                self._raise_if_over()
            if timeout is not None and time.monotonic() - heard >= timeout:
                return

    def modify(self, *topics: str) -> None:
        """Replace the topics. Added topics begin with their next message."""
        self._manager.modify(self, topics)

    def cancel(self) -> None:
        """Close the subscription, here and at the administration server."""
        if not self._is_closed:
            self._manager.cancel(self)
            self.close()

    def close(self) -> None:
        """Close the subscription on this side only."""
        self._is_closed = True
        with self._lock:
            for line in self._lines.values():
                line.gate.drop_keys()
                line.close()
            self._lines.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.cancel()

    @property
    def losses(self) -> list[Receipt]:
        """Return loss receipts, oldest first: gaps, discontinuities, losses of streams that are not merged."""
        return self._record.losses

    @property
    def loss_count(self) -> int:
        """Return the number of receipts so far; `losses` has the newest of them."""
        return self._record.loss_count

    @property
    def sessions(self) -> list[SessionEvent]:
        """Return the session events of source streams up to the reader's position, oldest first."""
        return self._record.sessions

    @property
    def token(self) -> str:
        return self._brokered.token

    @property
    def expires_ns(self) -> int:
        """Return the expiry of the current grants, by the wall clock."""
        return self._brokered.expires_ns

    def statistics(self) -> Statistics:
        counters = self._around.counters
        dropped = counters.by_cause("messages_dropped")
        refused = dropped.pop(Cause.REFUSED, 0)
        return Statistics(
            messages=self._given,
            duplicates=counters.by_cause("messages_suppressed").get(Cause.DUPLICATE, 0),
            lost=counters["messages_lost"],
            discontinuities=counters["discontinuities"],
            repairs=counters["repairs_received"],
            held=counters["messages_held"],
            refused=refused,
            unreadable=sum(dropped.values()),
        )

    # For the client's own thread

    def renewed(self, brokered: Brokered) -> None:
        """Apply the administration server's newest answer."""
        self._tell(lambda: self._take_over(brokered))

    def moved(self, streams: list[BrokeredStream]) -> None:
        """Use these streams. Returns when they are joined, because their publishers may send then."""
        is_done = threading.Event()

        def update() -> None:
            try:
                self._update_lines(streams)
            except PenstockError as error:
                self.fail(error)
            finally:
                is_done.set()

        self._tell(update)
        while not is_done.is_set() and not self._is_closed:
            if self._lock.acquire(timeout=SLICE_SECONDS):  # else the reader holds it, and may have done the update
                try:
                    self._carry_out()
                finally:
                    self._lock.release()

    def keyed(self, feed: str, keys: list[StreamKey]) -> None:
        def hold() -> None:
            for (name, _), line in self._lines.items():
                if name == feed:
                    line.gate.hold_keys(keys)

        self._tell(hold)

    def authenticated(self, told: Authentication) -> None:
        def use() -> None:
            for (name, _), line in self._lines.items():
                if name == told.scope:
                    line.authenticate(told)

        self._tell(use)

    def fail(self, error: PenstockError) -> None:
        """End the subscription with this error before the application receives further messages."""
        if self._error is None:
            self._error = error
        self._ready.clear()
        for line in list(self._lines.values()):
            line.gate.drop_keys()

    @property
    def is_over(self) -> bool:
        return self._is_closed or self._error is not None

    # The work

    def _raise_if_over(self) -> None:
        if self._error is None and time.time_ns() >= self._brokered.expires_ns:
            self._manager.expire(self)
        if self._error is not None:
            error = self._error
            self.close()
            raise error

    def _fill(self, timeout: float) -> None:
        for _, content in self._receive(timeout):
            if isinstance(content, SessionEvent):
                self._ready.append(content)
            else:
                self._ready.extend(content)

    def _receive(self, timeout: float) -> list[tuple[str, Content | SessionEvent]]:
        """Return the received messages and events, each with its feed."""
        with self._lock:
            self._carry_out()
            lines = list(self._lines.items())
            received: list[tuple[str, Content | SessionEvent]] = []
            for number, ((feed, _), line) in enumerate(lines):
                wait = (timeout if len(lines) == 1 else TURN_SECONDS) if number == 0 else 0.0
                received += ((feed, each) for each in self._sorted(line.receive(wait)))
        if not lines:
            # the feed has no adapter yet, or the first key of the subscription is not active yet
            self._is_told.wait(timeout)
        return received

    def _tell(self, command: Callable[[], None]) -> None:
        """Let the reader execute this command before it receives more."""
        self._commands.append(command)
        self._is_told.set()

    def _carry_out(self) -> None:
        self._is_told.clear()
        while self._commands:
            self._commands.popleft()()

    def _sorted(self, outcomes: list[Outcome]) -> Iterator[Content | SessionEvent]:
        for each in outcomes:
            if isinstance(each, MergeGap | Discontinuity | LossReceipt):
                self._record.add_loss(each)
            else:
                yield each

    def _tell_session(self, event: SessionEvent) -> None:
        self._record.add_session(event)
        if self.on_session is not None:
            self.on_session(event)

    def _read(self, message: PacketMessage | SessionEvent) -> Readable | None:
        """Return the message; None for an unreadable message, and for a session event, which is passed to
        on_session.
        """
        if isinstance(message, SessionEvent):
            self._tell_session(message)
            return None
        try:
            read = self._around.models.read(message)
        except ModelError:
            self._around.counters.add("messages_dropped", cause=Cause.MESSAGE)
            return None
        self._given += 1
        return read

    def _take_over(self, brokered: Brokered) -> None:
        self._brokered = brokered
        self._update_lines(brokered.streams)
        entitlement = Entitlement(brokered.grants)
        for line in self._lines.values():
            line.allow(entitlement, brokered.token)

    def _update_lines(self, streams: list[BrokeredStream]) -> None:
        by_tcp = self._around.transport == "tcp"
        streams = [each for each in streams if has_service(each) or not by_tcp]
        now = {(each.feed, each.delay_s): each for each in streams if each.topics}
        # a stream without topics waits for a key; a line with some of its topics, by unicast, continues until then
        present = {(each.feed, each.delay_s) for each in streams}
        for key in [each for each in self._lines if each not in present]:
            self._lines.pop(key).close()
        for key, stream in now.items():
            known = self._lines.get(key)
            if known is not None and known.can_take(stream):
                known.update(stream)
            else:
                if known is not None:
                    known.close()
                line = Line(self._around, stream, self.topics, self._brokered.token, image=self._image)
                line.allow(Entitlement(self._brokered.grants), self._brokered.token)
                self._lines[key] = line

    def want(self, topics: Sequence[str], brokered: Brokered) -> None:
        """Replace the topics with those that were granted."""

        def change() -> None:
            self.topics = tuple(topics)
            for line in self._lines.values():
                line.want(topics)
            self._take_over(brokered)

        self._tell(change)
        with self._lock:  # applied before the application continues
            self._carry_out()

    def refused(self, error: RefusedError) -> None:
        """An adapter refuses the subscription, initially or later."""
        if error.peer_code == "revoked":
            self.fail(RevokedError(error.what))
        elif error.peer_code in ("entitlement", "topics"):
            self.fail(NotEntitledError(error.what))
        elif error.peer_code in ("token", "expired"):
            self._manager.hurry()
