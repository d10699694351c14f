"""Helpers that drive a Merger by hand with adapters that number their messages alike."""

from collections.abc import Iterable, Sequence
from typing import Any

from penstock.base.counters import Cause
from penstock.middleware import Deliver, LossReceipt, Merged, MergedBatch, Merger, StreamEnded, StreamKey
from penstock.middleware.core.reserved_topics import DISCONTINUITY_TOPIC
from penstock.middleware.core.source_stream import DiscontinuityNote
from penstock.wire import Extension, Origin, OriginFlag, PacketMessage, decode_origin, encode_origin
from penstock.wire.term import Term

NEXT = int(Term(1, 0, 0, 0))
"""A term of a different lineage from the small ones."""

A, B, C = (StreamKey(publisher_id, 1) for publisher_id in (1, 2, 3))
SYNCHRONISED = int(OriginFlag.SYNCHRONISED)


def origin(
    number: int, *, term: int = 1, source: int | None = None, flags: int = SYNCHRONISED, stream: int = 7
) -> Origin:
    """The source message has the same number as the message by default."""
    return Origin(stream, term, 0, flags, number if source is None else source, number)


def message(number: int, content: bytes | None = None, **options: Any) -> PacketMessage:
    """Message n of the source stream has the payload n."""
    made = origin(number, **options)
    payload = str(number).encode() if content is None else content
    return PacketMessage("t", payload, extensions={Extension.ORIGIN: encode_origin(made)})


def announcement(
    number: int,
    term: int,
    reason: str = "source_gap",
    session: str = "",
    source: int = 0,
    *,
    is_repeated: bool = False,
) -> PacketMessage:
    flags = int(OriginFlag.SYNCHRONISED | OriginFlag.DISCONTINUITY | (OriginFlag.IMAGE if is_repeated else 0))
    body = encode_origin(origin(number, term=term, source=source, flags=flags))
    note = DiscontinuityNote(reason, [], session)
    return PacketMessage(DISCONTINUITY_TOPIC, note.encode(), extensions={Extension.ORIGIN: body})


def deliver(key: StreamKey, messages: Sequence[PacketMessage]) -> Deliver:
    return Deliver(key, 1, 1, 1, 0, messages, b"")


def give(merger: Merger, key: StreamKey, *numbers: int, now_ns: int = 0, **options: Any) -> list[Any]:
    return merger.handle(deliver(key, [message(number, **options) for number in numbers]), now_ns)


def lose(merger: Merger, key: StreamKey) -> list[Any]:
    return merger.handle(LossReceipt(key, 1, 1, 1, Cause.NO_ANSWER), 0)


def end(merger: Merger, key: StreamKey) -> list[Any]:
    return merger.handle(StreamEnded(key, 1, 1, Cause.EXPIRED), 0)


def messages_of(answers: Iterable[Any]) -> list[PacketMessage]:
    return [each for answer in answers if isinstance(answer, Merged | MergedBatch) for each in answer.messages]


def numbers_of(answers: Iterable[Any]) -> list[int]:
    bodies = [each.extensions[Extension.ORIGIN] for each in messages_of(answers)]
    return [decode_origin(body).message_sequence for body in bodies]
