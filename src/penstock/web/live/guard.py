"""The first check of every request: requests for other hosts and from pages of other sites are refused, and every
answer carries headers that restrict the page."""

from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.base.counters import Cause, Counters
from penstock.base.errors import ForbiddenError
from penstock.base.log import logger
from penstock.net.place import is_loopback
from penstock.node.console_config import ConsoleConfig
from penstock.web.live.answers import refusal

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), usb=()",
}
STRICT_TRANSPORT = "max-age=31536000"
OWN_SITES = ("same-origin", "none")
"""Values of Sec-Fetch-Site for requests without another site's involvement."""

TEXT_SHOWN = 80
PORTS = {"http": "80", "https": "443"}

log = logger("console.guard")


class Guard:
    """Wraps the application; call listen_at() when the port is known."""

    def __init__(self, app: ASGIApp, config: ConsoleConfig, counters: Counters) -> None:
        self._app = app
        self._config = config
        self._counters = counters
        self._scheme = "https" if config.certificate else "http"
        self._hosts: frozenset[str] = frozenset()

    def listen_at(self, port: int) -> None:
        """Set the console's port. Only requests for its own host names are accepted, so that a foreign DNS name that
        resolves to this address cannot be used to reach it."""
        names = [self._config.host, *(("localhost", "127.0.0.1", "::1") if is_loopback(self._config.host) else ())]
        own = [f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name in names]
        self._hosts = frozenset(_spellings((*own, *self._config.hosts), PORTS[self._scheme]))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        is_secure = self._scheme == "https"

        async def send_guarded(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
                if is_secure:
                    headers["strict-transport-security"] = STRICT_TRANSPORT
            await send(message)

        try:
            self._check(Headers(scope=scope))
        except ForbiddenError as error:
            self._counters.add("connections_refused", cause=Cause.REFUSED)
            log.warning("refused", address=(scope.get("client") or ("",))[0], what=str(error))
            if scope["type"] == "websocket":
                await receive()  # websocket.connect
                await refusal(error).denial(send_guarded)
            else:
                await refusal(error)(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)

    def _check(self, headers: Headers) -> None:
        host = headers.get("host", "")
        if host.lower() not in self._hosts:
            raise ForbiddenError(
                f"the request is for host {host[:TEXT_SHOWN]!r}, not for this console",
                hint="add further names to `hosts` in its configuration",
            )
        origin = headers.get("origin")
        if origin is not None:
            scheme, _, place = origin.partition("://")
            if place.lower() not in self._hosts or scheme not in self._schemes:
                raise ForbiddenError(f"a page of {origin[:TEXT_SHOWN]!r} may not use this console")
        if headers.get("sec-fetch-site", "none") not in OWN_SITES and headers.get("sec-fetch-mode") != "navigate":
            raise ForbiddenError("a page of another site may not use this console")

    @property
    def _schemes(self) -> tuple[str, ...]:
        """Behind a TLS proxy on this machine, pages are https although the console is not."""
        return ("https",) if self._scheme == "https" else ("http", "https")


def _spellings(hosts: Iterable[str], default_port: str) -> Iterable[str]:
    """Return host names as browsers write them: without a default port."""
    for host in hosts:
        yield host.lower()
        if host.endswith(f":{default_port}"):
            yield host.lower().removesuffix(f":{default_port}")
