"""Lines of text published as messages: JSON objects with the fields of a model, or plain lines."""

from typing import Protocol

import msgspec

from penstock.base.errors import ConfigurationError, ModelError
from penstock.middleware import OutgoingBatch
from penstock.model import Message, MessageModel


class Output(Protocol):
    """A destination of messages."""

    def publish(self, topic: str, payload: bytes | Message) -> object: ...

    def publish_batch(self, batch: OutgoingBatch) -> object: ...


class LinePublisher:
    """Publishes lines: as messages of a model, or unchanged without a model."""

    def __init__(self, model: MessageModel | None, topic: str) -> None:
        self._model = model
        self._topic = topic
        self.skipped = 0

    def publish(self, line: bytes, publisher: Output) -> None:
        if self._model is None:
            publisher.publish(self._topic, line)
            return
        try:
            fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
            topic = msgspec.json.decode(fields.pop("topic"), type=str) if "topic" in fields else self._topic
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise ModelError(f"is not a JSON object of fields: {error}") from None
        if not topic:
            raise ConfigurationError("has no topic", hint='give --topic, or a "topic" key in every line')
        publisher.publish(topic, self._model.from_json(msgspec.json.encode(fields)))
