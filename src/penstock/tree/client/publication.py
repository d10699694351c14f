"""A publisher on a tree as the application holds it.

    with open_publisher("127.0.0.1:7420", name="orders") as publisher:
        publisher.publish("orders.new", order)
        publisher.flush()                       # returns when the root has everything

publish() returns at once; messages that the root has not acknowledged are kept, and sent again after a failover. A
publisher with a name continues its numbering after a restart; a publisher without one is new each time.
"""

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from typing_extensions import Buffer

from penstock.base.clock import SystemRandomness, random_bytes
from penstock.base.counters import Counters
from penstock.base.errors import LocalProtocolError, UnreachableError
from penstock.model import Message
from penstock.net.guard import Guard
from penstock.net.live.loop_thread import LoopThread
from penstock.topics import InterestTable, check_topic
from penstock.tree.client.core.events import Accepted, Receipt
from penstock.tree.client.core.publisher import Publisher, PublisherConfig
from penstock.tree.client.handle import StreamHandle, split_options
from penstock.tree.core.control import StreamInfo
from penstock.tree.core.infostream import Info, id_of
from penstock.tree.core.kernel._number import encode_published

UNCONFIRMED_MAX = 65_536
BURST_NS = 20_000
"""Messages that follow each other within this time are sent together; any other is sent at once."""
BURST_SIZE = 32 * 1024
BURST_SECONDS = 0.001
"""How long the last messages of a burst wait for further ones."""
TOPICS_REMEMBERED_MAX = 65_536
OPEN_SECONDS = 10.0


class StreamPublisher(StreamHandle):
    """Made by open_publisher() and Client.stream_publisher(). Any thread may publish."""

    def __init__(
        self,
        config: PublisherConfig,
        *,
        guard: Guard | None = None,
        token: str = "",
        thread: LoopThread | None = None,
        on_infostream: Callable[[str, Info], None] | None = None,
        unconfirmed_max: int = UNCONFIRMED_MAX,
        open_seconds: float = OPEN_SECONDS,
    ) -> None:
        super().__init__("publisher", Counters("tree.publisher"), thread=thread, on_infostream=on_infostream)
        self._config = config
        self._unconfirmed_max = unconfirmed_max
        self._outbox: list[bytes] = []
        """Packets that the core does not have yet: a burst's."""
        self._outbox_size = 0
        self._published_ns = 0
        """Time of the last message."""
        self._is_send_due = False
        """True if the loop's thread ends the burst."""
        self._next = 0
        """The number of the next message."""
        self._accepted = 0
        self._losses: list[Receipt] = []
        self._streams: Mapping[int, StreamInfo] = {}
        self._stream_by_topic: dict[str, int] = {}
        self._table = InterestTable()
        self._core = Publisher(config, SystemRandomness(), self.counters, token=token)
        self._run(self._core, guard)
        try:
            self._await_welcome(open_seconds)
        except BaseException:
            self.close()
            raise

    def _await_welcome(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or self._core.next_number, seconds)
            self._raise_if_over()
            if not self._core.next_number:
                raise UnreachableError(
                    "no agent of the tree answers", where=", ".join(self._config.agents), hint="is the root running?"
                )
            self._next = self._core.next_number
            self._accepted = self._next - 1

    # For the application

    def publish(
        self,
        topic: str,
        payload: Buffer | Message,
        *,
        model_id: int = 0,
        model_version: int = 0,
        extensions: bytes = b"",
        stream: int = 0,
    ) -> int:
        """Send a message; returns its number, of this publisher's own. A Message of a model has its model's id and
        version. `stream` is the number of a stream that has the topic; 0: the first one.

        Blocks while too many messages are unconfirmed. If the root refuses the message, a later call raises
        RefusedError.
        """
        if stream:
            check_topic(topic)
        if isinstance(payload, Message):
            model_id, model_version = payload.model.id, payload.version
        content = bytes(payload)
        with self._changed:
            if self._room() <= 0:
                self._send()
                self._changed.wait_for(lambda: self.is_over or self._room() > 0)
            self._raise_if_over()
            number = self._next
            packet = encode_published(
                self._config.publisher_id,
                number,
                stream or self._stream_of(topic),
                topic,
                content,
                model_id=model_id,
                model_version=model_version,
                extensions=extensions,
            )
            self._next += 1
            self._outbox.append(packet)
            self._outbox_size += len(packet)
            now_ns = time.monotonic_ns()
            is_burst = now_ns - self._published_ns < BURST_NS
            self._published_ns = now_ns
            if not is_burst or self._outbox_size >= BURST_SIZE:
                self._send()
            elif not self._is_send_due:
                self._is_send_due = True
                self._loop.call_soon_threadsafe(self._loop.call_later, BURST_SECONDS, self._end_burst)
        return number

    def streams_with(self, topic: str) -> list[int]:
        """The numbers of all streams that have the topic."""
        with self._changed:
            return sorted(self._streams_of(topic))

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until the root has everything that was published; True if it has."""
        with self._changed:
            last = self._next - 1
            if self._accepted < last and not self.is_over:
                self._send()
                self._runner.send_now(self._core.hurry())
            self._changed.wait_for(lambda: self.is_over or self._accepted >= last, timeout)
            self._raise_if_over()
            return self._accepted >= last

    def close(self) -> None:
        with self._changed:
            if not self.is_over:
                self._send()
        super().close()

    @property
    def accepted(self) -> int:
        """The last number that the root has."""
        return self._accepted

    @property
    def degraded(self) -> int:
        """Number of messages that the root acknowledged without a copy at a standby, although replication is
        synchronous. All messages of an acknowledgement count if one of them has no copy."""
        return self._core.degraded

    @property
    def losses(self) -> list[Receipt]:
        """Messages that a lost root acknowledged and its successor does not have."""
        return list(self._losses)

    # With the lock

    def _raise_if_over(self) -> None:
        if self._error is not None:
            raise self._error
        if self._is_closed:
            raise LocalProtocolError("the publisher is closed")

    def _room(self) -> int:
        return self._unconfirmed_max - (self._next - 1 - self._accepted)

    def _streams_of(self, topic: str) -> Collection[int]:
        """Empty: the root finds the stream, or creates it."""
        if self._streams is not self._core.streams:
            self._streams, self._table = self._core.streams, InterestTable()
            self._stream_by_topic = {}
            for number, info in self._streams.items():
                for each in info.topics:
                    self._table.add(each, number)
        return self._table.match(topic)

    def _stream_of(self, topic: str) -> int:
        """The first stream with the topic; 0: none is known."""
        found = self._stream_by_topic.get(topic) if self._streams is self._core.streams else None
        if found is None:
            check_topic(topic)
            found = min(self._streams_of(topic), default=0)
            if len(self._stream_by_topic) >= TOPICS_REMEMBERED_MAX:
                self._stream_by_topic.clear()
            self._stream_by_topic[topic] = found
        return found

    def _send(self) -> None:
        """Give the burst to the core, and send the core's data."""
        if self._outbox:
            packets, self._outbox, self._outbox_size = self._outbox, [], 0
            self._runner.send_now(self._core.publish(packets))

    # The loop's thread

    def _end_burst(self) -> None:
        with self._changed:
            self._is_send_due = False
            self._send()

    def _carry_out(self, instruction: Any) -> None:
        match instruction:
            case Accepted(through):
                with self._changed:
                    self._accepted = through
                    self._changed.notify_all()
            case Receipt():
                self._losses.append(instruction)
            case _:
                super()._carry_out(instruction)
        with self._changed:
            self._changed.notify_all()


def publisher_config(
    agents: tuple[str, ...], *, name: str, is_named: bool, **options: Any
) -> tuple[PublisherConfig, dict[str, Any]]:
    """The core's configuration, and the other options."""
    of_config, others = split_options(PublisherConfig, options)
    of_config.setdefault("publisher_id", id_of(name) if is_named else 1 + SystemRandomness().below(2**63))
    return PublisherConfig(name=name, agents=agents, **of_config), others


def open_publisher(agent: str, *, alternates: tuple[str, ...] = (), name: str = "", **options: Any) -> StreamPublisher:
    """A publisher at the root at "host:port"; `alternates` is where its standby is.

    `options` are the other fields of PublisherConfig and of StreamPublisher: tree, on, token, guard, on_infostream.
    """
    own = name or f"publisher-{random_bytes(6).hex()}"
    config, others = publisher_config((agent, *alternates), name=own, is_named=bool(name), **options)
    return StreamPublisher(config, **others)
