"""AdminServer: the administration server as a thread of this process, from start() to stop().

with AdminServer(AdminConfig.load(Path("admin.toml"))) as server:
    server.url                     # "penstock://127.0.0.1:7400"
"""

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Any, TypeVar

import uvicorn

from penstock.admin.config import AdminConfig
from penstock.admin.core.administration import ITSELF
from penstock.admin.live.app import AdminApp
from penstock.admin.live.http import prompt_http
from penstock.admin.live.server import AdminService
from penstock.admin.live.standby import PeerWatcher
from penstock.base.clock import Clock, SystemClock
from penstock.base.counters import Cause
from penstock.base.errors import ConfigurationError, ConnectionLostError, LocalProtocolError
from penstock.base.log import logger
from penstock.net.page_access import page_token
from penstock.net.secret import read_private
from penstock.security.live.http import PLAIN, TLS

TICK_S = 0.2
STOP_S = 3
START_S = 30.0
BACKLOG = 256
KEY_SIZE_MAX = 65_536

A = TypeVar("A")
log = logger("admin")


class AdminServer:
    """`port` is known after start(), also when the configuration said 0."""

    def __init__(self, config: AdminConfig, *, clock: Clock | None = None) -> None:
        self.config = config
        self._clock = clock or SystemClock()
        self._service: AdminService | None = None
        self._app: AdminApp | None = None
        self._server: uvicorn.Server | None = None
        self._socket: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-admin", daemon=True)
        self._watcher: PeerWatcher | None = None
        self._failure: BaseException | None = None
        self.port = 0

    @property
    def url(self) -> str:
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"{TLS if self.config.certificate else PLAIN}://{host}:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def role(self) -> str:
        assert self._service is not None
        return self._service.role

    def start(self) -> None:
        """Returns when requests are answered, or raises what is wrong."""
        config = self.config
        check_tls(config.certificate, config.private_key)
        token = page_token(config.metrics_access)
        self._service = AdminService(config, self._clock)
        try:
            if config.peer is not None:
                self._watcher = PeerWatcher(config.peer, self._service, self.call)
                self._watcher.look_first()
            self._socket = listening(config.host, config.port)
            self.port = self._socket.getsockname()[1]
            self._app = AdminApp(self._service, token)
            self._server = self._web_server(self._app)
        except BaseException:
            self._close()
            raise
        self._thread.start()
        self._started.wait(START_S)
        if self._failure is not None or not self._started.is_set():
            self.stop()
            raise ConfigurationError(f"did not start: {self._failure}", where=self.url)
        if self._watcher is not None:
            self._watcher.start()

    def stop(self) -> None:
        """Answers what is being asked, then ends."""
        if self._watcher is not None:
            self._watcher.stop()
        if self._thread.is_alive() and self._server is not None:
            self._server.should_exit = True
            self._thread.join()
        self._close()

    def reload_policy(self) -> None:
        """Read the policy file again; one with mistakes changes nothing and is raised."""
        service = self._service
        assert service is not None
        self.call(lambda: service.set_policy(ITSELF, None))

    def call(self, decision: Callable[[], A]) -> A:
        """Run something in the server's thread, where the service lives."""
        loop = self._loop
        if loop is None and not self._started.is_set():
            return decision()  # it has not yet begun
        outcome: Future[A] = Future()

        def run() -> None:
            try:
                outcome.set_result(decision())
            except Exception as error:
                outcome.set_exception(error)

        ended = ConnectionLostError("the administration server has ended")
        if loop is None:
            raise ended
        try:
            loop.call_soon_threadsafe(run)
        except RuntimeError:  # it was closed meanwhile
            raise ended from None
        try:
            return outcome.result(START_S)
        except FutureTimeoutError:
            raise ended from None

    def __enter__(self) -> "AdminServer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        assert self._server is not None
        assert self._socket is not None
        try:
            self._server.run(sockets=[self._socket])
        except BaseException as error:
            self._failure = error
            log.error("server_failed", error=repr(error))
        finally:
            self._loop = None
            self._started.set()

    def _web_server(self, app: AdminApp) -> uvicorn.Server:
        config = self.config
        app.app.router.lifespan_context = self._lifespan
        options: dict[str, Any] = {}
        if config.certificate:
            options = {"ssl_certfile": config.certificate, "ssl_keyfile": config.private_key}
        settings = uvicorn.Config(
            app.app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            loop="asyncio",
            http=prompt_http(config.limits.body_s, _log_refused),  # type: ignore[arg-type]
            ws="none",
            lifespan="on",
            limit_concurrency=config.limits.connections_max,
            timeout_graceful_shutdown=STOP_S,
            **options,
        )
        try:
            settings.load()
        except OSError as error:
            raise ConfigurationError(f"TLS cannot be used: {error}", where=config.certificate) from None
        return uvicorn.Server(settings)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: object) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        ticking = asyncio.ensure_future(self._tick())
        self._started.set()
        yield
        ticking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticking

    async def _tick(self) -> None:
        """Also sees that the server ends when it is told to, or when its disk has failed."""
        assert self._service is not None
        assert self._app is not None
        assert self._server is not None
        while True:
            await asyncio.sleep(TICK_S)
            if self._server.should_exit:
                self._app.stop()
            elif self._service.failed is not None:
                self._server.should_exit = True
            else:
                try:
                    self._service.tick()
                except LocalProtocolError as error:
                    log.error("tick_failed", reason=str(error))

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._service is not None:
            self._service.close()


def _log_refused(cause: Cause) -> None:
    log.info("connection_refused", cause=cause)


def check_tls(certificate: str, private_key: str) -> None:
    """Say now what is wrong with the files of a web server, if it has some."""
    if certificate:
        read_private(Path(private_key), KEY_SIZE_MAX)
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, private_key)
        except OSError as error:
            raise ConfigurationError(f"TLS cannot be used: {error}", where=certificate) from None


def listening(host: str, port: int) -> socket.socket:
    """A socket for a web server."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {host}:{port}: {error.strerror}", hint="choose another port, or 0 for any free one"
        ) from None
    return listening
