"""Decode messages for an application, with models that are fetched on demand."""

import hashlib
import time
from collections.abc import Callable, Collection, Iterable

from penstock.base.counters import Cause
from penstock.base.errors import FilterExpressionError, ModelError, PenstockError
from penstock.base.limits import MODEL_IN_BAND_SIZE_MAX
from penstock.base.log import logger
from penstock.capture.core.message_reader import Readable, UnreadMessage
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


class Models:
    """Models by id, from the server, in band and shipped; `ask` fetches a model from the server.

    A model is requested when it is first seen, and when a newer version of it is seen. Without an answer, the next
    request follows after a pause, and messages are decoded with the known version. The server's model takes precedence
    over a model in band, which any host may have sent.
    """

    def __init__(self, ask: Callable[[int, int], MessageModel]) -> None:
        self._ask = ask
        self._known: dict[int, MessageModel] = {}
        self._in_band: dict[int, MessageModel] = {}
        self._asked: dict[tuple[int, int], float] = {}
        self._shipped = {shipped(name).id: shipped(name) for name in shipped_names()}
        self._judged: dict[bytes, Cause | None] = {}  # documents in band by digest, because most of them are repeated
        self._report_from = 0.0
        self.generation = 0
        """Changes when the model for a message may have changed."""
        self.only_id = 0
        """The id of the only model that is read; 0: any."""

    def get(self, model_id: int, version: int) -> MessageModel | None:
        """Return the model for decoding: of the message's version or newer, else of an older version, else None."""
        model = self._newest(model_id)
        if model is not None and model.version >= version:
            return model
        if model_id == 0:
            return None
        self.confirm(model_id, version)
        return self._newest(model_id) or self._shipped.get(model_id)

    def exactly(self, model_id: int, version: int) -> MessageModel | None:
        """Return a known model of the message's version or newer; None if the server must be asked."""
        model = self._newest(model_id)
        return model if model is not None and model.version >= version >= 1 else None

    def confirm(self, model_id: int, version: int) -> None:
        """Ask the server for a model that it has not sent yet, even if a model in band is known."""
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
        """Add a model from the server: a new one, or a newer version that is compatible with the known one."""
        known = self._known.get(model.id)
        if known is not None and (model.version <= known.version or model.incompatibilities(known)):
            return
        self._known[model.id] = model
        self.generation += 1
        self._judged.clear()
        told = self._in_band.get(model.id)
        if told is not None and (contradictions := _contradictions(told, model)):
            log.warning("model_in_band_contradicted", model=told.name, model_id=told.id, why=contradictions[0])
            del self._in_band[model.id]
            self.generation += 1

    def learn_in_band(self, content: bytes | memoryview) -> Cause | None:
        """Add a model from the stream; return the cause if the model is refused."""
        if len(content) > MODEL_IN_BAND_SIZE_MAX:
            return self._refuse_in_band(Cause.LENGTH, f"the document of {len(content)} bytes is too large")
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
            self.generation += 1
            log.info("model_in_band", model=model.name, model_id=model.id, version=model.version)
        return None

    def _refuse_in_band(self, cause: Cause, why: str) -> Cause:
        """Count every refusal; log only some, so that a sender of many models does not flood the log."""
        now = time.monotonic()
        if now >= self._report_from:
            self._report_from = now + REPORT_AGAIN_SECONDS
            log.warning("model_in_band_refused", cause=str(cause), why=why[:WHY_SIZE_MAX])
        return cause

    def _newest(self, model_id: int) -> MessageModel | None:
        """Return the newest known model; of equal versions, the server's."""
        known, told = self._known.get(model_id), self._in_band.get(model_id)
        if known is None or (told is not None and told.version > known.version):
            return told
        return known

    def check_condition(self, where: str, kinds: Iterable[tuple[int, int]]) -> None:
        """Refuse a condition that is invalid for all of these models (id and version)."""
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

    def check_model(self, model: MessageModel, streams: Iterable[Collection[tuple[int, int]]]) -> None:
        """Refuse a model that none of these streams has, or that contradicts theirs. `streams` are the models (id and
        version) of each stream; a stream without any is not known to lack the model.
        """
        kinds = list(streams)
        versions = {version for each in kinds for model_id, version in each if model_id == model.id}
        if kinds and all(kinds) and not versions:
            names = {self._name(model_id, version) for each in kinds for model_id, version in each}
            raise ModelError(
                f"no message on these topics is a {model.name} (model {model.id})",
                hint=f"the models of their streams: {', '.join(sorted(names))}",
            )
        for known in [self.get(model.id, version) for version in sorted(versions)]:
            if known is not None and (contradictions := _contradictions(model, known)):
                raise ModelError(
                    f"the class {model.class_name} does not fit the server's model {known.name} version "
                    f"{known.version}: {contradictions[0]}",
                    hint="generate the class from the server's model with `penstock model stubs`",
                )

    def _name(self, model_id: int, version: int) -> str:
        model = self.get(model_id, version)
        return str(model_id) if model is None else model.name

    def read(self, message: PacketMessage) -> Readable:
        """Decode the message; raises ModelError when it is too short for its model."""
        body = message.extensions.get(ORIGIN)
        source = None if body is None else decode_origin(body)
        model = self.get(message.model_id, message.model_version)
        if model is None:
            seq = message.sequence if source is None else source.message_sequence
            return UnreadMessage(message, seq, source)
        return _decode(model, message, source)


class OneModel:
    """Reads the messages of one model, in place of Models. Messages of other models are counted and left out."""

    generation = 0

    def __init__(self, model: MessageModel) -> None:
        self._model = model
        self.only_id = model.id
        self.others = 0
        """Messages of other models that read() got."""

    def get(self, model_id: int, version: int) -> MessageModel | None:
        return self._model if model_id == self._model.id else None

    def exactly(self, model_id: int, version: int) -> MessageModel | None:
        return self._model if model_id == self._model.id and version >= 1 else None

    def read(self, message: PacketMessage) -> Message | None:
        """Decode the message; None for another model. Raises ModelError when it is too short for its model."""
        if message.model_id != self._model.id:
            self.others += 1
            return None
        body = message.extensions.get(ORIGIN)
        return _decode(self._model, message, None if body is None else decode_origin(body))


def _decode(model: MessageModel, message: PacketMessage, source: Origin | None) -> Message:
    version = message.model_version
    if not version:
        raise ModelError(f"a message of {model.name} has no model version", where=message.topic)
    record = model.view(message.payload, version)
    record.topic, record.source = message.topic, source
    record.seq = message.sequence if source is None else source.message_sequence
    return record


def _contradictions(one: MessageModel, other: MessageModel) -> list[str]:
    """Return the reasons why the two models are incompatible, whichever is newer."""
    newer, older = (one, other) if one.version >= other.version else (other, one)
    return newer.incompatibilities(older)
