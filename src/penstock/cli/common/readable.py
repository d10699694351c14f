"""Messages of strangers made fit to be read: by their model, and without anything a terminal would obey."""

import re

from penstock.base.errors import ModelError
from penstock.model import Message, MessageModel, shipped, shipped_names
from penstock.wire import PacketMessage

CONTROL = re.compile("[\x7f-\x9f]")
"""Control characters that JSON may hold as they are."""


class Models:
    """The models by their ids: those that are shipped, and others."""

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


def printable(text: str) -> str:
    """The text, if it can do no harm to a terminal; else with its control characters escaped."""
    return text if text.isprintable() else repr(text)


def harmless_json(text: str) -> str:
    """The same JSON, in which no control character is left."""
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
