"""Messages as an application reads them: decoded by their model, or unread where the model is unknown."""

from typing import TypeAlias

from penstock.base.errors import ModelError
from penstock.capture.core._unread import UnreadMessage
from penstock.model import Message, MessageModel
from penstock.model.library import shipped, shipped_names
from penstock.wire import PacketMessage

__all__ = ["KnownModels", "Readable", "UnreadMessage"]

Readable: TypeAlias = Message | UnreadMessage


class KnownModels:
    """Models by id: those that are shipped, and others; nobody is asked for more."""

    def __init__(self, *others: MessageModel) -> None:
        self._by_id = {model.id: model for model in (*map(shipped, shipped_names()), *others)}

    def read(self, message: PacketMessage) -> Message | None:
        """The message by its model, if that is known and fits."""
        model = self._by_id.get(message.model_id)
        if model is None:
            return None
        try:
            return model.view(message.payload, message.model_version)
        except ModelError:
            return None
