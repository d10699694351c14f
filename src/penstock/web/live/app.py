"""The HTTP routes of the console, with their access checks and answers."""

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import Scope
from starlette.websockets import WebSocket

from penstock import __version__
from penstock.admin.live.http import protected, read_document
from penstock.base.clock import SystemClock
from penstock.base.counters import Cause
from penstock.base.errors import (
    ForbiddenError,
    NotFoundError,
    PenstockError,
    RequestError,
    TokenError,
    UnreachableError,
)
from penstock.base.log import logger
from penstock.base.metrics import EXPOSITION
from penstock.base.status_page import BearerToken
from penstock.web.core.history import SECONDS_MAX
from penstock.web.gateway.live.session import BINARY, SUBPROTOCOLS, GatewaySession
from penstock.web.live.actions import AnyAction
from penstock.web.live.answers import answer, refusal
from penstock.web.live.connections import BrowserConnection, WebSocketListener
from penstock.web.live.service import ConsoleService
from penstock.web.live.sessions import Session, SessionDocument

ASSETS = Path(__file__).parents[1] / "assets"
HINT = "docs/reference/protocol/console.md describes the format"
JSON = "application/json"

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
log = logger("console.http")


class LoginRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    secret: Annotated[str, msgspec.Meta(min_length=1, max_length=4_096)]


class LinkRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    secret: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class Assets(StaticFiles):
    """Serves files that browsers revalidate on each use, so that a new version shows at once."""

    def file_response(self, *arguments: object, **options: object) -> Response:
        response: Response = super().file_response(*arguments, **options)  # type: ignore[arg-type]
        response.headers["cache-control"] = "no-cache"
        return response

    async def get_response(self, path: str, scope: Scope) -> Response:
        if any(part.startswith(".") for part in path.split("/") if part != "."):
            raise HTTPException(HTTPStatus.NOT_FOUND)
        return await super().get_response(path, scope)


class ConsoleApp:
    """The routes of one console; `app` is for a web server. `page_token` is the token of its pages, if any."""

    def __init__(self, service: ConsoleService, page_token: BearerToken | None) -> None:
        self._service = service
        self._listener = WebSocketListener(service)
        self._clock = SystemClock()
        routes: list[BaseRoute] = [
            Route("/", self._index),
            Route("/api/login", self._guarded(self._login), methods=["POST"]),
            Route("/api/login-link", self._guarded(self._login_by_link), methods=["POST"]),
            Route("/api/logout", self._guarded(self._logout), methods=["POST"]),
            Route("/api/session", self._guarded(self._show_session)),
            Route("/api/picture", self._guarded(self._picture)),
            Route("/api/history", self._guarded(self._history)),
            Route("/api/entitlements", self._guarded(self._entitlements)),
            Route("/api/audit", self._guarded(self._audit)),
            Route("/api/actions", self._guarded(self._act), methods=["POST"]),
            Route("/health", protected(self._health, page_token, self._refuse_page)),
            Route("/status", protected(self._status, page_token, self._refuse_page)),
            Route("/metrics", protected(self._metrics, page_token, self._refuse_page)),
            WebSocketRoute("/ws/watch", self._listener.watch),
            WebSocketRoute("/ws/stream", self._stream),
            Mount("/assets", Assets(directory=ASSETS, check_dir=False)),
        ]
        self.app = Starlette(routes=routes, exception_handlers={HTTPException: self._on_http_error})

    # Handling a request

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        async def guarded(request: Request) -> Response:
            try:
                return await endpoint(request)
            except ClientDisconnect:
                return Response(status_code=HTTPStatus.BAD_REQUEST)
            except HTTPException:
                raise
            except PenstockError as error:
                return refusal(error)
            except Exception as error:
                log.error("failed", path=request.url.path, error=repr(error))
                return refusal(PenstockError("internal error of the console", hint="see its log"))

        return guarded

    def _session(self, request: Request) -> Session:
        return self._service.session(request.cookies)

    async def _document(self, request: Request, kind: Any) -> Any:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
            raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        limits = self._service.config.limits
        return await read_document(
            request, kind, size_max=limits.body_size_max, within_s=limits.body_s, where=request.url.path, hint=HINT
        )

    async def _on_http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == HTTPStatus.UNSUPPORTED_MEDIA_TYPE:
            return refusal(RequestError("the body must be application/json", hint=HINT), error.status_code)
        return refusal(NotFoundError("unknown path or method", hint=HINT), error.status_code)

    # Sessions

    async def _login(self, request: Request) -> Response:
        wish: LoginRequest = await self._document(request, LoginRequest)
        return self._logged_in(*await self._service.login(wish.name, wish.secret, _address(request)))

    async def _login_by_link(self, request: Request) -> Response:
        wish: LinkRequest = await self._document(request, LinkRequest)
        return self._logged_in(*await self._service.login_by_link(wish.secret, _address(request)))

    def _logged_in(self, key: str, session: Session) -> Response:
        response = answer(self._described(session))
        response.set_cookie(
            self._service.cookie,
            key,
            max_age=int(self._service.config.limits.session_s),
            path="/",
            secure=self._service.is_secure,
            httponly=True,
            samesite="strict",
        )
        return response

    async def _logout(self, request: Request) -> Response:
        self._service.logout(request.cookies)
        response = Response(status_code=HTTPStatus.NO_CONTENT)
        response.delete_cookie(
            self._service.cookie, path="/", secure=self._service.is_secure, httponly=True, samesite="strict"
        )
        return response

    async def _show_session(self, request: Request) -> Response:
        return answer(self._described(self._session(request)))

    def _described(self, session: Session) -> SessionDocument:
        service = self._service
        return SessionDocument(
            client=session.client,
            roles=sorted(session.roles),
            is_operator=session.is_operator,
            expires_s=service.sessions.expires_s(session, self._clock.now_ns()),
            idle_s=service.config.limits.idle_s,
            has_stream=service.has_stream,
            has_tree=service.has_tree,
            plant=service.plant.name,
            can_control=service.can_control,
            version=__version__,
        )

    async def _stream(self, socket: WebSocket) -> None:
        """Serve the gateway. The browser has to request one of its subprotocols."""
        service = self._service
        spoken = next((each for each in SUBPROTOCOLS if each in socket.scope["subprotocols"]), None)
        if spoken is None:
            await socket.send_denial_response(
                refusal(ForbiddenError("unknown subprotocol", hint=", ".join(SUBPROTOCOLS)))
            )
            return

        async def talk(connection: BrowserConnection) -> None:
            session = GatewaySession(
                connection,
                service.config.limits,
                service.counters,
                lambda outlet: service.open_source(connection.session, outlet),
                is_binary=spoken == BINARY,
            )
            await session.run()

        await self._listener.open(socket, talk, spoken)

    # Reading

    async def _picture(self, request: Request) -> Response:
        session = self._session(request)
        newest = self._service.watcher.newest()
        if newest is None:
            try:
                async with asyncio.timeout(self._service.config.limits.body_s):
                    newest = await self._service.watcher.wait_newer(0)
            except TimeoutError:
                raise UnreachableError("the nodes were not polled yet", hint="try again") from None
        return answer(self._service.shown(newest, session))

    async def _history(self, request: Request) -> Response:
        self._session(request)
        seconds = _number(request, "seconds", "300")
        if not 0 < seconds <= SECONDS_MAX:
            raise RequestError(f"`seconds` must be 1 to {SECONDS_MAX}, not {seconds}", where="/api/history", hint=HINT)
        return answer(self._service.watcher.history.read(request.query_params.get("node", ""), seconds))

    async def _entitlements(self, request: Request) -> Response:
        return answer(await self._service.entitlements(self._session(request)))

    async def _audit(self, request: Request) -> Response:
        return answer(await self._service.audit(self._session(request), _number(request, "after", "0")))

    async def _act(self, request: Request) -> Response:
        session = self._session(request)
        action: AnyAction = await self._document(request, AnyAction)
        return answer(await self._service.actions.carry_out(session, _address(request), action))

    async def _index(self, request: Request) -> Response:
        page = ASSETS / "index.html"
        if not page.exists():
            return refusal(NotFoundError("this console has no page", hint="only its API is available"))
        return FileResponse(page, headers={"cache-control": "no-cache"})

    def _refuse_page(self, error: TokenError) -> Response:
        self._service.counters.add("requests_refused", cause=Cause.AUTHENTICATION)
        return refusal(error)

    async def _health(self, request: Request) -> Response:
        return answer({"is_healthy": True, "detail": self._service.detail})

    async def _status(self, request: Request) -> Response:
        return answer(self._service.status())

    async def _metrics(self, request: Request) -> Response:
        return Response(self._service.metrics.render(), media_type=EXPOSITION)


def _number(request: Request, name: str, otherwise: str) -> int:
    """A number of the query."""
    text = request.query_params.get(name, otherwise)
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise RequestError(f"`{name}` must be a number, not {text[:40]!r}", where=request.url.path, hint=HINT)
    return int(text)


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else ""
