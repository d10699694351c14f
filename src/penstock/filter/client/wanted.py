"""The interests of an application, kept by the application: it subscribes again after a reconnect, and filters packets
itself that the module did not filter, such as repairs that come directly from a publisher."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy

from penstock.base.counters import Cause, Counters
from penstock.base.errors import LocalProtocolError, ModelError, PacketError, TopicError
from penstock.filter.core.control import TOPICS_MAX, Interests
from penstock.middleware.core.direct import DIRECT, is_direct_to
from penstock.model import MessageModel
from penstock.model.library import shipped, shipped_names
from penstock.topics import Interest, InterestKind, InterestTable
from penstock.topics.modelcondition import ModelCondition
from penstock.wire import Extension, MessageBatch, MessageFlag, PacketMessage, decode_tags

SEALED = int(MessageFlag.SEALED)
TAGS = int(Extension.TAGS)

TOPICS_SIZE_MAX = 512 * 1024
"""Maximum size of interests in one message; below the limit of a message."""

MSGPACK_SIZE = 3
"""Overhead per interest in bytes."""

ModelFinder = Callable[[int, int], MessageModel | None]
"""Finds the model with this id, which decodes messages of all its versions."""


class Condition(NamedTuple):
    """The condition of a message besides its topic: nothing, a SQL condition, or a byte pattern."""

    where: str = ""
    content: bytes = b""


class _Slot:
    """The interests under one condition, with the channels on which each flows."""

    def __init__(self, number: int, condition: Condition, models: ModelFinder) -> None:
        self.number = number
        self.condition = condition
        self.topics: dict[str, tuple[str, ...]] = {}
        self._by_model = ModelCondition(condition.where, models) if condition.where else None

    def holds(self, message: PacketMessage) -> bool:
        if message.flags & SEALED:
            return True  # only the holder of the key can check a sealed payload
        if self._by_model is not None:
            return self._by_model.holds(message)
        return self.condition.content in bytes(message.payload)


class WantedInterests:
    """One thread at a time may change the interests, while others match messages or list the interests."""

    def __init__(self, models: ModelFinder, counters: Counters) -> None:
        self._models = models
        self._counters = counters
        self._table = InterestTable()
        self._slots: dict[Condition, _Slot] = {}
        self._by_number: dict[int, _Slot] = {}
        self._has_tags = False

    def add(self, topics: Sequence[str], condition: Condition, channels: Sequence[str] = ()) -> list[str]:
        """Returns the topics that are new under this condition."""
        if condition.where and condition.content:
            raise LocalProtocolError("interests have a condition on fields or on bytes, not both")
        parsed = [Interest.parse(topic) for topic in topics]
        slot = self._slots.get(condition)
        if slot is None:
            number = max(self._by_number, default=-1) + 1
            slot = self._slots[condition] = self._by_number[number] = _Slot(number, condition, self._models)
        fresh = [topic for topic in dict.fromkeys(topics) if topic not in slot.topics]
        for interest in parsed:
            self._table.add(interest, slot.number)
            self._has_tags = self._has_tags or interest.kind is InterestKind.TAG
        slot.topics |= dict.fromkeys(topics, tuple(channels))
        return fresh

    def remove(self, topics: Sequence[str], condition: Condition) -> None:
        slot = self._slots.get(condition)
        if slot is None:
            return
        for topic in topics:
            if slot.topics.pop(topic, None) is not None:
                self._table.remove(topic, slot.number)
        if not slot.topics:
            del self._slots[condition], self._by_number[slot.number]

    def parts(self) -> list[Interests]:
        """All interests, in parts that each fit a message to a filter module."""
        slots = [(slot.condition, dict(slot.topics)) for slot in list(self._slots.values())]
        return [
            part
            for condition, topics in slots
            for channels in dict.fromkeys(topics.values())
            for part in cut([topic for topic in topics if topics[topic] == channels], condition, channels)
        ]

    # Matching

    def chosen(self, batch: MessageBatch, application_id: int) -> MessageBatch:
        """The messages of a batch that match."""
        rows = batch.messages
        is_plain = not self._has_tags and set(self._slots) <= {Condition()} and not (rows["flags"] & DIRECT).any()
        if is_plain:
            ends, _ = self._table.match_batch(batch.data, rows["topic_offset"], rows["topic_size"])
            return batch.select(numpy.diff(ends) > 0)
        wanted = (self.wants(message, application_id) for message in batch)
        return batch.select(numpy.fromiter(wanted, numpy.bool_, len(batch)))

    def wants(self, message: PacketMessage, application_id: int) -> bool:
        try:
            if message.flags & DIRECT:
                return is_direct_to(message, application_id)
            tags = decode_tags(message.extensions.get(TAGS, b"")) if self._has_tags else ()
            numbers = self._table.match(message.topic, tags)
            return any(slot.holds(message) for number in numbers if (slot := self._by_number.get(number)) is not None)
        except (TopicError, PacketError, ModelError):
            self._counters.add("messages_dropped", cause=Cause.MESSAGE)
            return False

    def wants_topic(self, topic: str) -> bool:
        """True if a message on this topic could match."""
        return not topic or bool(self._table.match(topic)) or self._has_tags


def cut(topics: Sequence[str], condition: Condition, channels: Sequence[str] = ()) -> Iterator[Interests]:
    """The interests in parts that each fit a message; negative interests come first, so that no unwanted message is
    delivered."""
    part: list[str] = []
    size = 0
    for topic in sorted(topics, key=lambda text: not text.startswith("!")):
        topic_size = len(topic.encode()) + MSGPACK_SIZE
        if part and (size + topic_size > TOPICS_SIZE_MAX or len(part) == TOPICS_MAX):
            yield Interests(part, condition.where, condition.content, list(channels))
            part, size = [], 0
        part.append(topic)
        size += topic_size
    if part:
        yield Interests(part, condition.where, condition.content, list(channels))


def shipped_model(model_id: int, version: int) -> MessageModel | None:
    """A ModelFinder that knows the models that come with Penstock."""
    return next((model for model in map(shipped, shipped_names()) if model.id == model_id), None)
