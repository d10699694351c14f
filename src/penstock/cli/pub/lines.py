"""Lines of text: read from a descriptor by a reader that can be stopped while it waits, and published as messages: JSON
objects with the fields of a model, or plain lines."""

import os
import select
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from penstock.base.errors import ConfigurationError, LimitError, ModelError
from penstock.middleware import OutgoingBatch
from penstock.model import Message, MessageModel

LOOK_SECONDS = 0.1


def numbered_lines(descriptor: int, size_max: int, is_over: Callable[[], bool]) -> Iterator[tuple[int, bytes]]:
    """Yield (1, first line), (2, second line) and so on, without line ends. Raise LimitError if a line is too long."""
    number, pending = 0, b""
    while not is_over():
        if not select.select([descriptor], [], [], LOOK_SECONDS)[0]:
            continue
        data = os.read(descriptor, 65_536)
        if not data:
            break
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            number += 1
            yield number, line.removesuffix(b"\r")
            if is_over():
                return
        if len(pending) > size_max:
            raise LimitError(f"is longer than {size_max} bytes", where=f"line {number + 1}")
    if pending and not is_over():
        yield number + 1, pending


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
