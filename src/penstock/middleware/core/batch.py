"""Batches of messages to publish, as arrays, for feeds and replays."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy
from numpy.typing import ArrayLike, NDArray

from penstock.base.errors import LocalProtocolError
from penstock.model import MessageModel
from penstock.topics import check_topic
from penstock.wire import MESSAGE_DTYPE


class Packable(Protocol):
    """A batch to pack: topics of `rows` are in `topic_data`, payloads and extensions in `payloads`."""

    @property
    def topic_data(self) -> bytes | NDArray[numpy.uint8]: ...

    @property
    def payloads(self) -> NDArray[numpy.uint8]: ...

    @property
    def rows(self) -> NDArray[Any]: ...

    def __len__(self) -> int: ...


class TopicList:
    """Topics checked once, so that messages can refer to them by index."""

    def __init__(self, topics: Sequence[str]) -> None:
        for topic in topics:
            check_topic(topic)
        encoded = [topic.encode() for topic in topics]
        self.topics = tuple(topics)
        self.data = b"".join(encoded)
        self.sizes = numpy.array([len(each) for each in encoded], numpy.uint16)
        self.offsets = numpy.cumsum([0, *self.sizes[:-1]], dtype=numpy.uint32)

    def __len__(self) -> int:
        return len(self.topics)


class OutgoingBatch:
    """Messages of equal size: `records` has one record per message, `which` the index of each topic."""

    def __init__(
        self, topics: TopicList, which: ArrayLike, records: NDArray[Any], model: MessageModel | None = None
    ) -> None:
        numbers = numpy.broadcast_to(numpy.asarray(which), records.shape[:1])
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < len(topics)):
            raise LocalProtocolError(f"a message has a topic index beyond the list of {len(topics)}")
        size = records.dtype.itemsize * (records[0].size if records.ndim > 1 and len(records) else 1)
        self.topic_data = topics.data
        self.payloads = numpy.ascontiguousarray(records).view(numpy.uint8).reshape(-1)
        self.rows = numpy.zeros(len(records), MESSAGE_DTYPE)
        self.rows["topic_offset"] = topics.offsets[numbers]
        self.rows["topic_size"] = topics.sizes[numbers]
        self.rows["payload_offset"] = numpy.arange(len(records)) * size
        self.rows["payload_size"] = size
        if model is not None:
            self.rows["model_id"] = model.id
            self.rows["model_version"] = model.version

    def __len__(self) -> int:
        return len(self.rows)
