"""Messages as an application reads them, by models that are asked for when they are needed."""

import time
from collections.abc import Callable
from typing import TypeAlias

from penstock.base.errors import ModelError, PenstockError
from penstock.base.limits import DOCUMENT_SIZE_MAX
from penstock.base.log import logger
from penstock.model import Message, MessageModel
from penstock.model.library import shipped, shipped_names
from penstock.wire import Extension, Origin, PacketMessage, decode_origin

MODEL_TOPIC = "penstock.model"
"""A model in band: the content is its TOML document."""

ASK_AGAIN_SECONDS = 5.0
ORIGIN = int(Extension.ORIGIN)

log = logger("client.reading")


class UnreadMessage:
    """A message whose model is not known: bytes, and what is known of them."""

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

    def __repr__(self) -> str:
        return f"<UnreadMessage {self.topic} #{self.seq}, {len(self.payload)} bytes of model {self.model_id}>"


Readable: TypeAlias = Message | UnreadMessage


class Models:
    """Models by id: those that came with a subscription or in band, those shipped, and those that `ask` finds.

    A model is asked for once when it is met first, and again when a newer version of it is met; who does not answer is
    left in peace for a while, and the messages are read by what is known.
    """

    def __init__(self, ask: Callable[[int, int], MessageModel]) -> None:
        self._ask = ask
        self._known: dict[int, MessageModel] = {}
        self._asked: dict[tuple[int, int], float] = {}
        self._shipped = {shipped(name).id: shipped(name) for name in shipped_names()}

    def get(self, model_id: int, version: int) -> MessageModel | None:
        """The model to read such a message with: of its version or a newer one, else of an older one, else None."""
        model = self._known.get(model_id)
        if model is not None and model.version >= version:
            return model
        if model_id == 0:
            return None
        now = time.monotonic()
        if now - self._asked.get((model_id, version), -ASK_AGAIN_SECONDS) >= ASK_AGAIN_SECONDS:
            self._asked[model_id, version] = now
            try:
                self.learn(self._ask(model_id, version))
            except PenstockError as error:
                log.warning("model_not_found", model_id=model_id, version=version, error=str(error))
        return self._known.get(model_id) or self._shipped.get(model_id)

    def learn(self, model: MessageModel) -> None:
        """A model that is new, or a newer version that programs with the older one can read."""
        known = self._known.get(model.id)
        if known is None or (model.version > known.version and not model.incompatibilities(known)):
            self._known[model.id] = model

    def learn_text(self, content: bytes | memoryview) -> None:
        """From the stream itself; what is no model is not taken."""
        if len(content) > DOCUMENT_SIZE_MAX:
            return
        try:
            self.learn(MessageModel.parse(bytes(content).decode(), where="model in band"))
        except (PenstockError, UnicodeDecodeError) as error:
            log.warning("model_in_band_refused", error=str(error))

    def read(self, message: PacketMessage) -> Readable:
        """The message with its fields; raises ModelError when it is too short for its model."""
        body = message.extensions.get(ORIGIN)
        source = None if body is None else decode_origin(body)
        seq = message.sequence if source is None else source.message_sequence
        version = message.model_version
        model = self.get(message.model_id, version)
        if model is None:
            return UnreadMessage(message, seq, source)
        if not version:
            raise ModelError(f"a message of {model.name} says no version", where=message.topic)
        record = model.view(message.payload, version)
        record.topic, record.seq, record.source = message.topic, seq, source
        return record
