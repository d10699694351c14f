"""The message that says that a source stream does not go on seamlessly."""

import msgspec

from penstock.feed.events import DISCONTINUITY_TOPIC, Discontinuity
from penstock.feed.messages import ANNOUNCEMENT_SIZE_MAX, Announced
from penstock.middleware.events import OutgoingMessage
from penstock.wire import Extension, Origin, OriginFlag, encode_extensions, encode_origin


def announcement_body(discontinuity: Discontinuity) -> bytes:
    """As JSON; of very many lost ranges the oldest are left out."""
    body = msgspec.json.encode(discontinuity)
    while len(body) > ANNOUNCEMENT_SIZE_MAX:
        lost = discontinuity.lost[len(discontinuity.lost) // 2 :]
        discontinuity = msgspec.structs.replace(discontinuity, lost=lost)
        body = msgspec.json.encode(discontinuity)
    return body


def announcement_message(announced: Announced, term: int, *, is_repeated: bool) -> OutgoingMessage:
    """The announcement itself, or the same said again by an adapter that joined its lineage later."""
    flags = OriginFlag.SYNCHRONISED | OriginFlag.DISCONTINUITY | (OriginFlag.IMAGE if is_repeated else 0)
    origin = Origin(announced.stream_id, term, 0, int(flags), announced.source_sequence, announced.message_sequence)
    extensions = encode_extensions({Extension.ORIGIN: encode_origin(origin)})
    return OutgoingMessage(DISCONTINUITY_TOPIC, announced.body, extensions=extensions)
