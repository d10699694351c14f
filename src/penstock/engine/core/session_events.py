"""The body of a SESSION event, by which a node announces sessions of source streams to its consumers."""

import msgspec

from penstock.base.decoding import DECODE_ERRORS
from penstock.base.errors import RemoteProtocolError
from penstock.engine.core.kernel._event import SESSION_SIZE_MAX
from penstock.middleware.core.events import SessionEvent

_decoder = msgspec.json.Decoder(SessionEvent)


def encode_session(event: SessionEvent) -> bytes:
    """Encode as JSON; a very long session name is truncated."""
    body = msgspec.json.encode(event)
    while len(body) > SESSION_SIZE_MAX:
        event = msgspec.structs.replace(event, session=event.session[: len(event.session) // 2])
        body = msgspec.json.encode(event)
    return body


def decode_session(body: bytes) -> SessionEvent:
    try:
        return _decoder.decode(body)
    except DECODE_ERRORS as error:
        raise RemoteProtocolError(f"the body of a session event cannot be read: {error}") from None
