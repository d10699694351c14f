"""Many messages at once, as arrays by model."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from penstock.base.errors import ModelError
from penstock.capture.reading import Models, Readable
from penstock.middleware import Merged, MergedBatch, records_of
from penstock.model import MessageModel
from penstock.wire import MessageBatch, PacketMessage

if TYPE_CHECKING:
    import pyarrow


class Batch:
    """The messages that came together. Their arrays are to keep; iterating gives them one by one, in their order, as
    long as the subscription was not asked for more."""

    def __init__(self, content: MessageBatch | list[PacketMessage], models: Models, feed: str = "") -> None:
        self.content = content
        """As it was received, for whoever passes it on; good as long as the subscription was not asked for more."""
        self.feed = feed
        """The feed that they came from."""
        self._models = models
        self.records: dict[MessageModel, NDArray[Any]] = {}
        """By model, of the model's dtype. Messages of another size, or of no known model, are only in the iteration."""
        for model_id, version in sorted(self._kinds()):
            model = models.get(model_id, version)
            if model is not None and model not in self.records:
                merged = MergedBatch(content) if isinstance(content, MessageBatch) else Merged(content)
                self.records[model] = records_of(merged, model)

    def _kinds(self) -> set[tuple[int, int]]:
        if isinstance(self.content, MessageBatch):
            rows = self.content.messages
            return set(zip(rows["model_id"].tolist(), rows["model_version"].tolist(), strict=True))
        return {(each.model_id, each.model_version) for each in self.content}

    def arrow(self, model: MessageModel | None = None) -> "pyarrow.RecordBatch":
        """The records of a model, or of the only one, as an Arrow batch."""
        if model is None:
            if len(self.records) != 1:
                raise ModelError(f"the batch has messages of {len(self.records)} models", hint="name one of them")
            (model,) = self.records
        return model.to_arrow(self.records[model])

    def __len__(self) -> int:
        return len(self.content)

    def __iter__(self) -> Iterator[Readable]:
        return map(self._models.read, self.content)
