"""The gate between the streams and the application: topics, grants, seals, conditions.

Only messages that the subscription asked for and its token grants pass, whatever arrives from the network.
"""

from collections.abc import Sequence

from penstock.base.clock import random_bytes
from penstock.base.counters import Cause, Counters
from penstock.base.errors import ModelError, PacketError, SealError, SealKeyError, TopicError
from penstock.capture.live.reading import ORIGIN, Models
from penstock.client import _topic_gate
from penstock.client._topic_gate import TopicGate
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
        self.by_topic = by_topic = TopicGate(int.from_bytes(random_bytes(8), "big"), SPECIAL, self._verdict)
        counters.watch("messages_dropped", lambda: by_topic.refused, cause=Cause.REFUSED)
        counters.watch("messages_dropped", lambda: by_topic.malformed, cause=Cause.MESSAGE)
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
        self.by_topic.forget()

    def allow(self, entitlement: Entitlement, delay_s: int) -> None:
        """Set the grants of the token; messages that pass must be at least `delay_s` old."""
        self._entitlement = entitlement
        self._delay_s = delay_s
        self.by_topic.forget()

    def hold_keys(self, keys: Sequence[StreamKey]) -> None:
        for key in keys:
            self._ring.add(key)

    def drop_keys(self) -> None:
        """Discard all keys for sealed messages."""
        self._ring = StreamKeyRing()
        self._opener = Opener(self._ring)

    @property
    def is_by_topic(self) -> bool:
        """True if `by_topic` decides on ordinary messages, without a seal or a condition."""
        return self._condition is None and not self.requires_seal

    def choose(self, batch: MessageBatch) -> MessageBatch | list[PacketMessage]:
        """Return the messages of a batch that pass, as a batch if that can be decided without looking at single
        messages.
        """
        chosen = None if self.requires_seal else self.by_topic.choose(batch)
        if chosen is None:
            return [message for message in batch if self.passes(message)]
        if self._condition is None or not len(chosen):
            return chosen
        return chosen.select(self._condition.select(chosen))

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
        match self._verdict(message.topic):
            case _topic_gate.WANTED:
                return is_sealed or self.meets(message)
            case _topic_gate.REFUSED:
                self._counters.add("messages_dropped", cause=Cause.REFUSED)
            case _topic_gate.MALFORMED:
                self._counters.add("messages_dropped", cause=Cause.MESSAGE)
        return False

    def _verdict(self, topic: str) -> int:
        """Return the verdict on ordinary messages with this topic."""
        if topic == MODEL_TOPIC:
            return _topic_gate.UNUSUAL  # learned by meets()
        try:
            if not self._wanted.match(topic):
                return _topic_gate.UNWANTED
            delay_s = self._entitlement.receive_delay_s(topic)
        except TopicError:
            return _topic_gate.MALFORMED
        if delay_s is None or delay_s > self._delay_s:
            return _topic_gate.REFUSED
        # a message with less delay is delivered by another stream
        return _topic_gate.WANTED if delay_s == self._delay_s else _topic_gate.UNWANTED

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
        """Learn a model in band; ignore a model with an ORIGIN, because no adapter sends one."""
        refused = Cause.UNEXPECTED if ORIGIN in message.extensions else self._models.learn_in_band(message.payload)
        if refused is not None:
            self._counters.add("messages_dropped", cause=refused)
