"""Messages as browsers read and write them."""

import base64
import struct
from decimal import Decimal
from typing import Any

import msgspec

from penstock.base.errors import ModelError, NotFoundError, RequestError
from penstock.capture.core.message_reader import Readable, UnreadMessage
from penstock.model import Message, MessageModel
from penstock.model.jsontext import values
from penstock.web.gateway.core.replies import MessageDocument

SAFE_MAX = 2**53 - 1
"""The largest integer that JavaScript represents exactly."""

KIND_MESSAGES, KIND_PUBLISH = 1, 2
_KIND = struct.Struct("<I")
_MESSAGE = struct.Struct("<IQQHHHHI")
_PUBLISH = struct.Struct("<IIHHH")

_INTEGERS = frozenset({"i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "quantity", "timestamp"})


class Arrived(msgspec.Struct, frozen=True):
    """A message for one subscription."""

    id: int
    stream: str
    time_ns: int
    message: Readable


class BinaryPublish(msgspec.Struct, frozen=True):
    id: int
    model_id: int
    model_version: int
    topic: str
    payload: bytes


def safe(value: Any) -> Any:
    """Return integers that a browser would round as texts."""
    return str(value) if isinstance(value, int) and not -SAFE_MAX <= value <= SAFE_MAX else value


def document(arrived: Arrived) -> MessageDocument:
    message = arrived.message
    if isinstance(message, UnreadMessage):
        model, fields = "", {"base64": base64.b64encode(message.payload).decode(), "model_id": message.model_id}
    else:
        model = message.model.name
        fields = {name: safe(value) for name, value in values(message).items() if value is not None}
    return MessageDocument(
        ids=[arrived.id],
        topic=message.topic,
        stream=arrived.stream,
        seq=safe(message.seq),
        time_ms=arrived.time_ns / 1_000_000,
        model=model,
        fields=fields,
    )


def binary(messages: list[Arrived]) -> bytes:
    """A frame of messages (docs/reference/protocol/console.md)."""
    parts = [_KIND.pack(KIND_MESSAGES)]
    for arrived in messages:
        message, stream, topic = arrived.message, arrived.stream.encode(), arrived.message.topic.encode()
        is_read = isinstance(message, Message)
        model_id = message.model.id if is_read else message.model_id  # type: ignore[union-attr]
        version = message.version if is_read else message.model_version
        payload = bytes(message)
        head = _MESSAGE.pack(
            arrived.id, message.seq, arrived.time_ns, model_id, version, len(stream), len(topic), len(payload)
        )
        parts += [head, stream, topic, payload]
    return b"".join(parts)


def parse_binary(frame: bytes) -> BinaryPublish:
    """Decode a message that a browser publishes."""
    if len(frame) < _PUBLISH.size:
        raise RequestError("the binary frame is shorter than its header")
    kind, number, model_id, version, topic_size = _PUBLISH.unpack_from(frame)
    end = _PUBLISH.size + topic_size
    if kind != KIND_PUBLISH or not 0 < number < 2**31 or len(frame) < end:
        raise RequestError("the binary frame is not a publication")
    try:
        topic = frame[_PUBLISH.size : end].decode()
    except UnicodeDecodeError:
        raise RequestError("the topic is not UTF-8 text") from None
    return BinaryPublish(number, model_id, version, topic, frame[end:])


def record(model: MessageModel | None, name: str, fields: dict[str, Any]) -> Message:
    """Make a message of the model with these fields."""
    if model is None:
        raise NotFoundError(f"unknown model {name[:64]!r}", hint="the request `models` lists them")
    given = {}
    for key, value in fields.items():
        field = model.fields_by_name.get(key)
        if field is None:
            raise ModelError(f"model {model.name!r} has no field {key[:64]!r}")
        given[key] = _number(value) if field.type in _INTEGERS and not field.is_decimal else value
        if isinstance(value, float) and field.is_decimal:
            given[key] = Decimal(repr(value))
    return model.new(**given)


def described(model: MessageModel) -> dict[str, Any]:
    fields = [
        {"name": field.name, "type": field.type, "values": sorted(field.values), "flags": sorted(field.bits)}
        for field in model.fields
    ]
    return {"name": model.name, "id": model.id, "version": model.version, "fields": fields}


def _number(value: Any) -> Any:
    """Convert a text back to the integer it represents."""
    if isinstance(value, str) and value.isascii() and value.removeprefix("-").isdigit() and len(value) < 22:
        return int(value)
    return value
