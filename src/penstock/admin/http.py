"""The body of a web request: bounded in size and time, and understood or refused."""

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request

from penstock.base.errors import LimitError, RequestError


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
        return msgspec.json.decode(b"".join(chunks), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"is not understood: {error}", where=where, hint=hint) from None
