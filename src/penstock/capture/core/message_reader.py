"""Messages as an application reads them: decoded with their model, or as bytes if the model is unknown."""

from typing import TypeAlias

from typing_extensions import TypeVar

from penstock.base.errors import ModelError
from penstock.capture.core._unread import UnreadMessage
from penstock.model import Message, MessageModel
from penstock.model.library import shipped, shipped_names
from penstock.wire import PacketMessage

__all__ = ["KnownModels", "Readable", "UnreadMessage"]

Readable: TypeAlias = Message | UnreadMessage
M = TypeVar("M", bound=Readable, default=Readable, covariant=True)
"""The messages of a subscription: those of one model, or all."""


class KnownModels:
    """Models by id: the shipped ones and others given here; no server is asked for more."""

    def __init__(self, *others: MessageModel) -> None:
        self._by_id = {model.id: model for model in (*map(shipped, shipped_names()), *others)}

    def read(self, message: PacketMessage) -> Message | None:
        """Return the message, decoded if its model is known and fits."""
        model = self._by_id.get(message.model_id)
        if model is None:
            return None
        try:
            return model.view(message.payload, message.model_version)
        except ModelError:
            return None
