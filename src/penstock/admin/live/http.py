"""Web requests: bounded in size and time, and understood or refused."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.base.counters import Cause
from penstock.base.decoding import DECODE_ERRORS, json_decoder
from penstock.base.endpoint import TOKEN_NEEDED, BearerToken
from penstock.base.errors import LimitError, RequestError, TokenError

WAITING_FACTOR = 2
"""Connections that may be open, those without a request among them, for each that is served at once."""

Page: TypeAlias = Callable[[Request], Awaitable[Response]]


def protected(page: Page, token: BearerToken | None, refuse: Callable[[TokenError], Response]) -> Page:
    """The page for requests that have the token; `refuse` answers the others. Without a token everybody may read it."""
    if token is None:
        return page

    async def answer(request: Request) -> Response:
        if token.allows(request.headers.get("authorization", "")):
            return await page(request)
        refusal = refuse(TokenError(TOKEN_NEEDED, where=request.url.path))
        refusal.headers["www-authenticate"] = "Bearer"  # as RFC 9110 demands
        return refusal

    return answer


async def read_document(request: Request, kind: Any, *, size_max: int, within_s: float, where: str, hint: str) -> Any:
    """The JSON document of a request, of a kind that msgspec knows; `where` and `hint` are for whoever is refused."""
    chunks, size = [], 0
    try:
        async with asyncio.timeout(within_s):
            async for chunk in request.stream():
                size += len(chunk)
                if size > size_max:
                    raise LimitError(f"a request has at most {size_max} bytes")
                chunks.append(chunk)
    except TimeoutError:
        raise RequestError(f"did not come whole within {within_s:g} s") from None
    try:
        return json_decoder(kind).decode(b"".join(chunks))
    except DECODE_ERRORS as error:
        raise RequestError(f"is not understood: {error}", where=where, hint=hint) from None


class PromptHttp(H11Protocol):
    """The head of each request comes within `head_s`; more connections than are ever served are not taken at all."""

    def __init__(self, *arguments: Any, head_s: float, refused: Callable[[Cause], None], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._head_s = head_s
        self._refused = refused

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) > WAITING_FACTOR * self.limit_concurrency:
            self._refuse(Cause.CONNECTION_LIMIT)
        else:
            self._await_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_head()

    def _await_head(self) -> None:
        """A WebSocket has another protocol from its first request on."""
        seen = self.cycle

        def look() -> None:
            if self.cycle is seen and self.transport.get_protocol() is self and not self.transport.is_closing():
                self._refuse(Cause.SILENT)

        self.loop.call_later(self._head_s, look)

    def _refuse(self, cause: Cause) -> None:
        self._refused(cause)
        self.transport.abort()


def prompt_http(head_s: float, refused: Callable[[Cause], None]) -> Callable[..., PromptHttp]:
    """For uvicorn's setting `http`; `refused` is told of every connection that is cut off."""
    return partial(PromptHttp, head_s=head_s, refused=refused)
