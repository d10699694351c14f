"""The same datagrams through the client's compiled pipeline, and message by message."""

import random
from collections.abc import Iterable, Sequence
from typing import Any

from client_kit import QUOTE, STREAM_ID, TERM, content
from penstock.base.clock import SystemRandomness
from penstock.base.counters import Cause, Counters
from penstock.base.errors import ModelError, NotFoundError
from penstock.capture.live._reading import BatchReader
from penstock.capture.live.reading import Models
from penstock.client._pipeline import Pipeline
from penstock.client.gate import SEALED, Gate
from penstock.middleware import DeliverBatch, Merged, MergedBatch, Merger, Receiver, ReceiverConfig
from penstock.middleware.core.direct import DIRECT
from penstock.middleware.core.reserved_topics import MODEL_TOPIC
from penstock.middleware.live.receiver import Received
from penstock.model import MessageModel
from penstock.security import Entitlement, Grant
from penstock.wire import (
    DatagramBatch,
    Extension,
    Origin,
    OriginFlag,
    Packer,
    PacketMessage,
    encode_extensions,
    encode_origin,
)

IN_BAND = 'id = 901\nname = "in_band"\nversion = 1\n[[field]]\nname = "width"\ntype = "i64"\n'
GRANTS = [Grant("md.us.>", "receive"), Grant("md.uk.>", "receive", 900), Grant("!md.us.no.>", "receive")]
TOPICS = ["md.us.a", "md.us.é", "md.us.no.a", "md.uk.a", "md.eu.a", "other", "md.us.b"]
WANTED = ["md.>"]
SYNCHRONISED = int(OriginFlag.SYNCHRONISED)


class Cuts:
    """A source whose receive() returns the next datagrams."""

    def __init__(self, cuts: Sequence[Sequence[bytes]], counters: Counters) -> None:
        self._cuts = iter(cuts)
        self._batch = DatagramBatch(64)
        self._receiver = Receiver(ReceiverConfig(join="start"), SystemRandomness(), counters)

    def receive(self, timeout: float | None = None) -> list[Received]:
        self._batch.clear()
        for data in next(self._cuts):
            self._batch.append(data, ("10.0.0.1", 1))
        return [each for each in self._receiver.receive_batch(self._batch, 0) if isinstance(each, Received)]

    def descriptors(self) -> list[int] | None:
        return None

    def next_due_ns(self) -> int | None:
        return None

    def close(self) -> None:
        """Nothing to close."""


class Reader:
    """The client's stages around one source."""

    def __init__(self, where: str | None = None) -> None:
        self.counters = Counters("client")
        self.models = Models(nobody)
        self.models.learn(QUOTE)
        self.gate = Gate(WANTED, where, self.models, self.counters)
        self.gate.allow(Entitlement(GRANTS), 0)
        self.merger = Merger(counters=self.counters)
        self.found: list[Any] = []

    def figures(self) -> dict[tuple[str, str], int]:
        return {(name, cause): value for name, cause, value in self.counters}

    def read(self, message: PacketMessage) -> Any:
        try:
            return self.models.read(message)
        except ModelError:
            self.counters.add("messages_dropped", cause=Cause.MESSAGE)
            return None

    def take_one(self, message: PacketMessage) -> None:
        """A message that passed the gate."""
        if message.flags & SEALED:
            self.found.append(("sealed", message.topic, message.sequence))
        elif (read := self.read(message)) is not None:
            self.take_read([read])

    def take_read(self, messages: Iterable[Any]) -> None:
        for each in messages:
            model = each.model and (each.model.id, each.model.version, each.model.name)
            self.found.append((model, each.topic, each.seq, each.source, bytes(each), type(each).__name__))


def nobody(model_id: int, version: int) -> MessageModel:
    raise NotFoundError(f"no model {model_id}")


def by_pipeline(cuts: Sequence[Sequence[bytes]]) -> Reader:
    reader = Reader()
    batch_reader = BatchReader(reader.models, 1, reader.read)
    pipeline = Pipeline(reader.merger, reader.gate.by_topic, batch_reader)
    source = Cuts(cuts, reader.counters)
    for _ in cuts:
        messages = pipeline.receive(source, 0.0)
        if messages is not None:
            reader.take_read(messages)
            continue
        for each in pipeline.left:
            if isinstance(each, MergedBatch):
                chosen = reader.gate.choose(each.messages)
                if isinstance(chosen, list):
                    for message in chosen:
                        reader.take_one(message)
                else:
                    reader.take_read(batch_reader.read(chosen))
            else:
                take_alone(reader, each)
    return reader


def one_by_one(cuts: Sequence[Sequence[bytes]]) -> Reader:
    reader = Reader()
    source = Cuts(cuts, reader.counters)
    for _ in cuts:
        for received in source.receive():
            for event in received.one_by_one() if isinstance(received, DeliverBatch) else [received]:
                for each in reader.merger.handle(event, 0):
                    take_alone(reader, each)
    return reader


def take_alone(reader: Reader, told: Any) -> None:
    if isinstance(told, Merged):
        for message in told.messages:
            if reader.gate.passes(message):
                reader.take_one(message)
    else:
        reader.found.append(told)


def traffic(chance: random.Random, count: int) -> list[list[bytes]]:
    """Packets of two adapters that send the same messages, and of a third publisher without a source; some packets are
    missing, some messages are unusual. Divided into batches as datagrams may arrive."""
    lost, unusual = chance.choice([0.0, 0.0, 0.02]), chance.choice([0.0, 0.02, 0.2])
    packers = [Packer(publisher, 0, 1) for publisher in (11, 12, 13)]
    sent: list[bytes] = []
    for number in range(1, count + 1):
        arguments = one_message(chance, number, unusual)
        for packer in packers[:2]:
            if not lost or chance.random() < 0.97:
                packer.add(**arguments)
        if chance.random() < 0.2:
            packers[2].add("md.us.a", content(number), model_id=QUOTE.id, model_version=QUOTE.version)
        full = [packer for packer in packers if packer.pending_count and chance.random() < 0.5]
        sent += [packer.flush() or b"" for packer in full]
    sent = [each for each in sent if each and chance.random() >= lost]
    cuts = []
    while sent:
        size = chance.choice([1, 1, 2, 5, 64])
        cuts.append(sent[:size])
        sent = sent[size:]
    return cuts


def one_message(chance: random.Random, number: int, unusual: float) -> dict[str, Any]:
    origin = Origin(STREAM_ID, TERM, 0, SYNCHRONISED, number, number)
    bodies = {int(Extension.ORIGIN): encode_origin(origin)}
    made = {
        "topic": chance.choice(TOPICS),
        "payload": content(number),
        "model_id": QUOTE.id,
        "model_version": QUOTE.version,
        "extensions": encode_extensions(bodies),
    }
    variants: list[dict[str, Any]] = [
        {"flags": SEALED},
        {"flags": DIRECT, "extensions": encode_extensions(bodies | {int(Extension.DESTINATION): bytes(7) + b"\1"})},
        {"payload": content(number)[: chance.randrange(0, 224)]},
        {"payload": content(number) + bytes(8)},
        {"model_id": 0, "model_version": 0},
        {"model_id": 902, "payload": b"unknown"},
        {"model_version": 0},
        {"model_version": QUOTE.version + 1},
        {"topic": MODEL_TOPIC, "model_id": 0, "model_version": 0, "payload": IN_BAND.encode(), "extensions": b""},
        {"topic": MODEL_TOPIC, "model_id": 0, "payload": chance.randbytes(20), "extensions": b""},
        {"model_id": 901, "model_version": 1, "payload": bytes(8)},
        {"extensions": encode_extensions({int(Extension.ORIGIN): chance.randbytes(12)})},
        {"extensions": encode_extensions({int(Extension.ORIGIN): chance.randbytes(28)})},
        {"extensions": encode_extensions({int(Extension.TAGS): b"\1a"} | bodies)},
        {"extensions": b""},
        {"topic": "md..a"},
    ]
    return made | (chance.choice(variants) if chance.random() < unusual else {})
