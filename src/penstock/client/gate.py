"""The gate between the streams and the application: topics, grants, seals, conditions.

Only messages that the subscription asked for and its token grants pass, whatever arrives from the network.
"""

from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

from penstock.base.counters import Cause, Counters
from penstock.base.errors import ModelError, PacketError, SealError, SealKeyError, TopicError
from penstock.capture.live.reading import ORIGIN, Models
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
    """The gate for one feed, one subscription and one delay."""

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
        """True if only sealed messages are accepted: for a sealed feed by multicast, where any host could send
        others.
        """
        self.learns_models = True
        """False if models in band are ignored: a client's publisher cannot define models for others."""
        self.want(topics)

    def want(self, topics: Sequence[str]) -> None:
        """Set the wanted topics."""
        table = InterestTable()
        for topic in topics:
            table.add(topic, 0)
        if topics and all(topic.startswith("!") for topic in topics):
            table.add(">", 0)
        self._wanted = table

    def allow(self, entitlement: Entitlement, delay_s: int) -> None:
        """Set the grants of the token; messages that pass must be at least `delay_s` old."""
        self._entitlement = entitlement
        self._delay_s = delay_s

    def hold_keys(self, keys: Sequence[StreamKey]) -> None:
        for key in keys:
            self._ring.add(key)

    def drop_keys(self) -> None:
        """Discard all keys for sealed messages."""
        self._ring = StreamKeyRing()
        self._opener = Opener(self._ring)

    def choose(self, batch: MessageBatch) -> MessageBatch | list[PacketMessage]:
        """Return the messages of a batch that pass, as a batch if that can be decided without looking at single
        messages.
        """
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
        """True if a message is for this subscription. Sealed messages pass; open() and meets() decide later. A message
        from an adapter's service, such as an image, need not be sealed.
        """
        if message.flags & DIRECT:
            return False  # addressed to one application, not to subscribers
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
            return False  # another stream delivers the message with less delay
        return is_sealed or self.meets(message)

    def is_of_the_past(self, message: PacketMessage) -> bool:
        """True if the message's key is older than all available ones: a key from before the subscription, which never
        arrives.
        """
        lowest = self._ring.lowest_id
        try:
            return lowest is not None and decode_seal(message.extensions.get(SEAL, b"")).key_id < lowest
        except PacketError:
            return False

    def open(self, message: PacketMessage) -> PacketMessage | None:
        """Return the decrypted message; None if it was tampered with. Raises SealKeyError without the key."""
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
        """True if the message meets the condition, if there is one. A model in band is learned and does not pass."""
        if message.topic == MODEL_TOPIC:
            if self.learns_models:
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
        """Learn a model in band; ignore one with a source, which no adapter sends."""
        refused = Cause.UNEXPECTED if ORIGIN in message.extensions else self._models.learn_in_band(message.payload)
        if refused is not None:
            self._counters.add("messages_dropped", cause=refused)

    def _is_plain(self, rows: NDArray[numpy.void]) -> bool:
        """True if no message is a control message with a model to learn."""
        return not (rows["model_id"] == 0).any()
