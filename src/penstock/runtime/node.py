"""One running node: its page, its tokens, its tasks, and its parts from start to shutdown.

node = Node(config)
server = Server(counters=node.counters("filter.control"))
node.add("data path", start=data.start, close=in_thread(data.stop))
node.add("server", start=server.start, close=server.close)
node.add_task(watch_map)
node.show(status, health)
await node.start()
await node.run(stop)
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeAlias

from penstock.base.counters import Counters
from penstock.base.errors import ProcessError
from penstock.base.log import logger
from penstock.base.metrics import Metrics, Row
from penstock.base.status_page import Health, StatusPage
from penstock.net.live.event_loop import stopped_or_failed
from penstock.net.page_access import PageConfig, page_of
from penstock.security.core.access import AdminAccess
from penstock.security.core.brokering import Revoked
from penstock.security.live.authentication_state import AuthenticationState
from penstock.security.live.client import AdminClient
from penstock.security.live.gate import TokenState
from penstock.security.live.key_lease import ReceivingLease
from penstock.security.live.token_watch import UNREACHABLE, TokenWatch
from penstock.wire import Authenticator

CLOSE_SECONDS = 5.0
"""Time limit of one shutdown step. A process has net.live.event_loop.STOP_SECONDS for all of them."""

Step: TypeAlias = Callable[[], Awaitable[None] | None]
"""Starts or closes a part, in the thread of the loop. A step that blocks is wrapped with in_thread()."""

Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]

P = ParamSpec("P")

log = logger("runtime.node")


class NodeConfig(PageConfig, Protocol):
    """The part of a configuration that a Node reads."""

    @property
    def name(self) -> str: ...


class _Part(NamedTuple):
    name: str
    start: Step | None
    close: Step | None


def in_thread(function: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    """A step that runs a blocking function in a daemon thread: a function that hangs does not stop the process from
    exiting, as a thread of the loop's executor would."""

    def step() -> Awaitable[None]:
        outcome: Future[None] = Future()

        def work() -> None:
            try:
                function()
            except BaseException as error:
                outcome.set_exception(error)
            else:
                outcome.set_result(None)

        outcome.set_running_or_notify_cancel()
        threading.Thread(target=work, name="penstock-step", daemon=True).start()
        return asyncio.wrap_future(outcome)

    return step


class Node:
    """Create a Node in the thread of the running loop. `label` is the metric label that carries the node's name.

    Parts start in the order in which they were added and close in reverse order. Each close() runs once, also after
    a failed start and for parts that the start did not reach, because a part may hold sockets since its
    construction.
    """

    def __init__(self, config: NodeConfig | str, *, label: str = "node") -> None:
        """A node made from a name instead of a configuration has no page."""
        self.name = config if isinstance(config, str) else config.name
        self.metrics = Metrics()
        self.tokens: TokenWatch | None = None
        """Set by watch_tokens() if there is an administration server."""

        self._page_config = None if isinstance(config, str) else config
        self._label = label
        self._loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self._counters: list[Counters] = []
        self._parts: list[_Part] = []
        self._work: list[Work] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._changing = asyncio.Lock()  # held by start() and by close()
        self._starting: asyncio.Task[Any] | None = None
        self._is_closing = False
        self._status: Callable[[], object] = dict
        self._health: Callable[[], Health] = lambda: Health(is_healthy=True)
        self._page: StatusPage | None = None

    # Counters and the page

    def counters(self, component: str) -> Counters:
        """Return new counters, which appear on the page."""
        counters = Counters(component, **{self._label: self.name})
        self.metrics.register(counters)
        self._counters.append(counters)
        return counters

    def total(self, name: str) -> int:
        """Return the sum of this counter over all components of the node."""
        return sum(each[name] for each in self._counters)

    def show(
        self,
        status: Callable[[], object],
        health: Callable[[], Health],
        *,
        gauges: Callable[[], Mapping[str, float]] | None = None,
        rows: Callable[[], Iterable[Row]] | None = None,
    ) -> None:
        """Set the content of the page. All four functions are called in any thread. A failed node is always
        unhealthy."""
        self._status, self._health = status, health
        if gauges is not None:
            self.metrics.show_gauges(gauges)
        if rows is not None:
            self.metrics.show_rows(rows)

    @property
    def page(self) -> StatusPage:
        assert self._page is not None, "start() opens the page of a node that has one"
        return self._page

    @property
    def url(self) -> str:
        """The address of the page, after start()."""
        return self.page.url

    def _checked_health(self) -> Health:
        health = self._health()
        return Health(health.is_healthy and not self.has_failed, health.detail)

    # The administration server

    def watch_tokens(
        self,
        admin: AdminAccess,
        state_directory: str,
        on_revoked: Callable[[Revoked], None],
        *,
        on_told: Callable[[TokenState], None] | None = None,
        authenticator: Authenticator | None = None,
        lease: ReceivingLease | None = None,
    ) -> TokenWatch | None:
        """Check tokens with the keys of the administration server; return None if there is no server. `on_revoked`
        and `on_told` are called in the thread of the loop. The token state is kept in `state_directory` across
        restarts, or nowhere if it is empty. `lease` is the lease of the authenticator's keys."""
        if not admin.url:
            return None
        directory = Path(state_directory) if state_directory else None
        authentication = None
        if authenticator is not None:
            path = None if directory is None else directory / "authentication.json"
            authentication = AuthenticationState(path, authenticator.use, lease)
        self.tokens = TokenWatch(
            AdminClient.connect(admin.url, admin.credentials),
            None if directory is None else directory / "tokens.json",
            lambda event: self.call(on_revoked, event),
            None if on_told is None else lambda state: self.call(on_told, state),
            authentication=authentication,
        )
        return self.tokens

    def add_tokens(self) -> None:
        """Add the token watch, if any, as the next part."""
        if self.tokens is not None:
            self.add("tokens", start=self.tokens.start, close=in_thread(self.tokens.stop))

    @property
    def is_in_touch(self) -> bool:
        """True if the administration server answers, or if there is none."""
        return self.tokens is None or self.tokens.is_in_touch

    @property
    def token_trouble(self) -> str:
        """The reason why token state is not up to date; empty if it is."""
        return "" if self.tokens is None or self.tokens.is_in_touch else self.tokens.trouble or UNREACHABLE

    # Failures, and calls from other threads

    @property
    def has_failed(self) -> bool:
        return self._failed.done()

    def call(self, function: Callable[P, None], *arguments: P.args, **_: P.kwargs) -> None:
        """Call the function soon in the thread of the loop. May be called in any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def fail(self, error: Exception) -> None:
        """End the node with this error. Only the first error counts. May be called in any thread."""
        self.call(self._fail, error)

    def _fail(self, error: Exception) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    # Tasks

    def add_task(self, work: Work) -> None:
        """Run this work when all parts have started, until the node ends."""
        self._work.append(work)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this coroutine now, until the node ends. A task that fails ends the node."""
        if self._is_closing:
            work.close()
            return
        task = self._loop.create_task(work, name=getattr(work, "__qualname__", ""))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.watch(task)

    def watch(self, task: "asyncio.Task[None]") -> None:
        """End the node if this task of a part fails; the part cancels it."""
        task.add_done_callback(self._note_done)

    def _note_done(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self.fail(error)

    # From start to shutdown

    def add(self, name: str, *, start: Step | None = None, close: Step | None = None) -> None:
        """Add the next part. `close` must work even if `start` was not called or failed."""
        self._parts.append(_Part(name, start, close))

    async def start(self) -> None:
        """Bind the page, start the parts in order, then serve the page and run the tasks. After an error, and if the
        caller is cancelled or close() is called meanwhile, everything is closed before the error is raised."""
        async with self._changing:
            self._starting = asyncio.current_task()
            try:
                if self._page_config is not None:
                    self._page = page_of(self._page_config, self.metrics, self._checked_health, lambda: self._status())
                for part in self._parts:
                    began = time.monotonic()
                    await _carried_out(part.start)
                    log.debug("part_started", node=self.name, part=part.name, ms=_ms_since(began))
                if self._page is not None:
                    self._page.start()
            except BaseException:
                await self._close_parts()
                raise
            finally:
                self._starting = None
            for work in self._work:
                self.spawn(work())

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set or a task fails; then close the node, and raise the failure."""
        try:
            await stopped_or_failed(stop, self._failed)
        finally:
            error = await self._close()
        if self._failed.done():
            self._failed.result()
        if error is not None:
            raise error

    async def close(self) -> None:
        """Cancel the tasks, then close the parts in reverse order and the page. A step that fails or takes longer than
        CLOSE_SECONDS is logged, the others are carried out nevertheless, and the first error is raised at the end."""
        if (error := await self._close()) is not None:
            raise error

    async def _close(self) -> Exception | None:
        if self._starting is not None:
            self._starting.cancel()
        async with self._changing:
            return await self._close_parts()

    async def _close_parts(self) -> Exception | None:
        """Close all parts and return the first error."""
        self._is_closing = True
        errors: list[Exception] = []
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            _, hanging = await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
            errors += [self._not_closed(f"task {task.get_name()}") for task in hanging]
        while self._parts:
            errors += await self._close_part(self._parts.pop())
        if self._page is not None:
            errors += await self._close_part(_Part("page", None, in_thread(self._page.stop)))
        return errors[0] if errors else None

    async def _close_part(self, part: _Part) -> list[Exception]:
        """Close one part and return its error, if any."""
        began = time.monotonic()
        closing = self._loop.create_task(_carried_out(part.close))
        try:
            await asyncio.wait([closing], timeout=CLOSE_SECONDS)
        finally:
            closing.cancel()
        if not closing.done() or closing.cancelled():
            return [self._not_closed(part.name)]
        if isinstance(error := closing.exception(), Exception):
            log.error("part_not_closed", node=self.name, part=part.name, error=repr(error))
            return [error]
        log.debug("part_closed", node=self.name, part=part.name, ms=_ms_since(began))
        return []

    def _not_closed(self, part: str) -> ProcessError:
        log.error("part_not_closed", node=self.name, part=part, limit_s=CLOSE_SECONDS)
        return ProcessError(f"{self.name}: {part} did not close within {CLOSE_SECONDS:g} s")


async def _carried_out(step: Step | None) -> None:
    waiting = None if step is None else step()
    if waiting is not None:
        await waiting


def _ms_since(began: float) -> int:
    return round(1_000 * (time.monotonic() - began))
