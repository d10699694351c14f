"""A condition on messages of several models: true if the message's model has the fields and the values match."""

from collections.abc import Callable

import numpy
from numpy.typing import NDArray
from typing_extensions import Buffer

from penstock.base.errors import FilterExpressionError
from penstock.model import MessageModel
from penstock.topics.predicate import Predicate
from penstock.wire import MessageBatch, PacketMessage


class ModelCondition:
    """`models` finds the model for an id and a version; newer versions may appear later."""

    def __init__(self, where: str, models: Callable[[int, int], MessageModel | None]) -> None:
        self.where = where
        self._models = models
        self._predicates: dict[tuple[int, int], tuple[MessageModel, Predicate | None]] = {}

    def holds(self, message: PacketMessage) -> bool:
        """Test one message; raises ModelError if it is too short for its model."""
        predicate = self._predicate(message.model_id, message.model_version)
        return predicate is not None and predicate(predicate.model.view(message.payload, message.model_version))

    def select(self, batch: MessageBatch) -> NDArray[numpy.bool_]:
        """Return a mask of the matching messages."""
        return self.select_at(batch.data, batch.messages)

    def select_at(self, data: Buffer, rows: NDArray[numpy.void]) -> NDArray[numpy.bool_]:
        """Return a mask of the matching messages in `data`; rows have model_id, model_version, payload_offset and
        payload_size.
        """
        holds = numpy.zeros(len(rows), numpy.bool_)
        kinds = rows["model_id"].astype(numpy.uint32) << 16 | rows["model_version"]
        for kind in numpy.unique(kinds).tolist():
            if (predicate := self._predicate(kind >> 16, kind & 0xFFFF)) is not None:
                which = numpy.flatnonzero(kinds == kind)
                holds[which] = predicate.select_at(data, rows["payload_offset"][which], rows["payload_size"][which])
        return holds

    def _predicate(self, model_id: int, version: int) -> Predicate | None:
        """Return the condition for such messages; None if their model is unknown or lacks the fields."""
        model = self._models(model_id, version)
        if model is None or version < 1:
            return None
        key = (model_id, min(version, model.version))
        known = self._predicates.get(key)
        if known is None or known[0] is not model:
            known = self._predicates[key] = (model, _compiled(self.where, model, key[1]))
        return known[1]


def _compiled(where: str, model: MessageModel, version: int) -> Predicate | None:
    try:
        return Predicate.compile(where, model, version)
    except FilterExpressionError:
        return None
