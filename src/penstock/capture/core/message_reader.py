"""Messages as an application reads them: decoded with their model, or as bytes if the model is unknown."""

from typing import TYPE_CHECKING, Any, TypeAlias

from typing_extensions import TypeVar

from penstock.base.errors import ModelError
from penstock.model import Message, MessageModel
from penstock.model.library import shipped, shipped_names
from penstock.wire import Origin, PacketMessage


class UnreadMessage:
    """A message whose model is unknown: its bytes and header."""

    __slots__ = ("model_id", "model_version", "payload", "seq", "source", "topic")

    model = None

    def __init__(self, message: PacketMessage, seq: int, source: Origin | None) -> None:
        self.topic = message.topic
        self.seq = seq
        self.source = source
        self.model_id = message.model_id
        self.model_version = message.model_version
        self.payload = message.payload

    def __bytes__(self) -> bytes:
        return bytes(self.payload)

    if TYPE_CHECKING:  # so that programs that know their messages can read fields without a check

        def __getattr__(self, name: str) -> Any: ...

    def __repr__(self) -> str:
        return f"<UnreadMessage {self.topic} #{self.seq}, {len(self.payload)} bytes of model {self.model_id}>"


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
