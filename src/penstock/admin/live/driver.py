"""The administration server: a driver in the loop of its process, or a thread of this one from start() to stop().

server = LiveAdministration(config)
await server.node.start()
await server.node.run(stop)

with AdminServer(AdminConfig.load(Path("admin.toml"))) as server:
    server.url                     # "penstock://127.0.0.1:7400"
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TypeVar

from penstock.admin.config import AdminConfig
from penstock.admin.core.administration import ITSELF
from penstock.admin.live.app import AdminApp
from penstock.admin.live.server import AdminService
from penstock.admin.live.standby import PeerWatcher
from penstock.base.clock import Clock, SystemClock
from penstock.base.counters import Cause
from penstock.base.errors import ConnectionLostError, LocalProtocolError, PenstockError, ProcessError
from penstock.base.log import logger
from penstock.net.live.loop_thread import LoopThread
from penstock.net.page_access import page_token
from penstock.runtime.node import Node, in_thread
from penstock.runtime.web_server import WebServer, check_tls
from penstock.security.live.http import PLAIN, TLS

TICK_S = 0.2
CALL_S = 30.0
"""Maximal time that another thread waits for a decision."""

A = TypeVar("A")
log = logger("admin")


class LiveAdministration:
    """Create this in the thread of the running loop, which runs the service. `port` is the bound port, also if the
    configured port is 0.
    """

    def __init__(self, config: AdminConfig, clock: Clock | None = None) -> None:
        self.config = config
        check_tls(config.certificate, config.private_key)
        token = page_token(config.metrics_access)
        self.node = Node(config.node)
        self._loop = asyncio.get_running_loop()
        self._is_over = False
        self.service = AdminService(config, clock or SystemClock())
        try:
            watcher = None if config.peer is None else PeerWatcher(config.peer, self.service, self.call)
            self._app = AdminApp(self.service, token)
            self._web = WebServer(
                self.node,
                self._app.app,
                host=config.host,
                port=config.port,
                certificate=config.certificate,
                private_key=config.private_key,
                head_s=config.limits.body_s,
                connections_max=config.limits.connections_max,
                refused=_log_refused,
            )
        except BaseException:
            self.service.close()
            raise
        self.port = self._web.port
        self.node.add("service", close=self._close_service)
        if watcher is not None:
            self.node.add("peer", start=in_thread(watcher.look_first))
        self.node.add("web", start=self._web.start, close=self._close_web)
        if watcher is not None:
            self.node.add("pair", start=watcher.start, close=in_thread(watcher.stop))
        self.node.add_task(self._tick)

    @property
    def url(self) -> str:
        return f"{TLS if self.config.certificate else PLAIN}://{self._web.place}"

    def reload_policy(self) -> None:
        """Read the policy file again. A policy with errors changes nothing and is raised."""
        self.service.set_policy(ITSELF, None)

    def try_reload_policy(self) -> None:
        """Read the policy file again. A policy with errors is logged, and the current one stays."""
        try:
            self.reload_policy()
        except PenstockError as error:
            log.error("policy_refused", code=error.code, what=str(error))

    def call(self, decision: Callable[[], A]) -> A:
        """Make a decision in the loop's thread, for a caller in another thread."""
        outcome: Future[A] = Future()
        ended = ConnectionLostError("the administration server has ended")

        def run() -> None:
            try:
                if self._is_over:
                    raise ended
                outcome.set_result(decision())
            except Exception as error:
                outcome.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(run)
        except RuntimeError:  # the loop is closed
            raise ended from None
        try:
            return outcome.result(CALL_S)
        except FutureTimeoutError:
            raise ended from None

    async def _tick(self) -> None:
        """Call tick() periodically until the server's disk fails; that error ends the node."""
        while self.service.failed is None:
            await asyncio.sleep(TICK_S)
            try:
                self.service.tick()
            except LocalProtocolError as error:
                log.error("tick_failed", reason=str(error))
        raise ProcessError(f"the server's disk has failed: {self.service.failed}")

    async def _close_web(self) -> None:
        self._app.stop()
        await self._web.stop()

    def _close_service(self) -> None:
        self._is_over = True
        self.service.close()


class AdminServer:
    """Runs an administration server in a thread of this process; it can be started once."""

    def __init__(self, config: AdminConfig, *, clock: Clock | None = None) -> None:
        self.config = config
        self._clock = clock
        self._thread: LoopThread | None = None
        self._live: LiveAdministration | None = None
        self._stop: asyncio.Event | None = None
        self._running: Future[None] | None = None

    @property
    def live(self) -> LiveAdministration:
        assert self._live is not None, "start() makes it"
        return self._live

    @property
    def port(self) -> int:
        return self.live.port

    @property
    def url(self) -> str:
        return self.live.url

    @property
    def role(self) -> str:
        return self.live.service.role

    @property
    def is_running(self) -> bool:
        return self._running is not None and not self._running.done()

    def start(self) -> None:
        """Start the server. Returns when requests are answered, or raises the error of the start."""
        self._thread = LoopThread("penstock-admin")
        try:
            self._live = self._thread.start(self._begin()).result()
        except BaseException:
            self.stop()
            raise
        self._running = self._thread.start(self._run())

    def stop(self) -> None:
        """Answer the requests in progress, then end."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._running is not None:
            thread.start(self._end())
            if isinstance(error := self._running.exception(), Exception):
                log.error("server_failed", error=repr(error))
        thread.close()

    def reload_policy(self) -> None:
        """Read the policy file again; a policy with errors changes nothing and is raised."""
        self.live.call(self.live.reload_policy)

    def __enter__(self) -> "AdminServer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def _begin(self) -> LiveAdministration:
        live = LiveAdministration(self.config, self._clock)
        await live.node.start()
        return live

    async def _run(self) -> None:
        self._stop = asyncio.Event()
        await self.live.node.run(self._stop)

    async def _end(self) -> None:
        if self._stop is not None:
            self._stop.set()


def _log_refused(cause: Cause) -> None:
    log.info("connection_refused", cause=cause)
