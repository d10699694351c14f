"""A node's engine and its consumers' shared memory, used by one thread at a time, under one lock.

Updates are distributed in the thread that received them. Other threads send mail: calls that the next holder of the
lock makes between two batches. The node's own thread delivers mail and runs the engine's timers while no updates
come.
"""

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Protocol, TypeVar

from penstock.base.clock import NS_PER_MS
from penstock.base.core import Tick
from penstock.base.errors import LimitError, PenstockError, SharedMemoryError
from penstock.base.histogram import LatencyHistogram
from penstock.base.log import logger
from penstock.engine import DistributionEngine, SessionBuffer, control
from penstock.engine.control import EVENTS_SIZE_MAX
from penstock.engine.core.events import (
    Attach,
    Detach,
    EngineEvent,
    EngineInstruction,
    Lost,
    OpenRegion,
    Ready,
    RegionOpened,
    RegionTooLarge,
    SessionChanged,
    Signals,
    Sinks,
    Unwanted,
    Updates,
    Wanted,
)
from penstock.middleware.core.events import SessionEvent
from penstock.model import MessageModel
from penstock.net.live.handover import Handover
from penstock.net.live.mailbox import Mailbox
from penstock.plant.config import NodeConfig
from penstock.plant.core.access import Consumer
from penstock.plant.core.account_rows import ConsumerAccount
from penstock.plant.core.event_blocks import BLOCK_SIZE_MAX, Sender
from penstock.plant.core.gauge import Gauge
from penstock.plant.core.incoming import FromAbove, Updated
from penstock.plant.core.views import Content, Views
from penstock.plant.live._session_sender import Framing, SessionSender
from penstock.plant.live.segments import Parted, Placed, Segments
from penstock.wire import MessageBatch

WAKE_NS = 50 * NS_PER_MS
"""Maximum sleep of the thread."""

ENDED_MAX = 65_536
"""Maximum number of consumers that left and whose last accounts are not written yet."""

T = TypeVar("T")

log = logger("plant.data")


class Owner(Protocol):
    """Receives the results of the data path. Called in any thread, under the lock."""

    def events_ready(self, consumer: int, data: bytes) -> None:
        """Send events on the consumer's connection, and call sent() when they have been sent."""

    def tell(self, consumer: int, message: control.OpenRegion) -> None:
        """Send a message on the consumer's control connection."""

    def end(self, consumer: int, error: PenstockError) -> None:
        """End a consumer that cannot be served any longer."""

    def wanted(self, topics: Sequence[str]) -> None: ...

    def unwanted(self, topics: Sequence[str]) -> None: ...

    def failed(self, error: Exception) -> None: ...


class FairLock:
    """A lock that its last holder cannot take again before waiting threads: otherwise the node's own thread would
    starve them."""

    def __init__(self) -> None:
        self._turn = threading.Lock()  # held by the next thread that will get `_lock`
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._turn:
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class _ConsumerBuffer:
    """A consumer's buffer that is sent one block at a time, or at once by a sender of datagrams."""

    def __init__(self, buffer: SessionBuffer, sender: Sender | None = None) -> None:
        self.buffer = buffer
        self.sender = sender
        self.is_sending = False


class DataPath:
    """Distributes updates from start() to stop()."""

    def __init__(
        self,
        config: NodeConfig,
        engine: DistributionEngine,
        views: Views | None,
        owner: Owner,
        handover: Handover,
        session_sender: SessionSender | None = None,
    ) -> None:
        """`session_sender` sends the events of the consumers that carry() names."""
        self.engine = engine
        self.latencies = LatencyHistogram()
        """Time per update from the arrival of its batch until the update was served. May be read in any thread."""
        self._config = config
        self._views = views
        self._owner = owner
        self._session_sender = session_sender
        self._lock = FairLock()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._mail = Mailbox(self._ring_bell, f"the node {config.name}")
        self._segments = Segments(config, handover)
        self._entitled: dict[int, str] = {}  # entitlement text by consumer
        self._buffers: dict[int, _ConsumerBuffer] = {}
        self._attachments: dict[int, int] = {}  # attachment time by consumer
        self._attachment_count = 0
        self._ended: deque[ConsumerAccount] = deque(maxlen=ENDED_MAX)
        self._gauge = Gauge(time.monotonic_ns())
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="penstock-node", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. A second call has no effect."""
        if self._bell < 0:
            return
        self._is_stopped = True
        self._ring_bell()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            self._mail.close()
            self._segments.close_all()
            bell, self._bell = self._bell, -1
            os.close(bell)

    # From any thread

    def ask(self, question: Callable[[], T]) -> "Future[T]":
        """Call the function under the lock and return its result."""
        return self._mail.ask(question)

    def take(self, content: Content, feed: str = "") -> None:
        """Distribute messages of a feed and the views derived from them, in the caller's thread."""
        with self._lock:
            if self._is_stopped:
                return
            self._mail.deliver()
            number, now_ns, started_ns = self.engine.kernel.items.number, time.monotonic_ns(), time.time_ns()
            if isinstance(content, MessageBatch):
                self.engine.distribute(content, now_ns, started_ns, self.engine.feed_number(feed))
            else:
                self._carry_out(self.engine.handle(Updates(content, feed), now_ns))
            if self._views:
                source_of = self.engine.kernel.items.source
                for topic, model, record, source in self._views.derive(content, source_of):
                    self.engine.publish(topic.encode(), model, record, now_ns, started_ns, source=source)
            self._carry_out(self.engine.take())
            self._note_served(number, now_ns)

    def take_events(self, events: Iterable[FromAbove]) -> None:
        """Handle events of the upstream node, in the caller's thread."""
        with self._lock:
            if self._is_stopped:
                return
            self._mail.deliver()
            number, now_ns = self.engine.kernel.items.number, time.monotonic_ns()
            for event in events:
                if isinstance(event, Updated):
                    self.engine.kernel.publish(*event[:-2], now_ns, event.merged, None, event.session_id)
                else:
                    self.handle(event)
            self._carry_out(self.engine.take())
            self._note_served(number, now_ns)

    def session(self, event: SessionEvent) -> None:
        """Announce the begin or end of a source stream's session, after all messages so far; in the caller's thread."""
        with self._lock:
            if self._is_stopped:
                return
            self._mail.deliver()
            self.handle(SessionChanged(event))
            if self._views:
                self._views.change_session((self.engine.feed_number(event.feed), event.stream_id), event)

    def lose(self) -> None:
        """Note that updates were lost before they reached this node."""
        self._gauge.errors += 1
        self.take_events([Lost()])

    # Under the lock

    def handle(self, event: EngineEvent) -> None:
        """Pass an event to the engine and carry out its instructions."""
        self._carry_out(self.engine.handle(event, time.monotonic_ns()))

    def attach(self, party: Consumer, sender: Sender | None = None) -> Placed:
        """Attach a consumer. The caller closes `sender`, which consumers of datagrams have."""
        sinks, placed = Sinks(), Placed()
        if party.transport == "local":
            sinks, placed = self._segments.open(party.number, takes_records="adaptive" in party.classes)
            self._entitled[party.number] = party.rights.text
        else:
            output = self._buffers[party.number] = _ConsumerBuffer(SessionBuffer(self._config.session_bytes), sender)
            sinks = Sinks(buffer=output.buffer)
        try:
            classes = frozenset(party.classes)
            self.handle(Attach(party.number, party.name, sinks, party.destination, classes))
        except PenstockError:
            self._forget(party.number)
            raise
        self._attachment_count += 1
        self._attachments[party.number] = self._attachment_count
        return placed

    def carry(self, consumer: int, slot: int, framing: Framing) -> None:
        """Let the session sender send the consumer's events from now on, in this slot."""
        assert self._session_sender is not None
        self._session_sender.attach(slot, consumer, self._buffers[consumer].buffer, framing)
        self._flush([consumer])

    def detach(self, party: Consumer) -> None:
        """Withdraw the consumer's segments and forget its interests; a second call has no effect. If its rights are
        revocable, shared segments are not written any more, because the consumer may have kept its mapping."""
        if (attachment := self._attachments.pop(party.number, None)) is not None:
            self._ended.append(ConsumerAccount(self.engine.record(party.number), attachment, is_closed=True))
        self.handle(Detach(party.number))
        parted = self._segments.part(party.number) if party.rights.is_revocable else []
        self._forget(party.number)
        self._move(each for each in parted if each.consumer != party.number)

    def regrant(self, party: Consumer) -> None:
        """Apply changed rights to a consumer without subscriptions: it no longer shares regions with consumers of
        its former rights."""
        if party.number in self._entitled:
            self._entitled[party.number] = party.rights.text
            self._move(self._segments.part(party.number))

    def accounts(self) -> list[ConsumerAccount]:
        """Return the accounts of attached consumers, and of those that left since the last call."""
        ended = list(self._ended)
        self._ended.clear()
        return [*ended, *(ConsumerAccount(self.engine.record(each), at) for each, at in self._attachments.items())]

    def sent(self, consumer: int) -> None:
        """The consumer's connection has sent its events and can be given more."""
        output = self._buffers.get(consumer)
        if output is not None:
            output.is_sending = False
            self.engine.serve(time.monotonic_ns())  # updates that waited for room
            self._flush([consumer])
            self._carry_out(self.engine.take())

    # The thread

    def _run(self) -> None:
        try:
            if self._config.cpu >= 0:
                os.sched_setaffinity(threading.get_native_id(), {self._config.cpu})
            poller = select.poll()
            poller.register(self._bell, select.POLLIN)
            if self._session_sender is not None:
                poller.register(self._session_sender, select.POLLIN)
            while not self._is_stopped:
                with self._lock:
                    wake_ns = self._turn()
                for fd, _ in poller.poll(max(wake_ns - time.monotonic_ns(), 0) / NS_PER_MS):
                    if fd == self._bell:
                        os.eventfd_read(self._bell)
        except Exception as error:  # otherwise the process would appear to be alive without its data path
            log.error("data_thread_failed", error=repr(error))
            self._owner.failed(error)
        finally:
            self._mail.close()

    def _turn(self) -> int:
        """Do one turn. Return the time of the next one."""
        self._mail.deliver()
        now_ns = time.monotonic_ns()
        deadline_ns = self.engine.next_deadline_ns()
        if deadline_ns is not None and deadline_ns <= now_ns:
            self._carry_out(self.engine.handle(Tick(), now_ns))
            deadline_ns = self.engine.next_deadline_ns()
        buffers = (each.buffer for each in self._buffers.values())
        if (readings := self._gauge.read(now_ns, self.engine.consumer_count, buffers)) is not None:
            self.handle(Signals(readings))
        wake_ns = now_ns + WAKE_NS
        if self._session_sender is not None:
            self._session_sender.run(now_ns)
            self.engine.serve(now_ns)  # updates that waited for room
            self._carry_out(self.engine.take())
            wake_ns = min(wake_ns, self._session_sender.next_due_ns)
        return wake_ns if deadline_ns is None else min(wake_ns, deadline_ns)

    def _note_served(self, number: int, began_ns: int) -> None:
        """Measure updates after `number`: they were received together, and are served when the last one is."""
        elapsed_ns = time.monotonic_ns() - began_ns
        self._gauge.busy_ns += elapsed_ns
        if taken := self.engine.kernel.items.number - number:
            self.latencies.record_one(elapsed_ns, taken)

    def _ring_bell(self) -> None:
        if self._bell >= 0:
            os.eventfd_write(self._bell, 1)

    # Instructions of the engine

    def _carry_out(self, instructions: list[EngineInstruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Ready(consumers):
                    self._flush(consumers)
                case OpenRegion(consumer, model, record_count):
                    self._open_region(consumer, model, record_count)
                case RegionTooLarge(consumer, record_count):
                    what = f"the subscriptions need a region of {record_count} records"
                    self._owner.end(consumer, LimitError(what, hint="ask for fewer topics"))
                case Wanted(topics):
                    self._owner.wanted(topics)
                case Unwanted(topics):
                    self._owner.unwanted(topics)

    def _open_region(self, consumer: int, model: MessageModel, record_count: int) -> None:
        entitled = self._entitled.get(consumer)
        if entitled is None:
            return  # the consumer has left
        try:
            sink, opened = self._segments.open_region(consumer, model, record_count, entitled)
        except (PenstockError, OSError) as error:  # a lack of memory or files ends this consumer only
            self._owner.end(consumer, SharedMemoryError(f"cannot create a region: {error}"))
            return
        self._owner.tell(consumer, opened)
        self.handle(RegionOpened(consumer, model.id, sink))

    def _move(self, parted: Iterable[Parted]) -> None:
        for consumer, model, record_count in parted:
            self._open_region(consumer, model, record_count)

    def _flush(self, consumers: Iterable[int]) -> None:
        if self._session_sender is not None:
            now_ns = time.monotonic_ns()
            consumers = self._session_sender.notice(consumers, now_ns)
            if self._session_sender.next_due_ns <= now_ns:
                self._ring_bell()  # the data thread sends, whichever thread this is
        for consumer in consumers:
            output = self._buffers.get(consumer)
            if output is None or output.is_sending:
                continue
            if output.sender is not None:
                self._send(consumer, output.buffer, output.sender)
                continue
            data = output.buffer.take(EVENTS_SIZE_MAX)
            if data:
                output.is_sending = True
                self._owner.events_ready(consumer, data)

    def _send(self, consumer: int, buffer: SessionBuffer, sender: Sender) -> None:
        try:
            while block := buffer.take(BLOCK_SIZE_MAX):
                sender.send(block)
        except PenstockError as error:  # only this consumer's sender has failed
            self._owner.end(consumer, error)

    def _forget(self, consumer: int) -> None:
        if (output := self._buffers.pop(consumer, None)) is not None:
            output.buffer.clear()  # none of it is sent any more
            if self._session_sender is not None:
                self._session_sender.detach(consumer)
        self._entitled.pop(consumer, None)
        self._segments.close(consumer)
