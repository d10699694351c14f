"""A subscription from the application's view."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeAlias

import msgspec

from penstock.base.clock import SystemRandomness
from penstock.base.counters import Cause
from penstock.base.errors import ModelError, NotEntitledError, PenstockError, RefusedError, RevokedError
from penstock.capture.core.message_reader import Readable
from penstock.capture.live._reading import BatchReader
from penstock.client._ready import ReadyMessages
from penstock.client.arrivals import Arrivals
from penstock.client.batch import Batch
from penstock.client.feed_subscription import FeedSubscription, Surroundings
from penstock.client.joining import Outcome, Receipt
from penstock.client.service import has_service
from penstock.middleware import Discontinuity, LossReceipt, MergeGap, SessionEvent
from penstock.middleware.core.delivery_record import DeliveryRecord
from penstock.middleware.live.merging_receiver import wait_readable
from penstock.security import Entitlement, StreamKey
from penstock.security.core.brokering import Authentication, Brokered, BrokeredStream
from penstock.wire import MessageBatch, PacketMessage

SLICE_SECONDS = 0.05
"""Interval at which an idle subscription checks for changes, revocation and closing."""

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
        self._lines: dict[tuple[str, int], FeedSubscription] = {}
        self._only_line: FeedSubscription | None = None  # if there is one
        self._brokered = brokered
        self._ready = ReadyMessages(self._fill, self._raise_if_over, self._tell_session)
        self._reader = BatchReader(around.models, SystemRandomness().below(2**64), self._read)
        self._record: DeliveryRecord[Receipt] = DeliveryRecord(around.config.losses_max)
        self._given_in_batches = 0
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
            if (message := self._ready.pop()) is not None:
                return message
            left = SLICE_SECONDS if deadline is None else deadline - time.monotonic()
            if left < 0 or self._is_closed:
                return None
            self._fill(min(left, SLICE_SECONDS))

    def __iter__(self) -> Iterator[Readable]:
        """Yield messages until the subscription is cancelled."""
        return self._ready

    async def __aiter__(self) -> AsyncIterator[Readable]:
        """Yield messages in an asyncio loop until the subscription is cancelled."""
        arrivals = Arrivals()
        try:
            while not self._is_closed:
                self._raise_if_over()
                while (message := self._ready.pop()) is not None:
                    yield message
                if (descriptors := self._descriptors()) is None:
                    await asyncio.to_thread(self._fill, SLICE_SECONDS)
                else:
                    await arrivals.wait(descriptors, self._idle_seconds())
                    self._fill(0.0)
        finally:
            arrivals.close()

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
                self._given_in_batches += len(content)
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
        self._is_closed = self._ready.is_closed = True
        with self._lock:
            for line in self._lines.values():
                line.gate.drop_keys()
                line.close()
            self._lines.clear()
            self._only_line = None

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
            messages=self._ready.given + self._given_in_batches,
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
        self._ready.is_failed = True
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

    def _fill(self, timeout: float = SLICE_SECONDS) -> None:
        """Decode what has arrived, or arrives within the time."""
        with self._lock:
            if self._commands:
                self._carry_out()
            line = self._only_line
            source = None if line is None else line.ordinary_source()
            if line is not None and source is not None:
                messages = line.pipeline.receive(source, timeout)
                if messages is None:
                    self._add(self._sorted(line.judge_left()))
                elif messages:
                    self._ready.add(messages)
                return
        self._add(content for _, content in self._receive(timeout))

    def _add(self, received: Iterable[Content | SessionEvent]) -> None:
        for content in received:
            if isinstance(content, SessionEvent):
                self._ready.add_event(content)
            elif isinstance(content, MessageBatch):
                self._ready.add(self._reader.read(content))
            else:
                read = [self._read(message) for message in content]
                self._ready.add([message for message in read if message is not None])

    def _receive(self, timeout: float) -> list[tuple[str, Content | SessionEvent]]:
        """Return the received messages and events, each with its feed."""
        with self._lock:
            self._carry_out()
            lines = self._lines
            if len(lines) == 1:
                return self._look(timeout)
            if lines:
                received = self._look(0.0)
                if received or timeout <= 0:
                    return received
                wait_readable(self._descriptors(), min(timeout, self._idle_seconds()))
                return self._look(0.0)
        # the feed has no adapter yet, or the first key of the subscription is not active yet
        self._is_told.wait(timeout)
        return []

    def _look(self, timeout: float) -> list[tuple[str, Content | SessionEvent]]:
        """Receive on each line, and wait for each at most this time."""
        received: list[tuple[str, Content | SessionEvent]] = []
        for (feed, _), line in list(self._lines.items()):
            received += ((feed, each) for each in self._sorted(line.receive(timeout)))
        return received

    def _descriptors(self) -> list[int] | None:
        """Return descriptors that become readable when something arrives; None if the lines must be read to know."""
        found: list[int] = []
        for line in list(self._lines.values()):
            if (descriptors := line.descriptors()) is None:
                return None
            found += descriptors
        return found

    def _idle_seconds(self) -> float:
        """Return the time until the subscription must be read even if nothing arrives."""
        return min((line.idle_seconds() for line in list(self._lines.values())), default=SLICE_SECONDS)

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

    def _read(self, message: PacketMessage) -> Readable | None:
        """Return the message; None if it is unreadable."""
        try:
            return self._around.models.read(message)
        except ModelError:
            self._around.counters.add("messages_dropped", cause=Cause.MESSAGE)
            return None

    def _take_over(self, brokered: Brokered) -> None:
        self._brokered = brokered
        self._ready.expires_ns = brokered.expires_ns
        self._update_lines(brokered.streams)
        entitlement = Entitlement(brokered.grants)
        for line in self._lines.values():
            line.allow(entitlement, brokered.token)

    def _update_lines(self, streams: list[BrokeredStream]) -> None:
        by_tcp = self._around.transport == "tcp"
        streams = [each for each in streams if has_service(each) or not by_tcp]
        now = {(each.feed, each.delay_s): each for each in streams if each.topics}
        # a stream without topics waits for a key; until then, a unicast line with some of the topics continues
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
                line = FeedSubscription(
                    self._around, stream, self.topics, self._brokered.token, self._reader, image=self._image
                )
                line.allow(Entitlement(self._brokered.grants), self._brokered.token)
                self._lines[key] = line
        self._only_line = next(iter(self._lines.values())) if len(self._lines) == 1 else None

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
