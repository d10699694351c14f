"""Which of the received messages are wanted: by topic, by tag, by content."""

from collections.abc import Iterator, Sequence

import numpy

from penstock.base.errors import ModelError, PacketError, TopicError
from penstock.middleware import Deliver, DeliverBatch
from penstock.middleware.core.direct import DIRECT, is_direct_to
from penstock.model import MessageModel
from penstock.topics import Interest, InterestKind, InterestTable, Predicate
from penstock.wire import Extension, MessageBatch, PacketMessage, decode_tags

EVERYTHING = ">"


class Selection:
    """Patterns as in docs/reference/topics.md, and a condition as in docs/reference/filters.md on messages of one
    model. Messages to the application of this `address` alone are wanted, too."""

    def __init__(
        self, patterns: Sequence[str], condition: str | None, model: MessageModel, *, address: int = 0
    ) -> None:
        self.address = address
        interests = self.interests(patterns)
        self._table = InterestTable()
        for interest in interests:
            self._table.add(interest, 0)
        self._has_tags = any(interest.kind is InterestKind.TAG for interest in interests)
        self._model = model
        self._predicate = Predicate.compile(condition, model) if condition else None
        self.malformed_count = 0
        """Messages whose topic, tags or record could not be read, and that were therefore not wanted."""

    @staticmethod
    def interests(patterns: Sequence[str]) -> list[Interest]:
        """What the patterns mean: with none but refusals, everything else is wanted."""
        interests = [Interest.parse(pattern) for pattern in patterns]
        if all(interest.negative for interest in interests):
            interests.append(Interest.parse(EVERYTHING))
        return interests

    def wanted(self, each: Deliver | DeliverBatch) -> Iterator[PacketMessage]:
        if isinstance(each, DeliverBatch) and not self._has_tags and not _has_direct(each.messages):
            chosen: Iterator[PacketMessage] = self._by_topic(each.messages)
        else:
            chosen = (message for message in each.messages if self._is_wanted(message))
        return chosen if self._predicate is None else filter(self._passes, chosen)

    def _by_topic(self, batch: MessageBatch) -> Iterator[PacketMessage]:
        """Without an object for each message that is not wanted."""
        rows = batch.messages
        before = self._table.malformed_count
        offsets, _ = self._table.match_batch(batch.data, rows["topic_offset"], rows["topic_size"])
        self.malformed_count += self._table.malformed_count - before
        for index in numpy.flatnonzero(numpy.diff(offsets)).tolist():
            yield batch[index]

    def _is_wanted(self, message: PacketMessage) -> bool:
        try:
            if message.flags & DIRECT:
                return is_direct_to(message, self.address)
            tags = decode_tags(message.extensions.get(Extension.TAGS, b"")) if self._has_tags else []
            return bool(self._table.match(message.topic, tags))
        except (TopicError, PacketError):
            self.malformed_count += 1
            return False

    def _passes(self, message: PacketMessage) -> bool:
        if message.flags & DIRECT:
            return True
        if message.model_id != self._model.id:
            return False
        assert self._predicate is not None
        try:
            return self._predicate(self._model.view(message.payload, message.model_version))
        except ModelError:
            self.malformed_count += 1
            return False


def _has_direct(batch: MessageBatch) -> bool:
    return bool((batch.messages["flags"] & DIRECT).any())
