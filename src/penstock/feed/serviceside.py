"""What the stream service asks of the data thread: images of the conversion state, and to take contributions."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from penstock.base.errors import NotSynchronisedError
from penstock.convert import SourceBatch
from penstock.feed.contribution import encode_contribution
from penstock.feed.conversion import Conversion
from penstock.feed.datapath import DataPath
from penstock.feed.events import SessionBegan, SourceBroken, SourceMessages
from penstock.feed.service_events import Image
from penstock.middleware.batch import Packable
from penstock.middleware.unicast import Contribution, Position
from penstock.wire import MESSAGE_DTYPE


class ServiceSide:
    """`contributions` has the ids of the source streams that take contributions, by name."""

    def __init__(self, data: DataPath, contributions: Mapping[str, int], journal_path: Path | None) -> None:
        self._data = data
        self._contributions = contributions
        self._next: dict[int, int] = {}  # used by the data thread
        self.journal_path = journal_path
        # one session for ever: without it, a first contribution would be a discontinuity of the whole feed
        for name, stream_id in contributions.items():
            data.give(SessionBegan(stream_id, name, 1))

    def take_image(self, wants: Callable[[str], bool]) -> "asyncio.Future[Image]":
        return asyncio.wrap_future(self._data.ask(lambda: self._image(wants)))

    def take_contribution(
        self, stream: str, first_sequence: int, messages: list[Contribution]
    ) -> "asyncio.Future[tuple[int, int]]":
        stream_id = self._contributions[stream]
        encoded = [encode_contribution(message) for message in messages]
        return asyncio.wrap_future(self._data.ask(lambda: self._contribute(stream_id, first_sequence, encoded)))

    # In the data thread

    def _image(self, wants: Callable[[str], bool]) -> Image:
        core = self._data.core
        converters = {key: each for key, each in core.converters.items() if hasattr(each, "image")}
        for stream_id in converters:
            if not core.synchroniser.is_synchronised(stream_id):
                raise NotSynchronisedError("this adapter is not synchronised", hint="ask another one, or again later")
        positions = [position_of(stream_id, each) for stream_id, each in converters.items()]
        joined = _joined([each.image(wants) for each in converters.values()])
        return Image(*joined, positions, self._data.outbound.open_store.next_sequence)

    def _contribute(self, stream_id: int, first: int, messages: Sequence[bytes]) -> tuple[int, int]:
        """The contributor's numbers are the source's: what it leaves out is lost, what it repeats is known."""
        converter = self._data.core.converters[stream_id]
        expected = max(self._next.get(stream_id, 1), converter.next_source_sequence)
        if messages and first > expected:
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


def _joined(parts: Sequence[Packable]) -> tuple[NDArray[numpy.uint8], NDArray[numpy.uint8], NDArray[Any]]:
    """Several batches as one, in memory of its own."""
    topics = [numpy.frombuffer(bytes(part.topic_data), numpy.uint8) for part in parts]
    payloads = [part.payloads for part in parts]
    rows = [part.rows.copy() for part in parts]
    topics_at = payloads_at = 0
    for part, topic_data, each in zip(parts, topics, rows, strict=True):
        each["topic_offset"] += topics_at
        each["payload_offset"] += payloads_at
        each["extensions_offset"] += payloads_at
        topics_at += len(topic_data)
        payloads_at += len(part.payloads)
    nothing = numpy.empty(0, numpy.uint8)
    return (
        numpy.concatenate([nothing, *topics]),
        numpy.concatenate([nothing, *payloads]),
        numpy.concatenate([numpy.empty(0, MESSAGE_DTYPE), *rows]),
    )
