"""Answers of the console: documents, and every refusal as {code, what, where, hint}."""

from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Send

from penstock.admin.live.app import STATUSES as ADMIN_STATUSES
from penstock.base.errors import PenstockError, RateLimitedError
from penstock.security.core.brokering import ErrorDocument

STATUSES = {
    **ADMIN_STATUSES,
    "refused": HTTPStatus.CONFLICT,
    "unreachable": HTTPStatus.BAD_GATEWAY,
    "connection-lost": HTTPStatus.BAD_GATEWAY,
}
"""By error code; all other errors are bad requests."""


class Answer(Response):
    media_type = "application/json"

    async def denial(self, send: Send) -> None:
        """Refuse to open a WebSocket."""
        await send(
            {"type": "websocket.http.response.start", "status": self.status_code, "headers": list(self.raw_headers)}
        )
        await send({"type": "websocket.http.response.body", "body": bytes(self.body)})


def answer(document: Any) -> Answer:
    return Answer(msgspec.json.encode(document))


def error_document(error: PenstockError) -> ErrorDocument:
    return ErrorDocument(
        code=error.code,
        what=error.what,
        where=error.where,
        hint=error.hint,
        retry_after_s=error.retry_after_s if isinstance(error, RateLimitedError) else 0,
    )


def refusal(error: PenstockError, status: int | None = None) -> Answer:
    document = error_document(error)
    if status is None:
        status = STATUSES.get(error.code, HTTPStatus.BAD_REQUEST)
        if type(error) is PenstockError:
            status = HTTPStatus.INTERNAL_SERVER_ERROR
    headers = {"retry-after": str(document.retry_after_s)} if document.retry_after_s else None
    return Answer(msgspec.json.encode(document), status, headers)
