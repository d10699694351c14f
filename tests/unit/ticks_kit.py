"""Captures of messages of a custom model."""

from pathlib import Path

from penstock.journal import JournalWriter
from penstock.middleware.core.reserved_topics import MODEL_TOPIC
from penstock.model import MessageModel
from penstock.security.core.sealing import Sealer, StreamKey
from penstock.wire import (
    Extension,
    MessageFlag,
    Origin,
    OriginFlag,
    Packer,
    encode_extensions,
    encode_origin,
    encode_seal,
)

DOCUMENT = """
name = "tick"
id = 4711
version = 1
[[field]]
name = "symbol"
type = "text"
size = 120
[[field]]
name = "size"
type = "i64"
[[field]]
name = "event_time"
type = "timestamp"
"""
NEWER = (
    DOCUMENT.replace("version = 1", "version = 2") + '[[field]]\nname = "venue"\ntype = "text"\nsize = 8\nsince = 2\n'
)
TICK = MessageModel.parse(DOCUMENT)
COUNT = 1_000
CAPTURED_NS = 1_704_204_000_000_000_000
EVENT_NS = 1_704_100_000_000_000_000  # the previous day


def write_ticks(path: Path, *, document: str = "", first: int = 1, model: MessageModel = TICK) -> None:
    """A capture of ticks, followed by their model document in band, if there is one."""
    packer = Packer(1, 0xEF010101, 1)
    packets: list[bytes] = []
    for number in range(first, first + COUNT):
        origin = Origin(3, 1 << 14, 0, int(OriginFlag.SYNCHRONISED), number, number)
        extensions = encode_extensions({Extension.ORIGIN: encode_origin(origin)})
        added = {"venue": "XNAS"} if "venue" in model.fields_by_name else {}
        symbol = f"symbol {number} " + 100 * "x"
        record = bytes(model.new(symbol=symbol, size=number, event_time=EVENT_NS + number, **added))
        packets += packer.add(
            f"my.tick.{number % 10}", record, extensions=extensions, model_id=4711, model_version=model.version
        )
    if document:
        packets += packer.add(MODEL_TOPIC, document.encode())
    if (rest := packer.flush()) is not None:
        packets.append(rest)
    with JournalWriter.open(path) as journal:
        for number, packet in enumerate(packets):
            journal.append(packet, CAPTURED_NS + number)


def write_sealed_ticks(path: Path, key: StreamKey, count: int = 20) -> list[bytes]:
    """A capture of sealed ticks, and their records."""
    packer, sealer = Packer(1, 0xEF010101, 5), Sealer(key, 1, 5)
    records, packets = [], []
    for number in range(1, count + 1):
        origin = Origin(3, 1 << 14, 0, int(OriginFlag.SYNCHRONISED), number, number)
        record = bytes(TICK.new(symbol=f"symbol {number}", size=number, event_time=EVENT_NS + number))
        sealed = sealer.seal(record, topic=b"my.tick", model_id=4711, model_version=1, origin=origin)
        extensions = {Extension.ORIGIN: encode_origin(origin), Extension.SEAL: encode_seal(sealed.seal)}
        packets += packer.add(
            "my.tick", sealed.payload, flags=MessageFlag.SEALED, extensions=encode_extensions(extensions),
            model_id=4711, model_version=1,
        )  # fmt: skip
        records.append(record)
    if (rest := packer.flush()) is not None:
        packets.append(rest)
    with JournalWriter.open(path) as journal:
        for number, packet in enumerate(packets):
            journal.append(packet, CAPTURED_NS + number)
    return records
