"""The two encodings of messages on a WebSocket (docs/reference/protocol/sessions.md), without I/O.

`penstock.binary`: control messages are texts (JSON), a block of events is a binary message.
`penstock.json`: all messages are text; events are an array of objects with the record's fields, for pages and
scripts.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import msgspec

from penstock.base.errors import ModelError, RemoteProtocolError
from penstock.engine.control import ConsumerMessage, ControlMessage, Events, Records
from penstock.engine.core.kernel._event import Event, EventKind, ReceiptCause, TransmissionClass, read_events
from penstock.engine.core.session_events import decode_session
from penstock.model import MessageModel

BINARY = "penstock.binary"
JSON = "penstock.json"
SUBPROTOCOLS = (BINARY, JSON)
"""The subprotocols that a server offers; a client selects one of them."""

Models: TypeAlias = Callable[[int, int], MessageModel | None]
"""Returns the model of this id and version, if this node knows it."""

_DECODER = msgspec.json.Decoder(ConsumerMessage)
_ENCODER = msgspec.json.Encoder()
_CLASSES = {int(number): number.name.lower() for number in TransmissionClass}


class BinaryCodec:
    """The node's side of a WebSocket with the binary encoding."""

    def decode(self, message: str | bytes) -> ControlMessage:
        if isinstance(message, bytes):
            raise RemoteProtocolError("consumers send text messages, not binary ones")
        try:
            return cast("ControlMessage", _DECODER.decode(message))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise RemoteProtocolError(f"not a control message: {error}") from None

    def encode(self, message: ControlMessage) -> str | bytes:
        if isinstance(message, Events):
            return message.data
        return _ENCODER.encode(message).decode()


class JsonCodec(BinaryCodec):
    """The node's side with events as JSON. Keeps the topic and model of each item, as a consumer does."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._items: dict[int, tuple[str, MessageModel | None]] = {}

    def encode(self, message: ControlMessage) -> str | bytes:
        if isinstance(message, Events):
            return _ENCODER.encode(self._shown_all(message.data)).decode()
        if isinstance(message, Records):
            shown = {"type": "records", "number": message.number, "is_last": message.is_last}
            return _ENCODER.encode({**shown, "records": self._shown_all(message.data)}).decode()
        return super().encode(message)

    def _shown_all(self, data: bytes) -> list[dict[str, Any]]:
        return [shown for event in read_events(data) if (shown := self._shown(event)) is not None]

    def _shown(self, event: Event) -> dict[str, Any] | None:
        """Return an event as JSON fields; None for events that only this side needs."""
        if event.kind == EventKind.DEFINE:
            self._items[event.item] = event.topic.decode(), self._models(event.model_id, event.model_version)
            return None
        shown: dict[str, Any] = {"kind": EventKind(event.kind).name.lower()}
        topic, model = self._items.get(event.item, ("", None))
        if topic:
            shown["topic"] = topic
        if event.kind == EventKind.LIVE:
            return {**shown, "subscription": event.subscription}
        if event.kind == EventKind.RECEIPT:
            first, last, cause = event.lost
            return {**shown, "first": first, "last": last, "cause": ReceiptCause(cause).name.lower()}
        if event.kind == EventKind.REMOVE:
            self._items.pop(event.item, None)
            return shown
        if event.kind == EventKind.SESSION:
            return {**shown, "session": msgspec.to_builtins(decode_session(event.session))}
        if event.kind == EventKind.WITHDRAW:
            return {**shown, "class": _CLASSES.get(event.cls, ""), "version": event.version}
        if event.cls in _CLASSES:  # events of a snapshot have no class
            shown["class"] = _CLASSES[event.cls]
        return {**shown, "version": event.version, "merged": event.merged, "record": _record_of(model, event)}


def _record_of(model: MessageModel | None, event: Event) -> msgspec.Raw | None:
    """Return the record's fields; None if the model is unknown or the record does not match it."""
    if model is None:
        return None
    try:
        return msgspec.Raw(model.view(event.body, event.model_version).to_json().encode())
    except ModelError:
        return None
