"""The data thread's part of the stream service: images of the conversion state, and contributions."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from penstock.base.errors import LimitError, NotSynchronisedError
from penstock.convert import SourceBatch
from penstock.feed.core.contribution import encode_contribution
from penstock.feed.core.conversion import Conversion
from penstock.feed.core.events import SessionBegan, SourceBroken, SourceMessages
from penstock.feed.core.service.events import Image
from penstock.feed.live.data_path import DataPath
from penstock.middleware.core.batch import Packable
from penstock.middleware.unicast import Contribution, Position
from penstock.wire import MESSAGE_DTYPE

CONTRIBUTION_JUMP_MAX = 1 << 20
"""Maximum gap in a contributor's numbers, so that one wrong number does not invalidate all later ones."""


class _Part:
    """The image of one source stream. The converter keeps adding to its topics; the rest belongs to the image."""

    def __init__(self, image: Packable) -> None:
        self.topics = numpy.frombuffer(bytes(image.topic_data), numpy.uint8)
        self.payloads = image.payloads
        self.rows = image.rows


class DataThreadBackend:
    """`contributions` has the ids of the source streams that accept contributions, by name."""

    def __init__(self, data: DataPath, contributions: Mapping[str, int], journal_path: Path | None) -> None:
        self._data = data
        self._contributions = contributions
        self._next: dict[int, int] = {}  # used by the data thread
        self.journal_path = journal_path
        # one endless session: without it, a first contribution would be a discontinuity of the whole feed
        for name, stream_id in contributions.items():
            data.submit(SessionBegan(stream_id, name, 1))

    async def take_image(self) -> Image:
        """Take an image. The data thread only writes it; selection and copying are done elsewhere."""
        parts, positions, next_packet = await asyncio.wrap_future(self._data.ask(self._image))
        return Image(*_joined(parts), positions, next_packet)

    def take_contribution(
        self, stream: str, first_sequence: int, messages: list[Contribution]
    ) -> "asyncio.Future[tuple[int, int]]":
        stream_id = self._contributions[stream]
        encoded = [encode_contribution(message) for message in messages]
        return asyncio.wrap_future(self._data.ask(lambda: self._contribute(stream_id, stream, first_sequence, encoded)))

    # In the data thread

    def _image(self) -> tuple[list[_Part], list[Position], int]:
        core = self._data.core
        converters = {key: each for key, each in core.converters.items() if hasattr(each, "image")}
        for stream_id in converters:
            if not core.synchroniser.is_synchronised(stream_id):
                raise NotSynchronisedError(
                    "this adapter is not synchronised", hint="connect to another adapter, or try again later"
                )
        positions = [position_of(stream_id, each) for stream_id, each in converters.items()]
        current = [each for stream_id, each in converters.items() if not core.is_ended(stream_id)]
        parts = [_Part(each.image()) for each in current]
        return parts, positions, self._data.outbound.open_store.next_sequence

    def _contribute(self, stream_id: int, name: str, first: int, messages: Sequence[bytes]) -> tuple[int, int]:
        """Handle contributions. The contributor's numbers are the source's: gaps are losses, repeated numbers are
        duplicates."""
        converter = self._data.core.converters[stream_id]
        expected = max(self._next.get(stream_id, 1), converter.next_source_sequence)
        if not messages:
            return expected, 0
        if first > expected + CONTRIBUTION_JUMP_MAX:
            what = f"contribution {first} is more than {CONTRIBUTION_JUMP_MAX} beyond the expected {expected}"
            raise LimitError(what, where=name, hint="query the position with an empty Contribute, and continue there")
        if first > expected:
            self._data.handle(SourceBroken(stream_id, expected, first - 1))
        fresh = messages[max(0, expected - first) :]
        if fresh:
            start = max(first, expected)
            batch = SourceBatch.from_messages(list(fresh), start, time.time_ns())
            self._next[stream_id] = expected = start + len(fresh)
            self._data.handle(SourceMessages(stream_id, batch))
        return expected, len(fresh)


def position_of(stream_id: int, converter: Conversion) -> Position:
    return Position(stream_id, converter.term, max(0, converter.next_message_sequence - 1))


def _joined(parts: Sequence[_Part]) -> tuple[NDArray[numpy.uint8], NDArray[numpy.uint8], NDArray[Any]]:
    """Copy several batches into one."""
    rows = [part.rows.copy() for part in parts]
    topics_at = payloads_at = 0
    for part, each in zip(parts, rows, strict=True):
        each["topic_offset"] += topics_at
        each["payload_offset"] += payloads_at
        each["extensions_offset"] += payloads_at
        topics_at += len(part.topics)
        payloads_at += len(part.payloads)
    nothing = numpy.empty(0, numpy.uint8)
    return (
        numpy.concatenate([nothing, *(part.topics for part in parts)]),
        numpy.concatenate([nothing, *(part.payloads for part in parts)]),
        numpy.concatenate([numpy.empty(0, MESSAGE_DTYPE), *rows]),
    )
