"""A publisher on a tree as the application holds it.

    with open_publisher("127.0.0.1:7420", name="orders") as publisher:
        publisher.publish("orders.new", order)
        publisher.flush()                       # returns when the root has everything

publish() returns at once; messages that the root has not acknowledged are kept, and sent again after a failover. A
publisher with a name continues its numbering after a restart; a publisher without one is new each time.
"""

from collections.abc import Callable, Collection
from typing import Any

from typing_extensions import Buffer

from penstock.base.clock import SystemRandomness, random_bytes
from penstock.base.counters import Counters
from penstock.base.errors import ConfigurationError, LocalProtocolError, PenstockError, UnreachableError
from penstock.model import Message
from penstock.net.guard import Guard
from penstock.net.live.loop_thread import LoopThread
from penstock.topics import InterestTable, check_topic
from penstock.tree.client._publishing_lane import PublishingLane
from penstock.tree.client.core.events import Accepted, Receipt
from penstock.tree.client.core.publisher import Publisher, PublisherConfig
from penstock.tree.client.handle import StreamHandle, split_options
from penstock.tree.core.infostream import Info, id_of
from penstock.tree.core.kernel._number import encode_published

UNCONFIRMED_MAX = 65_536
LINGER_US = 50
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
        linger_us: int = LINGER_US,
    ) -> None:
        """`linger_us`: how long a message of a burst may wait for further ones that share its packet; 0: none waits. A
        message that comes alone is sent at once."""
        if linger_us < 0:
            raise ConfigurationError(f"linger_us {linger_us} is negative", hint="0: no message waits for further ones")
        super().__init__("publisher", Counters("tree.publisher"), thread=thread, on_infostream=on_infostream)
        self._config = config
        self._unconfirmed_max = unconfirmed_max
        self._accepted = 0
        self._losses: list[Receipt] = []
        self._table = InterestTable()
        self._core = Publisher(config, SystemRandomness(), self.counters, token=token)
        self._lane = PublishingLane(self._core, self._changed, config.publisher_id)
        self._run(self._core, guard, linger_us)
        self._lane.links = self._runner.links
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
            self._accepted = self._core.next_number - 1
            self._lane.room = self._unconfirmed_max

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
        if number := self._lane.publish(topic, payload, model_id, model_version, extensions, stream):
            return number
        return self._publish(topic, payload, model_id, model_version, extensions, stream)

    def _publish(
        self,
        topic: str,
        payload: Buffer | Message,
        model_id: int,
        model_version: int,
        extensions: bytes,
        stream: int,
    ) -> int:
        """Send a message through the core."""
        check_topic(topic)
        if isinstance(payload, Message):
            model_id, model_version = payload.model.id, payload.version
        content = bytes(payload)
        with self._changed:
            if self._lane.room <= 0:
                self._changed.wait_for(lambda: self.is_over or self._lane.room > 0)
            self._raise_if_over()
            number, known = self._core.next_number, self._stream_of(topic)
            packet = encode_published(
                self._config.publisher_id,
                number,
                stream or known,
                topic,
                content,
                model_id=model_id,
                model_version=model_version,
                extensions=extensions,
            )
            self._runner.send_now(self._core.publish([packet]))
            self._lane.room -= 1
        return number

    def streams_with(self, topic: str) -> list[int]:
        """The numbers of all streams that have the topic."""
        with self._changed:
            return sorted(self._streams_of(topic))

    def flush(self, timeout: float | None = None) -> bool:
        """Send the messages of a burst that wait, and wait until the root has everything that was published; True if it
        has."""
        with self._changed:
            last = self._core.next_number - 1
            if self._accepted < last and not self.is_over:
                self._runner.send_now(self._core.hurry())
            self._changed.wait_for(lambda: self.is_over or self._accepted >= last, timeout)
            self._raise_if_over()
            return self._accepted >= last

    def fail(self, error: PenstockError) -> None:
        with self._changed:
            super().fail(error)
            self._lane.room = 0

    def close(self) -> None:
        with self._changed:
            self._lane.room = 0
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

    def _set_room(self) -> None:
        """No room when the publisher is over: the next call gets its error."""
        unconfirmed = self._core.next_number - 1 - self._accepted
        self._lane.room = 0 if self.is_over else self._unconfirmed_max - unconfirmed

    def _streams_of(self, topic: str) -> Collection[int]:
        """Empty: the root finds the stream, or creates it."""
        streams = self._core.streams
        if self._lane.streams is not streams:
            self._lane.streams, self._table = streams, InterestTable()
            self._lane.stream_by_topic.clear()
            for number, info in streams.items():
                for each in info.topics:
                    self._table.add(each, number)
        return self._table.match(topic)

    def _stream_of(self, topic: str) -> int:
        """The first stream with the topic; 0: none is known."""
        found = min(self._streams_of(topic), default=0)
        if len(self._lane.stream_by_topic) >= TOPICS_REMEMBERED_MAX:
            self._lane.stream_by_topic.clear()
        self._lane.stream_by_topic[topic] = found
        return found

    # The loop's thread

    def _carry_out(self, instruction: Any) -> None:
        match instruction:
            case Accepted(through):
                with self._changed:
                    self._accepted = through
                    self._set_room()
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
