"""Direct messages to one application: the address of an application is a 64-bit number, never 0."""

from typing_extensions import Buffer

from penstock.middleware.core.events import OutgoingMessage
from penstock.middleware.core.reserved_topics import RESERVED_PREFIX
from penstock.wire import (
    Extension,
    MessageFlag,
    PacketMessage,
    decode_destination,
    encode_destination,
    encode_extensions,
)

DIRECT = int(MessageFlag.DIRECT)
DESTINATION = int(Extension.DESTINATION)


def direct_message(
    application: int, payload: Buffer, *, topic: str = "", model_id: int = 0, model_version: int = 0
) -> OutgoingMessage:
    extensions = encode_extensions({DESTINATION: encode_destination(application)})
    return OutgoingMessage(topic, payload, model_id, model_version, DIRECT, extensions)


def direct_topic(application: int) -> str:
    """The topic that determines the group of direct messages to this application, if a map assigns groups to topics."""
    return f"{RESERVED_PREFIX}direct.{application:016x}"


def is_direct_to(message: PacketMessage, application: int) -> bool:
    """True if the message is addressed to this application. Raises PacketError if its extension is damaged."""
    return bool(message.flags & DIRECT) and decode_destination(message.extensions.get(DESTINATION, b"")) == application
