"""What stands between the streams and the application: topics, grants, seals, conditions.

Nothing passes that the subscription did not ask for or its token does not grant, whatever the network brings.
"""

from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

from penstock.base.counters import Cause, Counters
from penstock.base.errors import ModelError, PacketError, SealError, SealKeyError, TopicError
from penstock.capture.reading import ORIGIN, Models
from penstock.middleware.core.direct import DIRECT
from penstock.middleware.core.reserved_topics import MODEL_TOPIC
from penstock.security import Entitlement, Opener, StreamKey, StreamKeyRing
from penstock.topics import InterestTable
from penstock.topics.modelcondition import ModelCondition
from penstock.wire import Extension, MessageBatch, MessageFlag, PacketMessage, decode_origin, decode_seal

SEALED = int(MessageFlag.SEALED)
SPECIAL = SEALED | DIRECT
SEAL = int(Extension.SEAL)


class Gate:
    """For what one feed gives to one subscription at one delay."""

    def __init__(self, topics: Sequence[str], where: str | None, models: Models, counters: Counters) -> None:
        self._models = models
        self._condition = None if where is None else ModelCondition(where, models.get)
        self._counters = counters
        self._ring = StreamKeyRing()
        self._opener = Opener(self._ring)
        self._wanted = InterestTable()
        self._entitlement = Entitlement(())
        self._delay_s = 0
        self.requires_seal = False
        """Whether only sealed messages are taken: of a sealed feed by multicast, where anybody may send others."""
        self.want(topics)

    def want(self, topics: Sequence[str]) -> None:
        """Other topics from now on."""
        table = InterestTable()
        for topic in topics:
            table.add(topic, 0)
        if topics and all(topic.startswith("!") for topic in topics):
            table.add(">", 0)
        self._wanted = table

    def allow(self, entitlement: Entitlement, delay_s: int) -> None:
        """Grants as the token has them; what comes here is at least `delay_s` old."""
        self._entitlement = entitlement
        self._delay_s = delay_s

    def hold_keys(self, keys: Sequence[StreamKey]) -> None:
        for key in keys:
            self._ring.add(key)

    def drop_keys(self) -> None:
        """Forget everything that opens sealed messages."""
        self._ring = StreamKeyRing()
        self._opener = Opener(self._ring)

    def choose(self, batch: MessageBatch) -> MessageBatch | list[PacketMessage]:
        """Those of a batch that pass, as long as they can be told without looking at one message at a time."""
        rows = batch.messages
        if self.requires_seal or self._delay_s or (rows["flags"] & SPECIAL).any() or not self._is_plain(rows):
            return [message for message in batch if self.passes(message)]
        offsets, sizes = rows["topic_offset"], rows["topic_size"]
        may = self._entitlement.live_mask(batch.data, offsets, sizes)
        ends, _ = self._wanted.match_batch(batch.data, offsets, sizes)
        wants = numpy.diff(ends) > 0
        refused = int(numpy.count_nonzero(wants & ~may))
        if refused:
            self._counters.add("messages_dropped", refused, cause=Cause.REFUSED)
        chosen = batch.select(wants & may)
        return chosen if self._condition is None else chosen.select(self._condition.select(chosen))

    def passes(self, message: PacketMessage, *, by_service: bool = False) -> bool:
        """Whether a message is for this subscription. A sealed one passes; open() and meets() judge the rest. What an
        adapter's service gave, e.g. an image, need not be sealed."""
        if message.flags & DIRECT:
            return False  # to one application, not to subscribers
        is_sealed = bool(message.flags & SEALED)
        if self.requires_seal and not is_sealed and not by_service:
            self._counters.add("messages_dropped", cause=Cause.AUTHENTICATION)
            return False
        if message.topic == MODEL_TOPIC:
            return is_sealed or self.meets(message)
        try:
            if not self._wanted.match(message.topic):
                return False
            delay_s = self._entitlement.receive_delay_s(message.topic)
        except TopicError:
            self._counters.add("messages_dropped", cause=Cause.MESSAGE)
            return False
        if delay_s is None or delay_s > self._delay_s:
            self._counters.add("messages_dropped", cause=Cause.REFUSED)
            return False
        if delay_s < self._delay_s:
            return False  # it comes sooner elsewhere
        return is_sealed or self.meets(message)

    def is_of_the_past(self, message: PacketMessage) -> bool:
        """Whether a message is sealed with an earlier key than any that is held: with one from before the
        subscription, which never comes."""
        lowest = self._ring.lowest_id
        try:
            return lowest is not None and decode_seal(message.extensions.get(SEAL, b"")).key_id < lowest
        except PacketError:
            return False

    def open(self, message: PacketMessage) -> PacketMessage | None:
        """The message as it was before it was sealed; None if it was tampered with. Without its key, SealKeyError."""
        extensions = message.extensions
        try:
            opened = self._opener.open(
                bytes(message.payload),
                decode_seal(extensions.get(SEAL, b"")),
                publisher_id=message.publisher_id,
                epoch=message.epoch,
                topic=message.topic.encode(),
                model_id=message.model_id,
                model_version=message.model_version,
                origin=decode_origin(extensions[ORIGIN]) if ORIGIN in extensions else None,
            )
        except SealKeyError:
            raise
        except (SealError, PacketError):
            self._counters.add("messages_dropped", cause=Cause.AUTHENTICATION)
            return None
        return message.with_payload(opened, message.flags & ~SEALED)

    def meets(self, message: PacketMessage) -> bool:
        """Whether the message meets the condition, if there is one. A model in band is learned, and goes no further."""
        if message.topic == MODEL_TOPIC:
            self._learn(message)
            return False
        if self._condition is None:
            return True
        try:
            return self._condition.holds(message)
        except ModelError:
            self._counters.add("messages_dropped", cause=Cause.MESSAGE)
            return False

    def _learn(self, message: PacketMessage) -> None:
        """From a model in band; one that claims to come from a source is no adapter's."""
        refused = Cause.UNEXPECTED if ORIGIN in message.extensions else self._models.learn_in_band(message.payload)
        if refused is not None:
            self._counters.add("messages_dropped", cause=refused)

    def _is_plain(self, rows: NDArray[numpy.void]) -> bool:
        """Whether none of the messages is one of our own, whose model would have to be learned."""
        return not (rows["model_id"] == 0).any()
