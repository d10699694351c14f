"""Messages as an application reads them, by models that are asked for when they are needed."""

import hashlib
import time
from collections.abc import Callable, Iterable
from typing import TypeAlias

from penstock.base.counters import Cause
from penstock.base.errors import FilterExpressionError, ModelError, PenstockError
from penstock.base.limits import MODEL_IN_BAND_SIZE_MAX
from penstock.base.log import logger
from penstock.model import Message, MessageModel
from penstock.model.library import shipped, shipped_names
from penstock.topics import Predicate
from penstock.wire import Extension, Origin, PacketMessage, decode_origin

ASK_AGAIN_SECONDS = 5.0
REPORT_AGAIN_SECONDS = 1.0
JUDGED_MAX = 1_024
WHY_SIZE_MAX = 500
ORIGIN = int(Extension.ORIGIN)

log = logger("reading")


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


class Models:
    """Models by id: those that came from the server, those in band, those shipped; `ask` asks the server.

    A model is asked for once when it is met first, and again when a newer version of it is met; who does not answer is
    left in peace for a while, and the messages are read by what is known. What the server says counts more than what
    came in band, which anybody may have sent.
    """

    def __init__(self, ask: Callable[[int, int], MessageModel]) -> None:
        self._ask = ask
        self._known: dict[int, MessageModel] = {}
        self._in_band: dict[int, MessageModel] = {}
        self._asked: dict[tuple[int, int], float] = {}
        self._shipped = {shipped(name).id: shipped(name) for name in shipped_names()}
        self._judged: dict[bytes, Cause | None] = {}  # documents in band, by their digests: most of them come again
        self._report_from = 0.0

    def get(self, model_id: int, version: int) -> MessageModel | None:
        """The model to read such a message with: of its version or a newer one, else of an older one, else None."""
        model = self._newest(model_id)
        if model is not None and model.version >= version:
            return model
        if model_id == 0:
            return None
        self.confirm(model_id, version)
        return self._newest(model_id) or self._shipped.get(model_id)

    def confirm(self, model_id: int, version: int) -> None:
        """Ask the server for what it has not told yet, whatever came in band."""
        known = self._known.get(model_id)
        now = time.monotonic()
        asked = self._asked.get((model_id, version), -ASK_AGAIN_SECONDS)
        if (known is not None and known.version >= version) or now - asked < ASK_AGAIN_SECONDS:
            return
        self._asked[model_id, version] = now
        try:
            self.learn(self._ask(model_id, version))
        except PenstockError as error:
            log.warning("model_not_found", model_id=model_id, version=version, error=str(error))

    def learn(self, model: MessageModel) -> None:
        """The server's word: a model that is new, or a newer version that programs with the older one can read."""
        known = self._known.get(model.id)
        if known is not None and (model.version <= known.version or model.incompatibilities(known)):
            return
        self._known[model.id] = model
        self._judged.clear()
        told = self._in_band.get(model.id)
        if told is not None and (contradictions := _contradictions(told, model)):
            log.warning("model_in_band_contradicted", model=told.name, model_id=told.id, why=contradictions[0])
            del self._in_band[model.id]

    def learn_in_band(self, content: bytes | memoryview) -> Cause | None:
        """From the stream itself; why it is not taken, if it is not."""
        if len(content) > MODEL_IN_BAND_SIZE_MAX:
            return self._refuse_in_band(Cause.LENGTH, f"{len(content)} bytes are too many")
        digest = hashlib.blake2b(content, digest_size=16).digest()
        if digest not in self._judged:
            if len(self._judged) >= JUDGED_MAX:
                self._judged.clear()
            self._judged[digest] = self._judge(bytes(content))
        return self._judged[digest]

    def _judge(self, content: bytes) -> Cause | None:
        try:
            model = MessageModel.parse(content.decode(), where="model in band")
        except (PenstockError, UnicodeDecodeError) as error:
            return self._refuse_in_band(Cause.MESSAGE, str(error))
        told = self._in_band.get(model.id)
        for other in (self._known.get(model.id), told, self._shipped.get(model.id)):
            if other is not None and (contradictions := _contradictions(model, other)):
                return self._refuse_in_band(Cause.MODEL_CONFLICT, f"{model.name}: {contradictions[0]}")
        if told is None or model.version > told.version:
            self._in_band[model.id] = model
            log.info("model_in_band", model=model.name, model_id=model.id, version=model.version)
        return None

    def _refuse_in_band(self, cause: Cause, why: str) -> Cause:
        """All are counted; who sends many does not fill the log."""
        now = time.monotonic()
        if now >= self._report_from:
            self._report_from = now + REPORT_AGAIN_SECONDS
            log.warning("model_in_band_refused", cause=str(cause), why=why[:WHY_SIZE_MAX])
        return cause

    def _newest(self, model_id: int) -> MessageModel | None:
        """Of those that were told; of the same version, the server's."""
        known, told = self._known.get(model_id), self._in_band.get(model_id)
        if known is None or (told is not None and told.version > known.version):
            return told
        return known

    def check_condition(self, where: str, kinds: Iterable[tuple[int, int]]) -> None:
        """Refuse a condition that none of these models (id and version) can meet, with what is wrong with it."""
        failure: FilterExpressionError | None = None
        for model in [self.get(model_id, version) for model_id, version in kinds]:
            if model is None:
                return
            try:
                Predicate.compile(where, model)
                return
            except FilterExpressionError as error:
                failure = error
        if failure is not None:
            raise failure

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


def _contradictions(one: MessageModel, other: MessageModel) -> list[str]:
    """Why not both can be right, whichever is the newer one."""
    newer, older = (one, other) if one.version >= other.version else (other, one)
    return newer.incompatibilities(older)
