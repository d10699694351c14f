"""The HTTP page of a node for its operator: /metrics for Prometheus, /health for monitors, and /status as JSON, if the
node has a status.

The page runs in a thread of its own, on a loopback address unless it has TLS and a token (PageAccess). It reads only
the request line and headers (bounded by the standard library), answers GET only, and serves a bounded number of
connections at a time.
"""

import contextlib
import hmac
import ipaddress
import socket
import ssl
import sys
import threading
import traceback
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import msgspec

from penstock.base.counters import Cause, Counters
from penstock.base.errors import ConfigurationError
from penstock.base.log import logger
from penstock.base.metrics import EXPOSITION, Metrics

REQUEST_TIMEOUT_SECONDS = 5.0
CONNECTIONS_MAX = 64
"""Connections served at a time; further ones are closed without an answer, and counted."""

TOKEN_NEEDED = "this page needs its bearer token"

log = logger("endpoint")


class Health(msgspec.Struct, frozen=True):
    """Whether the node is healthy, and if not, the reason."""

    is_healthy: bool
    detail: str = ""


class BearerToken(NamedTuple):
    """The bearer token that every request must have in `Authorization: Bearer TOKEN`."""

    value: bytes

    def __repr__(self) -> str:
        return "BearerToken(hidden)"

    def allows(self, authorization: str) -> bool:
        """True if the header has the token. The comparison takes constant time."""
        scheme, _, token = authorization.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), self.value)


class PageAccess(NamedTuple):
    """Protection of a page that other machines may read."""

    tls: ssl.SSLContext
    token: BearerToken


class StatusPage:
    """Serves from `start()` to `stop()`; `port` 0 chooses a free port. `health` and `status` are called in the server's
    thread; the result of `status` is shown as JSON.
    """

    def __init__(
        self,
        metrics: Metrics,
        health: Callable[[], Health],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        status: Callable[[], object] | None = None,
        access: PageAccess | None = None,
    ) -> None:
        class Handler(_Handler):
            page = self

        if access is None and not _is_loopback(host):
            raise ConfigurationError(
                f"a page at {host!r} has neither TLS nor a token",
                where="metrics_host",
                hint="configure metrics_access, or serve the page at 127.0.0.1",
            )
        self.access = access
        self._counters = Counters("endpoint")
        self._counting = threading.Lock()
        metrics.register(self._counters)
        try:
            self._server = _Server((host, port), Handler, self)
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {host}:{port}: {error.strerror}", hint="choose another port, or 0 for any free one"
            ) from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="penstock-endpoint", daemon=True)
        self._metrics = metrics
        self._health = health
        self._status = status

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        scheme = "http" if self.access is None else "https"
        return f"{scheme}://[{host!s}]:{port}" if ":" in str(host) else f"{scheme}://{host!s}:{port}"

    def start(self) -> None:
        self._thread.start()
        log.info("endpoint_started", url=self.url)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> "StatusPage":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def count(self, name: str, cause: Cause) -> None:
        """Count an event; called in any thread of the server."""
        with self._counting:
            self._counters.add(name, cause=cause)

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Return status code, content type and body for a path."""
        if path == "/metrics":
            return 200, EXPOSITION, self._metrics.render()
        if path == "/health":
            health = self._health()
            return 200 if health.is_healthy else 503, "application/json", msgspec.json.encode(health)
        if path == "/status" and self._status is not None:
            return 200, "application/json", msgspec.json.encode(self._status())
        pages = "/metrics and /health" if self._status is None else "/metrics, /health and /status"
        return 404, "text/plain; charset=utf-8", f"unknown path; the pages are {pages}\n".encode()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = CONNECTIONS_MAX

    def __init__(self, address: tuple[str, int], handler: type["_Handler"], page: StatusPage) -> None:
        self._page = page
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self._page.count("connections_refused", Cause.CONNECTION_LIMIT)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # the thread could not be started
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Runs in the connection's thread, so that a slow TLS handshake delays no other client."""
        access = self._page.access
        if access is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(REQUEST_TIMEOUT_SECONDS)
        with access.tls.wrap_socket(request, server_side=True) as protected:
            super().finish_request(protected, client_address)
            with contextlib.suppress(OSError):  # the client may have disconnected
                protected.unwrap()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log errors of the node with their location; a client may disconnect at any moment."""
        error = sys.exception()
        client = "{}:{}".format(*client_address[:2])
        if isinstance(error, ConnectionError | TimeoutError | ssl.SSLError):
            log.debug("client_disconnected", client=client, error=repr(error))
        else:
            log.error("request_failed", client=client, error=repr(error), traceback=traceback.format_exc())


class _Handler(BaseHTTPRequestHandler):
    page: StatusPage
    timeout = REQUEST_TIMEOUT_SECONDS

    def do_GET(self) -> None:  # the standard library defines the name
        access = self.page.access
        if access is not None and not access.token.allows(self.headers.get("Authorization", "")):
            self.page.count("requests_refused", Cause.AUTHENTICATION)
            status, content_type, body = 401, "text/plain; charset=utf-8", f"{TOKEN_NEEDED}\n".encode()
        else:
            status, content_type, body = self.page.answer(self.path)
        self.send_response(status)
        if status == 401:  # required by RFC 9110
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing for each scrape."""
