"""An application's session with message routers.

    with open_assured("127.0.0.1:7460", "127.0.0.1:7461") as assured:
        with assured.publisher() as orders:
            orders.publish("orders.new", b"buy 100")        # returns when the message is stored
        with assured.endpoint("orders") as queue:
            for message in queue:
                ...
                message.ack()

The session uses one link to the active router, and connects again when the link is lost or another router is active.
The session runs in a thread of its own, everything else in the application's threads.
"""

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import msgspec

from penstock.assured.client import leftover
from penstock.assured.client.arguments import whole_number
from penstock.assured.client.async_publishing import AsyncPublishing
from penstock.assured.client.endpoint import AssuredEndpoint
from penstock.assured.client.publisher import AssuredPublisher
from penstock.assured.client.session_driver import AssuredSessionDriver
from penstock.assured.client.transaction import Transaction
from penstock.assured.config import EndpointConfig
from penstock.assured.core.session.events import (
    Answered,
    Ask,
    Changed,
    ClosePart,
    Event,
    Flush,
    Opened,
    OpenPart,
    PartFailed,
    Renew,
)
from penstock.assured.core.session.parts import FlowPart, PublisherPart
from penstock.assured.core.session.places import SessionConfig
from penstock.assured.core.session.refusals import error_of
from penstock.assured.core.session.session import AssuredSession
from penstock.assured.wire._layout import WINDOW_MAX
from penstock.assured.wire.control import (
    ASSURED,
    MESSAGE_SIZE_MAX,
    AlterEndpoint,
    Answer,
    CreateEndpoint,
    Degrade,
    DeleteEndpoint,
    Done,
    EmptyEndpoint,
    EndpointInfo,
    Endpoints,
    ListEndpoints,
    OpenFlow,
    OpenPublisher,
    Refused,
    Request,
    Switch,
)
from penstock.base.clock import SystemRandomness, random_bytes
from penstock.base.config import explained
from penstock.base.counters import Counters
from penstock.base.decoding import msgpack_decoder
from penstock.base.errors import LocalProtocolError, PenstockError, RemoteProtocolError, UnreachableError
from penstock.net.core.client_session import Over
from penstock.net.guard import Guard
from penstock.net.live.loop_condition import LoopCondition
from penstock.net.live.loop_thread import LoopThread

MIB = 1024 * 1024
ANSWER_SECONDS = 10.0
WINDOW = 256
PREFETCH = 256
WINDOW_BYTES_MAX = 16 * MIB


class Assured:
    """Made by open_assured() and Client.assured(). Any thread may use it."""

    def __init__(
        self,
        config: SessionConfig,
        *,
        token: str = "",
        guard: Guard | None = None,
        thread: LoopThread | None = None,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self.counters = Counters("assured.client")
        self.lock = threading.RLock()  # itself, not its condition: no interrupt comes between it and its with statement
        self.changed = LoopCondition(self.lock)
        """Notified when something was acknowledged, came, or was answered."""

        self._config = config
        self._answer_seconds = answer_seconds
        self._core = AssuredSession(config, SystemRandomness(), self.counters, token=token)
        self._answers: dict[int, Answer | None] = {}
        self._last_token = 0
        self._failed: dict[PublisherPart | FlowPart, PenstockError] = {}
        self._parts: set[PublisherPart | FlowPart] = set()  # the open ones
        self._listeners: list[Callable[[Changed], None]] = []
        self._idle: list[AssuredPublisher] = []  # for transactions
        self._error: PenstockError | None = None
        self._is_closed = False
        self._own_thread = LoopThread("penstock-assured") if thread is None else None
        self._thread = thread or self._own_thread
        assert self._thread is not None
        self._thread.start(self._start(guard or Guard())).result()
        leftover.opened(self)

    async def _start(self, guard: Guard) -> None:
        self._loop = asyncio.get_running_loop()
        self._running = AssuredSessionDriver(
            self._core, self._config.name, guard, self.counters, self._carry_out, self._exchanged
        )
        self._running.runner.failed.add_done_callback(self._core_failed)
        self._running.start()

    # For the application

    def publisher(
        self, *, window: int = WINDOW, window_bytes_max: int = WINDOW_BYTES_MAX, publisher_id: int = 0
    ) -> AssuredPublisher:
        """Open a publisher with at most `window` unacknowledged messages. With a `publisher_id` of its own, a restarted
        publisher continues its numbering."""
        own = publisher_id or 1 + SystemRandomness().below(2**63)
        _check(OpenPublisher(0, own))
        window = whole_number(window, "window", WINDOW_MAX)
        bytes_max = whole_number(window_bytes_max, "window_bytes_max", 2**63 - 1)
        made = AssuredPublisher(self, PublisherPart(own, window=window, bytes_max=bytes_max))
        self.open_part(made.part)
        return made

    def endpoint(self, name: str, *, prefetch: int = PREFETCH) -> AssuredEndpoint:
        """Consume from an endpoint; at most `prefetch` delivered messages are unsettled."""
        _check(OpenFlow(0, name, whole_number(prefetch, "prefetch", 2**32 - 1)))
        made = AssuredEndpoint(self, FlowPart(name, prefetch=prefetch))
        self.open_part(made.part)
        return made

    def transaction(self) -> Transaction:
        """Begin a transaction: its messages and settlements take effect together at the end, or not at all."""
        with self.lock:
            self._check_open()
            publisher = self._idle.pop() if self._idle else None
        return Transaction(self, publisher or self.publisher(window=4_096), self._idle.append)

    def create_endpoint(self, endpoint: EndpointConfig, *, from_id: int = 0, from_time_ns: int = 0) -> None:
        """Create an endpoint; no error if the same endpoint exists. The endpoint begins with the next message, or with
        an earlier one in the router's log: from a message id, or from a time."""
        if from_id and from_time_ns:
            raise LocalProtocolError("from_id and from_time_ns exclude each other", hint="give one of them")
        self.ask(CreateEndpoint(0, endpoint, from_id, from_time_ns))

    def alter_endpoint(self, endpoint: EndpointConfig) -> None:
        self.ask(AlterEndpoint(0, endpoint))

    def delete_endpoint(self, name: str, *, force: bool = False) -> None:
        """Delete an endpoint and its messages; `force`: also while it has consumers."""
        self.ask(DeleteEndpoint(0, name, force))

    def empty_endpoint(self, name: str) -> None:
        """Delete the queued messages that are not being delivered."""
        self.ask(EmptyEndpoint(0, name))

    def endpoints(self, name: str = "") -> tuple[EndpointInfo, ...]:
        """The state of all endpoints of the router, or of the endpoint with this name."""
        answer = self.ask(ListEndpoints(0, name))
        if not isinstance(answer, Endpoints):
            raise RemoteProtocolError(f"the router answers with {type(answer).__name__}")
        return answer.endpoints

    def switch(self, *, force: bool = False, lose: bool = False) -> dict[str, int]:
        """Order the standby to become active; for operators. `force` does not ask the other router; `lose` also forces
        a standby that has no messages while the other router does not answer. Return the messages that stay behind at
        the other router, by endpoint."""
        answer = self.ask(Switch(0, force, lose))
        return answer.left if isinstance(answer, Done) else {}

    def degrade(self, *, end: bool = False) -> None:
        """Order the active router to stop waiting for the standby; `end`: to wait again. For operators."""
        self.ask(Degrade(0, not end))

    @property
    def router(self) -> str:
        """The name of the router that serves this session; empty while no router serves the session."""
        welcome = self._core.welcome
        return "" if welcome is None else welcome.router

    @property
    def is_standing_by(self) -> bool:
        """True if that router is the standby of its pair, to which an operator may connect."""
        welcome = self._core.welcome
        return welcome is not None and welcome.role != "active"

    @property
    def epoch(self) -> int:
        return self._core.epoch

    @property
    def is_over(self) -> bool:
        return self._is_closed or self._error is not None

    def renew(self, token: str) -> None:
        """Use a newer token of the administration server."""
        self.tell(Renew(token))

    def fail(self, error: PenstockError) -> None:
        with self.lock:
            if self._error is None:
                self._error = error
            self.changed.notify_all()
        self._tell_listeners(Changed())

    def disown(self) -> None:
        """In a forked child process: the session belongs to the parent."""
        self.lock = threading.RLock()  # another thread may have held it
        self.changed = LoopCondition(self.lock)
        self._error = LocalProtocolError("the session is another process's", hint="open one after the fork")
        self._is_closed = True

    @property
    def unacknowledged(self) -> int:
        """Number of published messages that are not acknowledged."""
        return sum(part.unacknowledged for part in list(self._parts))

    def close(self) -> None:
        """End the session; unacknowledged messages may or may not be stored."""
        with self.lock:
            if self._is_closed:
                return
            self._is_closed = True
            self.changed.notify_all()
        self._tell_listeners(Changed())
        leftover.closed(self)
        assert self._thread is not None
        self._thread.start(self._running.close()).result()
        if self._own_thread is not None:
            self._own_thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # For publishers, endpoints and transactions

    def tell(self, event: Event) -> None:
        """Hand an event to the loop's thread; any thread may call this."""
        if not self._is_closed:
            self._loop.call_soon_threadsafe(self._running.handle, event)

    def flush_soon(self) -> None:
        """Something was published or settled: it goes out with what else there is by then."""
        if not self._running.is_flush_due:
            self._running.is_flush_due = True
            self.tell(Flush())

    def send_inline(self, publishing: AsyncPublishing) -> bool:
        """Send a publisher's messages in the thread of the loop that publishes, if that is possible: whether it is."""
        return not self.is_over and self._running.inline_commit.send(publishing)

    def receive_inline(self, publishing: AsyncPublishing) -> bool:
        """Take acknowledgements in the thread of the loop that publishes: whether any came."""
        return not self.is_over and self._running.inline_commit.receive(publishing)

    def exchange(self, part: PublisherPart, number: int, until: float | None) -> bool:
        """Publish by inline commit in this thread. False if that is not possible."""
        return not self.is_over and self._running.inline_commit.exchange(part, number, until)

    def open_part(self, part: PublisherPart | FlowPart) -> None:
        """Return when the part is open; raise an error if it cannot be opened."""
        self._parts.add(part)
        self.tell(OpenPart(part))
        try:
            with self.lock:
                self.changed.wait_for(
                    lambda: part.handle or part in self._failed or self.is_over or self._core.places.is_hopeless,
                    self._answer_seconds,
                )
                self.check(part)
                if not part.handle:
                    raise self._no_answer()
        except BaseException:
            self.close_part(part)
            raise

    def close_part(self, part: PublisherPart | FlowPart, *, is_unread: bool = False) -> None:
        self._parts.discard(part)
        self.tell(ClosePart(part, is_unread))
        self._failed.pop(part, None)

    def check(self, part: PublisherPart | FlowPart) -> None:
        """Raises why the part, or all of it, is over. With the lock."""
        if (error := self.failure_of(part)) is not None:
            raise error

    def failure_of(self, part: PublisherPart | FlowPart) -> PenstockError | None:
        """Why the part, or all of it, is over; None: it is not."""
        if part in self._failed and self._error is None:
            return self._failed[part]
        if self._error is not None:
            return self._error
        return LocalProtocolError("it is closed") if self._is_closed or part.is_closed else None

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error
        if self._is_closed:
            raise LocalProtocolError("it is closed")

    def listen(self, listener: Callable[[Changed], None]) -> None:
        """Called, mostly in the loop's thread, when something was acknowledged, came, or is over."""
        self._listeners.append(listener)

    def unlisten(self, listener: Callable[[Changed], None]) -> None:
        self._listeners.remove(listener)

    def next_token(self) -> int:
        with self.lock:
            self._last_token += 1
            self._answers[self._last_token] = None
            return self._last_token

    def ask(self, request: Request) -> Answer:
        _check(request)
        token = self.next_token()
        self.tell(Ask(token, request))
        answer = self.await_answer(token)
        if isinstance(answer, Refused):
            raise error_of(answer)
        return answer

    def await_answer(self, token: int, seconds: float | None = None) -> Answer:
        with self.lock:
            self.changed.wait_for(
                lambda: self._answers[token] is not None or self.is_over or self._core.places.is_hopeless,
                seconds or self._answer_seconds,
            )
            answer = self._answers.pop(token)
            if answer is not None:
                return answer
            self._check_open()
            raise self._no_answer()

    def _no_answer(self) -> UnreachableError:
        return UnreachableError(
            "no active router answers",
            where=", ".join(self._config.routers),
            hint=self._core.places.why_not or "is one running there?",
        )

    def _exchanged(self, part: PublisherPart, refused: list[tuple[int, int, int]]) -> None:
        if refused:
            self._carry_out(Changed(tuple((part, *run) for run in refused)))
        else:
            with self.lock:
                self.changed.notify_all()

    # The loop's thread

    def _carry_out(self, instruction: Any) -> None:
        with self.lock:
            match instruction:
                case Answered(token, answer) if token in self._answers:
                    self._answers[token] = answer
                case PartFailed(part, error):
                    self._failed[part] = error
                case Over(error):
                    self._error = self._error or error
                case Changed() | Opened():
                    pass
            self.changed.notify_all()
        if isinstance(instruction, Changed | PartFailed | Over):
            self._tell_listeners(instruction if isinstance(instruction, Changed) else Changed())

    def _tell_listeners(self, changed: Changed) -> None:
        for listener in list(self._listeners):
            listener(changed)

    def _core_failed(self, failed: "asyncio.Future[Exception]") -> None:
        self.fail(LocalProtocolError(f"the session failed: {failed.result()!r}"))


def _check(request: Request) -> None:
    """Refuse invalid arguments in the call itself, because a router would end the link."""
    try:
        msgpack_decoder(type(request)).decode(ASSURED.encode(request, MESSAGE_SIZE_MAX))
    except (msgspec.MsgspecError, OverflowError, TypeError, UnicodeError) as error:
        what, where = explained(str(error))
        raise LocalProtocolError(f"invalid argument: {what}", where=where) from None


def open_assured(*routers: str, name: str = "", **options: Any) -> Assured:
    """Open a session with the message routers at these addresses (host:port), one of which is active.

    `options` are further fields of SessionConfig and arguments of Assured: role, token, guard, thread.
    """
    of_config = {key: options.pop(key) for key in list(options) if key in SessionConfig.__struct_fields__}
    own = name or f"client-{random_bytes(6).hex()}"
    return Assured(SessionConfig(name=own, routers=routers, **of_config), **options)
