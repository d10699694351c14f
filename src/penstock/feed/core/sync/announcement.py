"""Announcements of a discontinuity of a source stream, and of the end of its session."""

import msgspec

from penstock.feed.core.sync.messages import ANNOUNCEMENT_SIZE_MAX, Announced
from penstock.middleware.core.events import OutgoingMessage
from penstock.middleware.core.reserved_topics import DISCONTINUITY_TOPIC
from penstock.middleware.core.source_stream import END, END_INDEX, DiscontinuityNote
from penstock.wire import Extension, Origin, OriginFlag, encode_extensions, encode_origin


def announcement_body(note: DiscontinuityNote) -> bytes:
    """Encode as JSON; if there are very many lost ranges, the oldest are dropped."""
    while len(body := note.encode()) > ANNOUNCEMENT_SIZE_MAX:
        note = msgspec.structs.replace(note, lost=note.lost[len(note.lost) // 2 + 1 :])
    return body


def announcement_message(
    announced: Announced, term: int, flags: int, *, is_repeated: bool, index: int = 0
) -> OutgoingMessage:
    """Return the announcement, or its repetition by an adapter that joined the lineage later; `flags` are those of
    the following messages."""
    flags |= OriginFlag.DISCONTINUITY | (OriginFlag.IMAGE if is_repeated else 0)
    origin = Origin(announced.stream_id, term, index, int(flags), announced.source_sequence, announced.message_sequence)
    extensions = encode_extensions({Extension.ORIGIN: encode_origin(origin)})
    return OutgoingMessage(DISCONTINUITY_TOPIC, announced.body, extensions=extensions)


def end_message(
    stream_id: int, term: int, flags: int, *, number: int, source_sequence: int, session: str, trading_date: str
) -> OutgoingMessage:
    """Announces that the session ended after the message with this number. The announcement has no number of its own
    and begins no term, so every adapter may send it."""
    body = DiscontinuityNote(END, [], session, trading_date).encode()
    announced = Announced(term, stream_id, number, source_sequence, body)
    return announcement_message(announced, term, flags, is_repeated=False, index=END_INDEX)
