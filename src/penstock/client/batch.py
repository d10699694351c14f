"""Many messages at once, as arrays by model."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, cast

import numpy
from numpy.typing import NDArray

from penstock.base.errors import ModelError
from penstock.capture.core.message_reader import M
from penstock.capture.live.reading import Models, OneModel
from penstock.middleware import Merged, MergedBatch, records_of
from penstock.model import MessageModel
from penstock.wire import MessageBatch, PacketMessage

if TYPE_CHECKING:
    import pyarrow


class Batch(Generic[M]):
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

    def arrow(self, model: MessageModel | None = None) -> "pyarrow.RecordBatch":
        """Return the records of a model, or of the only model, as an Arrow batch."""
        if model is None:
            if len(self.records) != 1:
                raise ModelError(f"the batch has records of {len(self.records)} models", hint="pass the model")
            (model,) = self.records
        return model.to_arrow(self.records[model])

    def __len__(self) -> int:
        return len(self.content)

    def __iter__(self) -> Iterator[M]:
        return cast(Iterator[M], map(self._models.read, self.content))
