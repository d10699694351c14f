"""Sealing of a feed's messages before they are sent: encrypted payloads, and a SEAL extension after the ORIGIN."""

import numpy

from penstock.middleware.core.batch import Packable
from penstock.middleware.core.events import OutgoingMessage
from penstock.security import Sealer
from penstock.security.core.sealing import Sealed
from penstock.wire import Extension, MessageFlag, Origin, decode_origin, encode_extensions, encode_seal
from penstock.wire._codec import EXTENSION_HEADER_SIZE


class SealedBatch:
    """A batch for middleware.PublishBatch."""

    def __init__(self, batch: Packable, sealer: Sealer) -> None:
        self.topic_data = batch.topic_data
        self.rows = batch.rows.copy()
        topics, source = bytes(batch.topic_data), bytes(batch.payloads)
        content = bytearray()
        for row in self.rows:
            extensions = _part(source, row["extensions_offset"], row["extensions_size"])
            sealed = sealer.seal(
                _part(source, row["payload_offset"], row["payload_size"]),
                topic=_part(topics, row["topic_offset"], row["topic_size"]),
                model_id=int(row["model_id"]),
                model_version=int(row["model_version"]),
                origin=_origin_of(extensions),
            )
            extensions += _seal_extension(sealed)
            row["extensions_offset"], row["extensions_size"] = len(content), len(extensions)
            content += extensions
            row["payload_offset"], row["payload_size"] = len(content), len(sealed.payload)
            content += sealed.payload
            row["flags"] |= int(MessageFlag.SEALED)
        self.payloads = numpy.frombuffer(bytes(content), numpy.uint8)

    def __len__(self) -> int:
        return len(self.rows)


def seal_batch(batch: Packable, sealer: Sealer) -> SealedBatch:
    return SealedBatch(batch, sealer)


def seal_message(message: OutgoingMessage, sealer: Sealer) -> OutgoingMessage:
    sealed = sealer.seal(
        bytes(message.payload),
        topic=message.topic.encode(),
        model_id=message.model_id,
        model_version=message.model_version,
        origin=_origin_of(message.extensions),
    )
    return OutgoingMessage(
        message.topic,
        sealed.payload,
        message.model_id,
        message.model_version,
        message.flags | int(MessageFlag.SEALED),
        message.extensions + _seal_extension(sealed),
    )


def _part(data: bytes, offset: int, size: int) -> bytes:
    return data[int(offset) : int(offset) + int(size)]


def _seal_extension(sealed: Sealed) -> bytes:
    return encode_extensions({Extension.SEAL: encode_seal(sealed.seal)})


def _origin_of(extensions: bytes) -> Origin | None:
    """Return the ORIGIN, which is the first extension in adapters' messages, 32 bytes with its header."""
    if int.from_bytes(extensions[:2], "little") != Extension.ORIGIN:
        return None
    size = int.from_bytes(extensions[2:4], "little")
    return decode_origin(extensions[EXTENSION_HEADER_SIZE : EXTENSION_HEADER_SIZE + size])
