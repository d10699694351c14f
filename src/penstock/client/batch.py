"""Many messages at once, as arrays by model."""

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, cast

import numpy
from numpy.typing import NDArray

from penstock.base.errors import LocalProtocolError
from penstock.capture.core.message_reader import M
from penstock.capture.core.rows import MessageRows
from penstock.capture.live.frames import Frames, ModelOrClass, batch_of_messages, batch_of_rows, only_model
from penstock.capture.live.reading import Models, OneModel
from penstock.middleware import Merged, MergedBatch, records_of
from penstock.model import Message, MessageModel
from penstock.model.schema import Prices
from penstock.wire import MessageBatch, PacketMessage

if TYPE_CHECKING:
    import pyarrow


class Batch(Frames, Generic[M]):
    """Messages received together. The arrays may be kept; iteration yields single messages in order, which are valid
    until the subscription is read again.
    """

    def __init__(self, content: MessageBatch | list[PacketMessage], models: Models | OneModel, feed: str = "") -> None:
        self.content = content
        """The batch as received, for forwarding; valid until the subscription is read again."""
        self.feed = feed
        """The feed of the messages."""
        self._models = models
        self.records: dict[MessageModel, NDArray[Any]] = {}
        """Records by model, as arrays of the model's dtype. Messages of another size or of an unknown model are only in
        the iteration.
        """
        for model_id, version in sorted(self._kinds()):
            model = models.get(model_id, version)
            if model is not None and model not in self.records:
                merged = MergedBatch(content) if isinstance(content, MessageBatch) else Merged(content)
                self.records[model] = records_of(merged, model)

    def _kinds(self) -> set[tuple[int, int]]:
        if isinstance(self.content, MessageBatch):
            rows = self.content.messages
            kinds = rows["model_id"].astype(numpy.uint32) << 16 | rows["model_version"]
            if len(kinds) and (kinds == kinds[0]).all():  # the ordinary case
                return {(int(kinds[0]) >> 16, int(kinds[0]) & 0xFFFF)}
            return {(kind >> 16, kind & 0xFFFF) for kind in numpy.unique(kinds).tolist()}
        return {(each.model_id, each.model_version) for each in self.content}

    def arrow(self, model: ModelOrClass | None = None, *, prices: Prices = "decimal") -> "pyarrow.RecordBatch":
        """Return the messages of a model, or of the only model, as an Arrow batch with `topic`, `seq` and the fields.
        Prices are exact decimals, or floats. Valid until the subscription is read again.
        """
        chosen = only_model(self.records, model)
        if isinstance(self.content, MessageBatch):
            memory = numpy.frombuffer(self.content.data, numpy.uint8)
            rows = MessageRows(memory, memory, self.content.messages)
            return batch_of_rows(rows, self.content.numbers(), chosen, prices)
        messages = [message for message in self if isinstance(message, Message) and message.model.id == chosen.id]
        return batch_of_messages(messages, chosen, prices)

    def _sample(self, count: int) -> list[Message]:
        try:
            return [message for message in itertools.islice(self, count) if isinstance(message, Message)]
        except LocalProtocolError:  # the subscription was read again: records without their topics
            rows = ((model, row) for model, records in self.records.items() for row in records)
            return [model.view(row.tobytes()) for model, row in itertools.islice(rows, count)]

    def __len__(self) -> int:
        return len(self.content)

    def __iter__(self) -> Iterator[M]:
        return cast(Iterator[M], map(self._models.read, self.content))
