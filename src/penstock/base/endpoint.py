"""The page every node shows to its operator: /metrics for Prometheus, /health for whoever must know if it lives, and
/status, in the node's own words, where it has them.

It runs in a thread of its own, on a loopback address only, because it has neither TLS nor a token. It reads nothing but
the request line and headers (which the standard library bounds), and answers GET only.
"""

import ipaddress
import sys
import threading
import traceback
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from penstock.base.errors import ConfigurationError
from penstock.base.log import logger
from penstock.base.metrics import EXPOSITION, Metrics

REQUEST_TIMEOUT_SECONDS = 5.0

log = logger("endpoint")


class Health(msgspec.Struct, frozen=True):
    """Whether the node does its work, and if not, why."""

    is_healthy: bool
    detail: str = ""


class Endpoint:
    """Serves from `start()` to `stop()`; `port` 0 takes a free one. `health` and `status` are called in the server's
    thread; what `status` returns is shown as JSON."""

    def __init__(
        self,
        metrics: Metrics,
        health: Callable[[], Health],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        status: Callable[[], object] | None = None,
    ) -> None:
        class Handler(_Handler):
            endpoint = self

        if not _is_loopback(host):
            raise ConfigurationError(
                f"a page at {host} could be read by everybody who reaches it: it has neither TLS nor a token",
                where="metrics_host",
                hint="serve it at 127.0.0.1, behind a proxy that has both",
            )
        try:
            self._server = _Server((host, port), Handler)
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
        return f"http://{host!s}:{port}"

    def start(self) -> None:
        self._thread.start()
        log.info("endpoint_started", url=self.url)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> "Endpoint":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Status, content type and body for a path."""
        if path == "/metrics":
            return 200, EXPOSITION, self._metrics.render()
        if path == "/health":
            health = self._health()
            return 200 if health.is_healthy else 503, "application/json", msgspec.json.encode(health)
        if path == "/status" and self._status is not None:
            return 200, "application/json", msgspec.json.encode(self._status())
        pages = "/metrics and /health" if self._status is None else "/metrics, /health and /status"
        return 404, "text/plain; charset=utf-8", f"there are {pages}\n".encode()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client may disconnect at any moment; any other error is the node's own and is logged with its place."""
        error = sys.exception()
        client = "{}:{}".format(*client_address[:2])
        if isinstance(error, ConnectionError | TimeoutError):
            log.debug("client_disconnected", client=client, error=repr(error))
        else:
            log.error("request_failed", client=client, error=repr(error), traceback=traceback.format_exc())


class _Handler(BaseHTTPRequestHandler):
    endpoint: Endpoint
    timeout = REQUEST_TIMEOUT_SECONDS

    def do_GET(self) -> None:  # the standard library chose the name
        status, content_type, body = self.endpoint.answer(self.path)
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Scrapes are not worth a log line each."""
