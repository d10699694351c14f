"""The HTTP API: routes, required roles, bounded bodies, and every refusal as {code, what, where, hint}."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any, TypeAlias

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.admin.core import openapi
from penstock.admin.core.administration import Caller
from penstock.admin.core.listing import entitlements
from penstock.admin.core.operations import AUDITOR, OPERATIONS, ChangesQuery, EventsQuery, ModelQuery, Operation
from penstock.admin.live.http import protected, read_document
from penstock.admin.live.server import AdminService
from penstock.base.counters import Cause, Counters
from penstock.base.errors import (
    ForbiddenError,
    NotFoundError,
    PenstockError,
    RateLimitedError,
    RequestError,
    StandbyError,
    TokenError,
)
from penstock.base.log import logger
from penstock.base.metrics import EXPOSITION, Metrics
from penstock.base.status_page import BearerToken
from penstock.security.core import brokering as b
from penstock.security.core.authentication import PUBLISHERS

STATUSES = {
    "authentication": HTTPStatus.UNAUTHORIZED,
    "credentials-expired": HTTPStatus.UNAUTHORIZED,
    "token": HTTPStatus.UNAUTHORIZED,
    "token-expired": HTTPStatus.UNAUTHORIZED,
    "forbidden": HTTPStatus.FORBIDDEN,
    "not-entitled": HTTPStatus.FORBIDDEN,
    "revoked": HTTPStatus.FORBIDDEN,
    "not-found": HTTPStatus.NOT_FOUND,
    "limit": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "rate-limited": HTTPStatus.TOO_MANY_REQUESTS,
    "standby": HTTPStatus.SERVICE_UNAVAILABLE,
    "local-protocol": HTTPStatus.INTERNAL_SERVER_ERROR,
}
"""HTTP status by the error's code; 400 for every other one."""

ANONYMOUS = ""
TEXT_SIZE_MAX = 1_024
log = logger("admin.http")


Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Call(msgspec.Struct, frozen=True):
    """A request after its checks: the caller and the document."""

    caller: Caller
    document: Any
    query: Any
    path: dict[str, str]
    headers: dict[str, str]
    receive: Receive
    """The next message of the connection (ASGI)."""


class AdminApp:
    """The routes of one service; `app` is for a web server. `page_token` protects the pages, if given."""

    def __init__(self, service: AdminService, page_token: BearerToken | None) -> None:
        self._service = service
        self._is_stopping = False
        self._applied = asyncio.Event()  # set and then replaced when a reader of events polls or disconnects
        self._openapi = msgspec.json.encode(openapi.document())
        routes = [Route(each.path, self._route(each), methods=[each.method]) for each in OPERATIONS]
        self._counters = Counters("admin")
        self._metrics = Metrics()
        self._metrics.register(self._counters)
        self._metrics.show_gauges(self._gauges)
        routes += [
            Route("/openapi.json", self._serve_openapi),
            Route("/health", protected(self._serve_health, page_token, self._refuse_page)),
            Route("/metrics", protected(self._serve_metrics, page_token, self._refuse_page)),
        ]
        handlers: Any = {HTTPException: self._on_http_error}
        self.app = Starlette(routes=routes, exception_handlers=handlers)

    def stop(self) -> None:
        """Answer the requests that wait for events."""
        self._is_stopping = True
        self._service.wake()
        self._note_applied()

    # From a request to a decision

    def _route(self, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
        handler: Callable[[Call], Awaitable[Any]] = getattr(self, f"_{operation.name}")

        async def endpoint(request: Request) -> Response:
            address = request.client.host if request.client is not None else ""
            caller = Caller(ANONYMOUS, frozenset(), address)
            try:
                self._check_role(operation)
                if operation.roles is not None:
                    caller = self._caller(request, address)
                    self._check_right(caller, operation)
                call = Call(
                    caller,
                    await self._document(request, operation),
                    _query(request, operation),
                    request.path_params,
                    dict(request.headers),
                    request.receive,
                )
                if isinstance(call.document, b.LoginRequest):
                    caller = Caller(call.document.client, frozenset(), address)
                answer = await handler(call)
            except ClientDisconnect:
                return Response(status_code=HTTPStatus.BAD_REQUEST)
            except PenstockError as error:
                self._service.refuse(caller, operation.name, error)
                return self._refusal(error)
            except Exception as error:
                log.error("failed", action=operation.name, error=repr(error))
                return self._refusal(
                    PenstockError("the server has an internal error", hint="see the log of the server")
                )
            return answer if isinstance(answer, Response) else self._respond(msgspec.json.encode(answer))

        return endpoint

    def _check_role(self, operation: Operation) -> None:
        if self._service.role == "standby" and not operation.on_standby:
            raise StandbyError(
                "this server is the standby",
                where=self._service.config.node,
                hint="send the request to the other server",
            )

    def _caller(self, request: Request, address: str) -> Caller:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise TokenError("there is no session token", hint="log in, then send it as Authorization: Bearer")
        return self._service.core.caller(token, address, self._service.now_ns)

    def _check_right(self, caller: Caller, operation: Operation) -> None:
        if operation.roles and not operation.roles & caller.roles:
            raise ForbiddenError(f"{operation.name} needs the role {' or '.join(sorted(operation.roles))}")

    async def _document(self, request: Request, operation: Operation) -> Any:
        if operation.request is None:
            return None
        limits = self._service.config.limits
        return await read_document(
            request,
            operation.request,
            size_max=limits.body_size_max,
            within_s=limits.body_s,
            where=operation.path,
            hint=f"{operation.request.__name__} in /openapi.json describes the document",
        )

    def _respond(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
        told = {"penstock-generation": str(self._service.generation), "cache-control": "no-store", **(headers or {})}
        return Response(body, status, told, "application/json")

    def _refusal(self, error: PenstockError) -> Response:
        retry_after_s = error.retry_after_s if isinstance(error, RateLimitedError) else 0
        document = b.ErrorDocument(
            code=error.code, what=error.what, where=error.where, hint=error.hint, retry_after_s=retry_after_s
        )
        headers = {"retry-after": str(retry_after_s)} if retry_after_s else {}
        status = STATUSES.get(error.code, HTTPStatus.BAD_REQUEST)
        if type(error) is PenstockError:
            status = HTTPStatus.INTERNAL_SERVER_ERROR
        return self._respond(msgspec.json.encode(document), status, headers)

    async def _on_http_error(self, request: Request, error: HTTPException) -> Response:
        """No such path or method."""
        code, what = NotFoundError.code, "there is no such path or method"
        document = b.ErrorDocument(code=code, what=what, hint="/openapi.json lists them")
        return self._respond(msgspec.json.encode(document), error.status_code)

    async def _serve_openapi(self, request: Request) -> Response:
        return self._respond(self._openapi)

    async def _serve_health(self, request: Request) -> Response:
        is_healthy = self._service.failed is None
        body = {"is_healthy": is_healthy, "role": self._service.role}
        return self._respond(msgspec.json.encode(body), 200 if is_healthy else 503)

    async def _serve_metrics(self, request: Request) -> Response:
        return Response(self._metrics.render(), headers={"cache-control": "no-store"}, media_type=EXPOSITION)

    def _refuse_page(self, error: TokenError) -> Response:
        self._counters.add("requests_refused", cause=Cause.AUTHENTICATION)
        return self._refusal(error)

    def _gauges(self) -> dict[str, float]:
        """The page has numbers only, so the loopback interface needs no token."""
        status = self._service.status()
        return {
            "admin_is_primary": status.role == "primary",
            "admin_generation": status.generation,
            "admin_adapters": len(status.adapters),
            "admin_subscriptions": status.subscriptions,
            "admin_denials": status.denials,
        }

    # The operations, by their names in the table

    async def _challenge(self, call: Call) -> Any:
        service, client = self._service, call.document.client
        return service.challenges.challenge(service.core.policy, client, call.caller.address, service.now_ns)

    async def _login(self, call: Call) -> Any:
        session = self._service.login(call.document, call.caller.address)
        former = call.headers.get("authorization", "")
        self._core.readers.change_session(call.document.client, former, f"Bearer {session.token}")
        return session

    async def _subscribe(self, call: Call) -> Any:
        request: b.SubscribeRequest = call.document
        answer = self._service.decide(lambda now: self._core.subscribe(call.caller, request, now))
        if request.topics:  # a publisher that opens before its first request for events waits for it
            readers, session = self._core.readers, call.headers["authorization"]
            readers.expect(call.caller.client, session, answer.events_after, self._service.now_ns)
        if request.publish:
            name, core = request.subscription_id, self._core
            await self._wait_for_receivers(name, lambda number, now: core.unaware(name, number, now))
        return answer

    async def _renew(self, call: Call) -> Any:
        name = call.path["subscription_id"]
        return self._service.decide(lambda now: self._core.renew(call.caller, name, now))

    async def _modify(self, call: Call) -> Any:
        name = call.path["subscription_id"]
        return self._service.decide(lambda now: self._core.modify(call.caller, name, call.document, now))

    async def _cancel(self, call: Call) -> Any:
        name = call.path["subscription_id"]
        return self._service.decide(lambda now: self._core.cancel(call.caller, name, now))

    async def _events(self, call: Call) -> Any:
        query: EventsQuery = call.query
        readers, session = self._core.readers, call.headers["authorization"]
        reader = readers.begin(call.caller.client, session, query.after, self._service.now_ns)
        self._note_applied()
        self._service.advance_keys_soon()
        polling = asyncio.ensure_future(
            self._poll(
                lambda: self._core.events(call.caller, query.after),
                lambda answer: bool(answer.events) or not answer.is_complete,
                query.wait_s,
            )
        )
        leaving = asyncio.ensure_future(_until_disconnected(call.receive))
        try:
            await asyncio.wait((polling, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not polling.done():
                raise ClientDisconnect
            return polling.result()
        finally:
            readers.end(reader, self._service.now_ns, is_gone=leaving.done())
            self._note_applied()
            for each in (polling, leaving):
                each.cancel()

    async def _entitlements(self, call: Call) -> Any:
        core, service = self._core, self._service
        return entitlements(core.rights, core.state, call.caller, AUDITOR & call.caller.roles, service.now_ns)

    async def _models(self, call: Call) -> Any:
        return b.ModelList(models=self._service.models.references())

    async def _model(self, call: Call) -> Any:
        text = call.path["model_id"]
        if not (text.isascii() and text.isdigit() and len(text) < 6):
            raise NotFoundError(f"{text[:80]!r} is not a model id", hint="ids are numbers")
        query: ModelQuery = call.query
        document, tag = self._service.models.get(int(text), query.version)
        headers = {"etag": tag, "cache-control": "private, no-cache"}
        if call.headers.get("if-none-match") == tag:
            return self._respond(b"", HTTPStatus.NOT_MODIFIED, headers)
        return self._respond(msgspec.json.encode(document), headers=headers)

    async def _publisher(self, call: Call) -> Any:
        """The answer waits until receivers have confirmed the publisher: before that, they would drop its first
        packets."""
        answer = self._service.decide(lambda now: self._core.claim_publisher(call.caller, call.document, now))
        unaware = self._core.authentication.unaware
        await self._wait_for_receivers(answer.name, lambda number, now: unaware(PUBLISHERS, number, now))
        return answer

    async def _register(self, call: Call) -> Any:
        return self._service.decide(lambda now: self._core.register(call.caller, call.document, now))

    async def _heartbeat(self, call: Call) -> Any:
        answer = self._service.decide(lambda now: self._core.heartbeat(call.caller, call.document, now))
        self._service.advance_keys_soon()
        return answer

    async def _verification(self, call: Call) -> Any:
        return self._core.verification()

    async def _authentication(self, call: Call) -> Any:
        return self._service.decide(lambda now: self._core.authenticate(call.caller, now))

    async def _revoke(self, call: Call) -> Any:
        return self._service.decide(lambda now: self._core.revoke(call.caller, call.document, now))

    async def _restore(self, call: Call) -> Any:
        return self._service.decide(lambda now: self._core.restore(call.caller, call.document, now))

    async def _policy(self, call: Call) -> Any:
        return self._service.set_policy(call.caller, call.document.text)

    async def _status(self, call: Call) -> Any:
        return self._service.status()

    async def _audit(self, call: Call) -> Any:
        return self._service.audit_after(call.query.after)

    async def _promote(self, call: Call) -> Any:
        return self._service.promote(f"{call.caller.client}: {call.document.reason}")

    async def _changes(self, call: Call) -> Any:
        query: ChangesQuery = call.query
        service = self._service
        return await self._poll(
            lambda: service.changes(query.after, query.history_id),
            lambda answer: bool(answer.changes) or answer.role == "standby",
            query.wait_s,
        )

    # Common to the operations

    async def _wait_for_receivers(self, publisher: str, unaware: Callable[[int, int], list[str]]) -> None:
        """Wait until receivers have applied the events up to now; `unaware` returns the clients that have not."""
        number = self._core.state.meta.event_number
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._service.config.limits.publisher_wait_s
        while late := unaware(number, self._service.now_ns):
            left_s = end_s - loop.time()
            if left_s <= 0 or self._is_stopping:
                log.warning("publisher_not_confirmed", publisher=publisher, clients=",".join(late)[:TEXT_SIZE_MAX])
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._applied.wait(), left_s)

    def _note_applied(self) -> None:
        """Check the claims that wait for readers of events again."""
        self._applied.set()
        self._applied = asyncio.Event()

    @property
    def _core(self) -> Any:
        return self._service.core

    async def _poll(self, look: Callable[[], Any], is_enough: Callable[[Any], bool], wait_s: float) -> Any:
        """Check the condition, and again after every change, until it holds or the time is over."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + wait_s
        while True:
            answer = look()
            left_s = end_s - loop.time()
            if is_enough(answer) or left_s <= 0 or self._is_stopping:
                return answer
            await self._service.wait_for_change(left_s)


async def _until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _query(request: Request, operation: Operation) -> Any:
    try:
        return msgspec.convert(dict(request.query_params), operation.query, strict=False)
    except msgspec.ValidationError as error:
        raise RequestError(f"invalid query: {error}", where=operation.path) from None
