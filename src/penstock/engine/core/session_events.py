"""Sessions of source streams in events: the body of a SESSION event, with which a node announces sessions to its
consumers, and the session id of a record, with which downstream nodes find the records of an ended session."""

import msgspec

from penstock.base.crc32c import crc32c
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


def session_id(event: SessionEvent) -> int:
    """The session id in events about records of this session; 0 if the session has no tag."""
    if not event.tag:
        return 0
    return crc32c(event.stream_id.to_bytes(4, "little") + event.tag.to_bytes(2, "little"), crc32c(event.feed.encode()))


def decode_session(body: bytes) -> SessionEvent:
    try:
        return _decoder.decode(body)
    except DECODE_ERRORS as error:
        raise RemoteProtocolError(f"cannot decode the body of a session event: {error}") from None
