"""Web requests: bounded in size and time, decoded or refused."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from penstock.base.decoding import DECODE_ERRORS, json_decoder
from penstock.base.errors import LimitError, RequestError, TokenError
from penstock.base.status_page import TOKEN_NEEDED, BearerToken

Page: TypeAlias = Callable[[Request], Awaitable[Response]]


def protected(page: Page, token: BearerToken | None, refuse: Callable[[TokenError], Response]) -> Page:
    """The page for requests with the token; `refuse` answers the others. Without a token the page is open to every
    request."""
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
    """The JSON document of a request, decoded as a type of msgspec; `where` and `hint` are for the error message."""
    chunks, size = [], 0
    try:
        async with asyncio.timeout(within_s):
            async for chunk in request.stream():
                size += len(chunk)
                if size > size_max:
                    raise LimitError(f"a request has at most {size_max} bytes")
                chunks.append(chunk)
    except TimeoutError:
        raise RequestError(f"was not complete within {within_s:g} s") from None
    try:
        return json_decoder(kind).decode(b"".join(chunks))
    except DECODE_ERRORS as error:
        raise RequestError(f"is not understood: {error}", where=where, hint=hint) from None
