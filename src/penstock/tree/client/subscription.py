"""A subscription to a tree as the application holds it.

    with open_stream("127.0.0.1:7422", "md.us.eq.AAPL.>", where="price > 100", since=timedelta(hours=1)) as messages:
        for message in messages:
            print(message.topic, message.seq, message.price)

A message's `seq` is its sequence in its stream. A reader may be slow: messages that do not fit into the inbox wait at
the agent, or are fetched from the root later.
"""

import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import msgspec

from penstock.base.clock import NS_PER_SECOND, SystemRandomness, random_bytes
from penstock.base.counters import Cause, Counters
from penstock.base.decoding import DECODE_ERRORS
from penstock.base.errors import ConfigurationError, LimitError, LocalProtocolError, ModelError, PenstockError
from penstock.base.log import logger
from penstock.capture.core.message_reader import Readable
from penstock.capture.live._reading import BatchReader
from penstock.capture.live.frames import CollectedFrames
from penstock.capture.live.reading import Models
from penstock.middleware.core.delivery_record import DeliveryRecord
from penstock.middleware.core.events import SessionEvent
from penstock.middleware.core.reserved_topics import SESSION_TOPIC
from penstock.model import MessageModel
from penstock.net.guard import Guard
from penstock.net.live.loop_thread import LoopThread
from penstock.topics import Interest
from penstock.tree.client.core.events import Deliver, Paused, Receipt, Resumed
from penstock.tree.client.core.session_events import SessionEvents
from penstock.tree.client.core.subscriber import Subscriber, SubscriberConfig
from penstock.tree.client.handle import StreamHandle, split_options
from penstock.tree.client.link_reader import LinkReader
from penstock.tree.core.control import LIVE, OLDEST, TOPICS_MAX, WHERE_SIZE_MAX, Position
from penstock.tree.core.infostream import Info
from penstock.wire import PacketMessage
from penstock.wire._packet_run import PacketRun

SLICE_SECONDS = 0.05
INBOX_MESSAGES_MAX = 16_384
LOSSES_MAX = 10_000

Since: TypeAlias = int | float | str | datetime | timedelta | Position | Mapping[str, Position]

log = logger("tree.subscription")
_session = msgspec.json.Decoder(SessionEvent)


class StreamStatistics(msgspec.Struct, frozen=True):
    messages: int
    """Given to the application."""
    duplicates: int
    """Messages that had already arrived on another link."""
    lost: int
    """Loss receipts so far; `losses` has the newest."""
    conflated: int
    """Messages left out for newer ones of their topic, as the class allows."""
    parents_lost: int
    unreadable: int


def position(since: Since) -> tuple[Position, dict[str, Position]]:
    """`since` as protocol positions: the default for all streams, and exceptions by stream."""
    match since:
        case Position():
            return since, {}
        case Mapping():
            return OLDEST, dict(since)
        case "live":
            return LIVE, {}
        case "oldest":
            return OLDEST, {}
        case bool() | str():
            pass
        case int() if since >= 0:
            return Position("sequence", since), {}
        case timedelta():
            return Position("time", time.time_ns() - round(since.total_seconds() * NS_PER_SECOND)), {}
        case datetime() if since.tzinfo is not None:
            return Position("time", round(since.timestamp() * NS_PER_SECOND)), {}
        case datetime():
            raise ConfigurationError("a time without a zone", hint="datetime.now(UTC), for example")
    raise ConfigurationError(
        f"{since!r} is not a start position", hint='a sequence, a datetime, a timedelta, "oldest" or "live"'
    )


class StreamSubscription(StreamHandle, CollectedFrames):
    """Made by open_stream() and Client.subscribe(). One thread or task reads; any may cancel()."""

    def __init__(
        self,
        config: SubscriberConfig,
        models: Models,
        *,
        guard: Guard | None = None,
        token: str = "",
        thread: LoopThread | None = None,
        on_infostream: Callable[[str, Info], None] | None = None,
        inbox_messages_max: int = INBOX_MESSAGES_MAX,
        losses_max: int = LOSSES_MAX,
    ) -> None:
        super().__init__("subscription", Counters("tree.subscriber"), thread=thread, on_infostream=on_infostream)
        self.topics = config.topics
        self.on_session: Callable[[SessionEvent], None] | None = None
        """Called when the reader comes to the place where a session of a feed's source stream began or ended; in the
        thread that reads. Streams with messages of the root's feeds have these events; a subscription receives them
        without naming `penstock.session`, and reports an event that several streams have once."""
        self._models = models
        self._inbox_max = inbox_messages_max
        self._inbox: deque[Deliver] = deque()
        self._ready: Sequence[Readable | PacketMessage] = []
        """Messages taken from the inbox, in the thread that reads."""
        self._ready_stream = ""
        self._next = 0
        """The next one of the ready messages."""
        self._arrived = 0
        """Number of messages that were put into the inbox."""
        self._taken = 0
        """Number of messages of the former ready lists."""
        self._left_out = 0
        """Taken messages that the application did not get: session events, unreadable ones."""
        self._is_paused = False
        self._record: DeliveryRecord[Receipt] = DeliveryRecord(losses_max)
        self._session_events = SessionEvents()
        self._reader = BatchReader(models, SystemRandomness().below(2**64), models.read)
        self._conflated = 0
        self._core = Subscriber(config, SystemRandomness(), self.counters, token=token)
        self._link_reader = LinkReader(self._core, self._changed, self._put)
        self._run(self._core, guard)
        self._link_reader.begin(self._runner, self._loop)

    # For the application

    def next(self, timeout: float | None = None) -> Readable | None:
        """The next message, or None when none came within `timeout` seconds. Raises when the subscription is over."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if (message := self._take_ready()) is not None:
                return message
            if not self._fill(deadline):
                return None

    def __iter__(self) -> Iterator[Readable]:
        """Messages until the subscription is cancelled."""
        while not self._is_closed:
            if (message := self._take_ready()) is not None:
                yield message
            else:
                self._fill(time.monotonic() + SLICE_SECONDS)

    async def __aiter__(self) -> AsyncIterator[Readable]:
        """The same for `async for`."""
        while not self._is_closed:
            while self.waiting and not self._is_closed:
                if (message := self.next(0.0)) is not None:
                    yield message
            await self._changed.wait_in_loop(lambda: self._inbox or self.is_over)
            self._check()

    def batches(self, timeout: float | None = None) -> Iterator[list[Readable]]:
        """Yield messages in batches, until none arrives for `timeout` seconds or the subscription is cancelled."""
        heard = time.monotonic()
        while not self._is_closed:
            if self.waiting or self._fill(time.monotonic() + SLICE_SECONDS):
                heard = time.monotonic()
                read = self._take_all_ready()
                while self._take_delivered():
                    read += self._take_all_ready()
                yield read
            elif timeout is not None and time.monotonic() - heard >= timeout:
                return

    @property
    def is_live(self) -> bool:
        """True once the backlog has been received and messages arrive as they are published."""
        return self._core.is_live

    @property
    def losses(self) -> list[Receipt]:
        """Loss receipts, oldest first."""
        return self._record.losses

    @property
    def loss_count(self) -> int:
        return self._record.loss_count

    @property
    def sessions(self) -> list[SessionEvent]:
        """The session events of source streams up to the reader's position, oldest first."""
        return self._record.sessions

    @property
    def waiting(self) -> int:
        """Number of messages that have arrived and were not read."""
        return 0 if self._error is not None else self._arrived - self._taken - self._next

    def positions(self) -> dict[str, Position]:
        """The position reached in each stream. Given as `since`, another subscription continues there. Read what waits
        here first: it counts as received."""
        return dict(self._core.positions())

    def statistics(self) -> StreamStatistics:
        dropped = self.counters.by_cause("messages_dropped")
        return StreamStatistics(
            messages=self._taken + self._next - self._left_out,
            duplicates=self.counters.by_cause("messages_suppressed").get(Cause.DUPLICATE, 0),
            lost=self._record.loss_count,
            conflated=self._conflated,
            parents_lost=self.counters["parents_lost"],
            unreadable=sum(dropped.values()),
        )

    def fail(self, error: PenstockError) -> None:
        """End it with this error; undelivered messages are dropped."""
        with self._changed:
            super().fail(error)
            self._inbox.clear()
            self._link_reader.close()

    def close(self) -> None:
        with self._changed:
            self._link_reader.close()
        super().close()

    # The application's thread

    def _check(self) -> None:
        if self._error is not None:
            error = self._error
            self.close()
            raise error

    def _take_ready(self) -> Readable | None:
        """Return the next ready message; None if none is ready."""
        while self._next < len(self._ready):
            self._check()
            message = self._ready[self._next]
            self._next += 1
            if not isinstance(message, PacketMessage):
                return message
            if (read := self._read(message)) is not None:
                return read
            self._left_out += 1
        return None

    def _take_all_ready(self) -> list[Readable]:
        found = []
        while (message := self._take_ready()) is not None:
            found.append(message)
        return found

    def _fill(self, deadline: float | None) -> bool:
        """Take the next messages from the inbox; False: none arrived until the deadline."""
        is_late = False
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            with self._changed:
                is_lent = self._link_reader.is_lent
                if self._inbox or self._error is not None or self._is_closed or is_late:
                    break
                if not is_lent and left is not None and left <= 0:
                    break
                if not is_lent:
                    self._link_reader.ask()
                    self._changed.wait(left)
            if is_lent:
                is_late = left is not None and left <= 0
                self._link_reader.read(left)
        return self._take_delivered()

    def _take_delivered(self) -> bool:
        """Take the next messages from the inbox. Return False if the inbox is empty."""
        with self._changed:
            taken = self._inbox.popleft() if self._inbox and self._error is None else None
        self._check()
        if taken is not None:
            messages = taken.messages
            ready: Sequence[Readable | PacketMessage] = (
                self._reader.read_run(messages, SESSION_TOPIC) if isinstance(messages, PacketRun) else messages
            )
            with self._changed:
                self._taken += self._next
                self._ready, self._next, self._ready_stream = ready, 0, taken.stream
        self._make_room()
        return taken is not None

    def _make_room(self) -> None:
        with self._changed:
            has_room = self._is_paused and self.waiting <= self._inbox_max // 2 and not self._is_closed
            if has_room:
                self._is_paused = False
        if has_room:
            self._loop.call_soon_threadsafe(self._resume)

    def _read(self, message: PacketMessage) -> Readable | None:
        if message.topic == SESSION_TOPIC:
            self._tell_session(message)
            return None
        try:
            read = self._models.read(message)
        except ModelError:
            self.counters.add("messages_dropped", cause=Cause.MESSAGE)
            return None
        if read.source is not None:
            self._session_events.note_origin(read.source)
        read.seq = message.sequence
        return read

    def _tell_session(self, message: PacketMessage) -> None:
        try:
            event = _session.decode(message.payload)
        except DECODE_ERRORS:
            self.counters.add("messages_dropped", cause=Cause.MESSAGE)
            return
        news = self._session_events.news(self._ready_stream, event)
        if news is None:
            return
        self._record.add_session(news)
        if self.on_session is not None:
            self.on_session(news)

    # The loop's thread

    def _carry_out(self, instruction: Any) -> None:
        match instruction:
            case Deliver():
                self._deliver(instruction)
            case Receipt():
                self._conflated += instruction.count
                if instruction.cause != "conflated":
                    self._record.add_loss(instruction)
                    log.warning("messages_lost", receipt=msgspec.to_builtins(instruction))
            case _:
                super()._carry_out(instruction)

    def _deliver(self, delivered: Deliver) -> None:
        with self._changed:
            if self._error is not None or self._is_closed:
                return
            self._put(delivered)
            self._link_reader.wake()
            is_full = self.waiting > self._inbox_max and not self._is_paused
            # under the lock: a reader that has emptied the inbox must see the pause, or nobody would end it
            self._is_paused |= is_full
            self._changed.notify_all()
        if is_full:
            self._runner.pause()
            self._runner.carry_out_all(self._core.handle(Paused(), self._now_ns()))

    def _put(self, delivered: Deliver) -> None:
        """With the lock."""
        self._inbox.append(delivered)
        self._arrived += len(delivered.messages)

    def _resume(self) -> None:
        if self._is_paused:  # paused again in the meantime: the reader ends that pause, too
            return
        self._runner.resume()
        self._runner.carry_out_all(self._core.handle(Resumed(), self._now_ns()))

    def _now_ns(self) -> int:
        return time.monotonic_ns()


def no_models(model_id: int, version: int) -> MessageModel:
    """Model lookup without an administration server: only shipped models are known."""
    raise ModelError(f"model {model_id} is unknown")


def checked(topics: tuple[str, ...], where: str | None) -> None:
    """Raise for topics or a condition that every agent would refuse."""
    if not topics:
        raise LocalProtocolError("a subscription needs topics", hint="'>' is everything")
    if all(Interest.parse(topic).negative for topic in topics):
        raise LocalProtocolError("a subscription needs a topic that is not negative", hint="'>' is everything")
    if len(topics) > TOPICS_MAX:
        raise LimitError(
            f"a subscription has {len(topics):,} topics; the limit is {TOPICS_MAX:,}",
            hint="use patterns such as md.us.eq.*.quote, or open several subscriptions",
        )
    if where is not None and len(where) > WHERE_SIZE_MAX:
        raise LimitError(f"a condition of {len(where)} characters", hint=f"at most {WHERE_SIZE_MAX}")


def subscriber_config(
    agents: tuple[str, ...],
    topics: tuple[str, ...],
    *,
    where: str | None,
    since: Since,
    name: str,
    **options: Any,
) -> tuple[SubscriberConfig, dict[str, Any]]:
    """The core's configuration, and the other options."""
    checked(topics, where)
    common, by_stream = position(since)
    of_config, others = split_options(SubscriberConfig, options)
    config = SubscriberConfig(
        name=name, agents=agents, topics=topics, where=where or "", since=common, positions=by_stream, **of_config
    )
    return config, others


def open_stream(
    agent: str,
    *topics: str,
    alternates: tuple[str, ...] = (),
    where: str | None = None,
    since: Since = "live",
    name: str = "",
    **options: Any,
) -> StreamSubscription:
    """Messages of the tree whose agent is at "host:port"; `alternates` can take its place.

    `where` is a SQL condition on fields; `since` is the beginning: a sequence (the first message is the one after it),
    a time, an age, "oldest", "live", or the positions() of another subscription. `name` identifies the subscription at
    the agent. `options` are the other fields of SubscriberConfig and of StreamSubscription: tree, cls, on, token,
    guard, on_infostream.
    """
    name = name or f"subscriber-{random_bytes(6).hex()}"
    config, others = subscriber_config((agent, *alternates), topics, where=where, since=since, name=name, **options)
    return StreamSubscription(config, others.pop("models", None) or Models(no_models), **others)
