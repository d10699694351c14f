"""A publisher on a tree as the application holds it.

    with open_publisher("127.0.0.1:7420", name="orders") as publisher:
        publisher.publish("orders.new", order)
        publisher.flush()                       # returns when the root has everything

publish() returns at once; what the root does not have yet is kept, and sent again to whoever becomes the root. With a
name of its own a publisher that is started again goes on in its numbering; without, it is another each time.
"""

import asyncio
import threading
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Any, Self

from typing_extensions import Buffer

from penstock.base.clock import SystemRandomness, random_bytes
from penstock.base.counters import Counters
from penstock.base.errors import LocalProtocolError, PenstockError, UnreachableError
from penstock.model import Message
from penstock.net.guard import Guard
from penstock.net.live.loop_thread import LoopThread
from penstock.topics import InterestTable, check_topic
from penstock.tree.client.core.events import Accepted, Heard, Over, Receipt
from penstock.tree.client.core.publisher import Publisher, PublisherConfig
from penstock.tree.client.core_runner import Running
from penstock.tree.core.infostream import Info, id_of
from penstock.tree.core.kernel._number import encode_published

UNCONFIRMED_MAX = 65_536
OPEN_SECONDS = 10.0


class StreamPublisher:
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
        self.counters = Counters("tree.publisher")
        self._config = config
        self._on_infostream = on_infostream
        self._unconfirmed_max = unconfirmed_max
        self._own_thread = LoopThread("penstock-publish") if thread is None else None
        self._changed = threading.Condition()
        self._waiting: list[bytes] = []  # packets that the core does not have yet
        self._next = 0
        self._accepted = 0
        self._losses: list[Receipt] = []
        self._error: PenstockError | None = None
        self._is_closed = False
        self._thread = thread or self._own_thread
        self._core = Publisher(config, SystemRandomness(), self.counters, token=token)
        self._streams: dict[int, tuple[str, ...]] = {}
        self._table = InterestTable()
        assert self._thread is not None
        self._running = self._thread.start(self._start(guard or Guard())).result()
        try:
            self._await_welcome(open_seconds)
        except BaseException:
            self.close()
            raise

    async def _start(self, guard: Guard) -> Running:
        self._loop = asyncio.get_running_loop()
        running = Running(self._core, self._config.name, guard, self.counters, self._carry_out)
        running.runner.failed.add_done_callback(self._core_failed)
        self._running = running
        running.start()
        return running

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
        """Send a message; its number, of this publisher's own. A Message of a model brings its model's id and version.
        `stream` is the number of a stream that has the topic; 0: the first one.

        It waits while too much is unconfirmed. RefusedError, later, when the root does not take it.
        """
        check_topic(topic)
        if isinstance(payload, Message):
            model_id, model_version = payload.model.id, payload.version
        content = bytes(payload)
        with self._changed:
            self._changed.wait_for(lambda: self._is_over() or self._room() > 0)
            self._raise_if_over()
            number = self._next
            packet = encode_published(
                self._config.publisher_id,
                number,
                stream or min(self._streams_of(topic), default=0),
                topic,
                content,
                model_id=model_id,
                model_version=model_version,
                extensions=extensions,
            )
            self._next += 1
            self._waiting.append(packet)
            is_first = len(self._waiting) == 1
        if is_first:
            self._loop.call_soon_threadsafe(self._send)
        return number

    def streams_with(self, topic: str) -> list[int]:
        """The numbers of all streams that have the topic."""
        with self._changed:
            return sorted(self._streams_of(topic))

    def flush(self, timeout: float | None = None) -> bool:
        """Whether the root has everything that was published; waits for it."""
        with self._changed:
            last = self._next - 1
            self._changed.wait_for(lambda: self._is_over() or self._accepted >= last, timeout)
            self._raise_if_over()
            return self._accepted >= last

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
        """Messages that were acknowledged by a root that is lost, and that its successor does not have."""
        return list(self._losses)

    @property
    def agent(self) -> str:
        """The name of the agent that it publishes at; empty: none at the moment."""
        welcome = self._core.welcome
        return "" if welcome is None else welcome.agent

    def cancel(self) -> None:
        self.close()

    def close(self) -> None:
        """End it; what is not confirmed may or may not be kept, flush() knows."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
        assert self._thread is not None
        self._thread.start(self._running.close()).result()
        if self._own_thread is not None:
            self._own_thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.cancel()

    @property
    def is_over(self) -> bool:
        return self._is_over()

    def renew(self, token: str) -> None:
        """A newer token of the administration server."""
        self._loop.call_soon_threadsafe(lambda: self._running.carry_out(self._core.renew(token)))

    def fail(self, error: PenstockError) -> None:
        with self._changed:
            if self._error is None:
                self._error = error
            self._changed.notify_all()

    # With the lock

    def _is_over(self) -> bool:
        return self._is_closed or self._error is not None

    def _raise_if_over(self) -> None:
        if self._error is not None:
            raise self._error
        if self._is_closed:
            raise LocalProtocolError("the publisher is closed")

    def _room(self) -> int:
        return self._unconfirmed_max - (self._next - 1 - self._accepted)

    def _streams_of(self, topic: str) -> Collection[int]:
        """Empty: the root finds the stream, or creates it."""
        if self._streams != (now := {number: info.topics for number, info in self._core.streams.items()}):
            self._streams, self._table = now, InterestTable()
            for number, topics in now.items():
                for each in topics:
                    self._table.add(each, number)
        return self._table.match(topic)

    # The loop's thread

    def _send(self) -> None:
        with self._changed:
            packets, self._waiting = self._waiting, []
        self._running.carry_out(self._core.publish(packets))

    def _carry_out(self, instruction: Any) -> None:
        match instruction:
            case Accepted(through):
                with self._changed:
                    self._accepted = through
                    self._changed.notify_all()
            case Receipt():
                self._losses.append(instruction)
            case Heard(agent, info):
                if self._on_infostream is not None:
                    self._on_infostream(agent, info)
            case Over(error):
                self.fail(error)
        with self._changed:
            self._changed.notify_all()

    def _core_failed(self, failed: "asyncio.Future[Exception]") -> None:
        self.fail(LocalProtocolError(f"the publisher failed: {failed.result()!r}"))


def publisher_config(
    agents: tuple[str, ...], *, name: str, is_named: bool, **options: Any
) -> tuple[PublisherConfig, dict[str, Any]]:
    """The core's configuration, and what is left of the options."""
    of_config = {key: options.pop(key) for key in list(options) if key in PublisherConfig.__struct_fields__}
    of_config.setdefault("publisher_id", id_of(name) if is_named else 1 + SystemRandomness().below(2**63))
    return PublisherConfig(name=name, agents=agents, **of_config), options


def open_publisher(agent: str, *, alternates: tuple[str, ...] = (), name: str = "", **options: Any) -> StreamPublisher:
    """A publisher at the root at "host:port"; `alternates` is where its standby is.

    `options` are the other fields of PublisherConfig and of StreamPublisher: tree, on, token, guard, on_infostream.
    """
    own = name or f"publisher-{random_bytes(6).hex()}"
    config, others = publisher_config((agent, *alternates), name=own, is_named=bool(name), **options)
    return StreamPublisher(config, **others)
