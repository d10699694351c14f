"""The messages of a batch, for checkers."""

from typing import TypeAlias

from penstock.middleware.core.batch import Packable
from penstock.wire import Extension, Origin, decode_origin

EXTENSION_HEADER_SIZE = 4

ApplicationMessage: TypeAlias = tuple[str, Origin, bytes]
"""Topic, origin and payload."""


def messages_of(batch: Packable) -> list[ApplicationMessage]:
    topics, payloads = bytes(batch.topic_data), batch.payloads.tobytes()
    names = batch.rows.dtype.names or ()
    messages = []
    for values in batch.rows.tolist():
        row = dict(zip(names, values, strict=True))
        topic = topics[row["topic_offset"] :][: row["topic_size"]].decode()
        payload = payloads[row["payload_offset"] :][: row["payload_size"]]
        messages.append((topic, origin_in(payloads[row["extensions_offset"] :][: row["extensions_size"]]), payload))
    return messages


def origin_in(extensions: bytes) -> Origin:
    """Split encoded extensions whose first one is the ORIGIN."""
    kind, size = int.from_bytes(extensions[:2], "little"), int.from_bytes(extensions[2:4], "little")
    assert kind == Extension.ORIGIN
    return decode_origin(extensions[EXTENSION_HEADER_SIZE : EXTENSION_HEADER_SIZE + size])
