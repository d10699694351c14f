"""Messages as rows over their original memory: the common form of a journal's packets and a Converter's output.

    reader = PacketRows()
    while batch := journal.read_batch():
        rows = reader.take(batch)                      # complete messages; valid until the next take()
        trades = rows.select(rows.sound(TRADE))
        trades.records(TRADE)["price"], trades.origins["seq"], trades.places["captured_ns"], trades.topics()
        reader.bad, reader.lost                        # unreadable records, and recorded losses

    rows_of_converted(converter.convert(source))       # the same rows, without places

Reading costs a few nanoseconds per message and creates no Python object per message.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy
from numpy.typing import NDArray

from penstock.base.counters import Cause
from penstock.base.limits import MESSAGE_SIZE_MAX
from penstock.capture.core._rows import (
    ORIGIN_DTYPE,
    PLACE_DTYPE,
    STREAM_DTYPE,
    RecordParser,
    find_sound,
    gather_bytes,
    gather_records,
    gather_spans,
    read_origins,
    read_places,
)
from penstock.capture.core.refusals import REASONS, BadRecord, Loss
from penstock.journal import RecordBatch
from penstock.middleware.core.reassembly import BrokenMessage, Reassembler
from penstock.model import MessageModel
from penstock.model.layout import Field
from penstock.model.schema import dtype_of
from penstock.wire import (
    ERROR_CAUSES,
    Extension,
    Kind,
    MessageFlag,
    Packet,
    PacketMessage,
    decode,
    decode_extensions,
    encode_extensions,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.convert import Converted

__all__ = [
    "ORIGIN_DTYPE",
    "PLACE_DTYPE",
    "STREAM_DTYPE",
    "BadRecord",
    "Loss",
    "MessageRows",
    "PacketRows",
    "rows_of_converted",
]

EXCERPT_SIZE = 64
"""Bytes of a bad record that are kept for inspection."""

EVEN_AT_FIRST = 64
"""Number of messages checked first for equal spacing."""

FRAGMENT = int(MessageFlag.CONTINUATION | MessageFlag.MORE)
PACKET_KEY = ["publisher_id", "group", "epoch"]
ORIGIN_NONE = bytes(28)


class StreamEpoch(NamedTuple):
    """Identifies a publisher's stream in one epoch, with the fields of STREAM_DTYPE."""

    publisher: int
    group: int
    epoch: int


class MessageRows:
    """Messages of any models in order; `rows` are of MESSAGE_DTYPE, with offsets into topic_data and payloads.

    Valid until the reader creates the next MessageRows, which reuses the memory. select() returns rows over the same
    memory; the arrays of records(), topics(), origins and places are independent copies.
    """

    def __init__(
        self,
        topic_data: NDArray[numpy.uint8],
        payloads: NDArray[numpy.uint8],
        rows: NDArray[Any],
        packets: NDArray[Any] | None = None,
        records: NDArray[Any] | None = None,
    ) -> None:
        """`packets` and `records` are the arrays that packet_index of a row refers to, for messages from a journal."""
        self.topic_data = topic_data
        self.payloads = payloads
        self.rows = rows
        self._packets = packets
        self._records = records
        self._origins: NDArray[Any] | None = None
        self._places: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def origins(self) -> NDArray[Any]:
        """The ORIGIN of each message, a row of ORIGIN_DTYPE; zeros without one."""
        if self._origins is None:
            self._origins = read_origins(self.payloads, self.rows)
        return self._origins

    @property
    def places(self) -> NDArray[Any] | None:
        """Record and packet of each message, a row of PLACE_DTYPE; None without a journal."""
        if self._places is None and self._packets is not None and self._records is not None:
            self._places = read_places(self.rows, self._packets, self._records)
        return self._places

    def kinds(self) -> set[tuple[int, int]]:
        """Return (model id, version) of all messages; (0, 0) for messages without a model."""
        keys = self.rows["model_id"].astype(numpy.uint32) << 16 | self.rows["model_version"]
        return {(key >> 16, key & 0xFFFF) for key in numpy.unique(keys).tolist()}

    def select(self, mask: NDArray[Any]) -> MessageRows:
        """Return the messages selected by an array of bool or of indices."""
        if mask.dtype == numpy.bool_ and mask.all():
            return self
        rows = _taken(self.rows, mask)
        chosen = MessageRows(self.topic_data, self.payloads, rows, self._packets, self._records)
        if self._origins is not None:
            chosen._origins = _taken(self._origins, mask)
        if self._places is not None:
            chosen._places = _taken(self._places, mask)
        return chosen

    def sound(self, model: MessageModel) -> NDArray[numpy.bool_]:
        """Return a mask of valid records of this model: not sealed, and as long as their version requires."""
        return find_sound(self.rows, model.id, _shape_of(model).sizes_needed)

    def records(self, model: MessageModel) -> NDArray[Any]:
        """Return the payloads as records of the model's dtype; all must be sound().

        A field that a record's version lacks is missing if it is optional, else zero or empty. Fields that a newer
        version added are ignored.
        """
        shape = _shape_of(model)
        made = numpy.empty(len(self.rows), model.dtype)
        out = made.view(numpy.uint8).reshape(-1) if len(made) else numpy.empty(0, numpy.uint8)
        gather_records(self.payloads, self.rows, shape.blank, shape.newer, out)
        return made

    def fields(self, model: MessageModel, names: Sequence[str]) -> NDArray[Any]:
        """Like records(), with at least these fields, and valid as long as the rows are.

        Equally spaced records are not copied, such as those of a converter that produces only one model. Of other
        records, only the bytes from the first to the last field are copied.
        """
        evenly = self._evenly(model)
        if evenly is not None:
            return evenly
        spans = self._spans(model, [model.fields_by_name[name] for name in names])
        return self.records(model) if spans is None else spans

    def _evenly(self, model: MessageModel) -> NDArray[Any] | None:
        """Return the records in place, if they are equally spaced and of no older version."""
        offsets = self.rows["payload_offset"]
        for count in (EVEN_AT_FIRST, len(offsets)):  # usually the first few show that the spacing differs
            steps = numpy.diff(offsets[:count].astype(numpy.int64))
            if not len(steps) or steps[0] < model.record_size or (steps != steps[0]).any():
                return None
        start, step = int(offsets[0]), int(steps[0])
        if int(offsets[-1]) + model.record_size > len(self.payloads):
            return None
        if int(self.rows["model_version"].min()) < model.version:
            return None
        return numpy.ndarray(len(offsets), model.dtype, self.payloads, start, (step,))

    def _spans(self, model: MessageModel, fields: Sequence[Field]) -> NDArray[Any] | None:
        """Return the bytes from the first to the last of these fields, per record; None if a record has an older
        version.
        """
        start = min(field.offset for field in fields)
        size = max(field.end for field in fields) - start
        made = numpy.empty(len(self.rows), dtype_of(fields, start, size))
        out = made.view(numpy.uint8).reshape(-1)
        return made if gather_spans(self.payloads, self.rows, model.version, start, size, out) else None

    def topics(self) -> pa.StringArray:
        import pyarrow as pa

        offsets, texts = gather_bytes(self.topic_data, self.rows, True)
        return pa.StringArray.from_buffers(len(self.rows), pa.py_buffer(offsets), pa.py_buffer(texts))

    def contents(self) -> pa.BinaryArray:
        """Return the payloads as bytes."""
        import pyarrow as pa

        offsets, contents = gather_bytes(self.payloads, self.rows, False)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(contents)]
        return pa.Array.from_buffers(pa.binary(), len(self.rows), buffers)

    def payload(self, index: int) -> bytes:
        """Return a copy of the content of one message."""
        start, size = int(self.rows[index]["payload_offset"]), int(self.rows[index]["payload_size"])
        return self.payloads[start : start + size].tobytes()

    def extensions(self, index: int) -> dict[int, bytes]:
        """Return the extensions of one message: bodies by type."""
        start, size = int(self.rows[index]["extensions_offset"]), int(self.rows[index]["extensions_size"])
        return decode_extensions(self.payloads[start : start + size].tobytes())


def _taken(rows: NDArray[Any], mask: NDArray[Any]) -> NDArray[Any]:
    """Return rows[mask], copied as words, because numpy copies structures field by field."""
    words = numpy.ascontiguousarray(rows).view(numpy.uint64).reshape(len(rows), rows.itemsize // 8)
    chosen: NDArray[Any] = words[mask].view(rows.dtype).reshape(-1)
    return chosen


class _Shape(msgspec.Struct):
    """Properties of a model that the kernels need."""

    sizes_needed: NDArray[numpy.uint32]
    """Minimum record size by version, up to the model's version."""
    newer: NDArray[numpy.uint32]
    """(since, offset, size) of fields added after the first version."""
    blank: bytes


@cache
def _shape_of(model: MessageModel) -> _Shape:
    ends = [
        max((field.end for field in model.fields if field.since <= version), default=0)
        for version in range(model.version + 1)
    ]
    newer = [(field.since, field.offset, field.size) for field in model.fields if field.since > 1]
    return _Shape(numpy.array(ends, numpy.uint32), numpy.array(newer, numpy.uint32).reshape(-1, 3), bytes(model.new()))


def rows_of_converted(converted: Converted) -> MessageRows:
    """Return the rows of a converter's output; valid until the converter is called again."""
    return MessageRows(converted.topic_data, converted.payloads, converted.rows)


class PacketRows:
    """Reads a journal's records as packets, batch by batch; fragments are reassembled across batches.

    `bad` and `lost` belong to the last take(). `streams` (rows of STREAM_DTYPE: packets, losses, repairs, messages per
    stream and epoch) accumulates over all calls.
    """

    def __init__(self) -> None:
        self._parser = RecordParser()
        self._reassemblers: dict[StreamEpoch, Reassembler] = {}
        self._known: set[StreamEpoch] = set()
        self._known_before: set[StreamEpoch] = set()
        self.bad: list[BadRecord] = []
        self.lost: list[Loss] = []
        self.orphans = 0
        """Fragments seen first in their stream: their message began before this reader's input."""

    @property
    def streams(self) -> NDArray[Any]:
        return self._parser.streams

    @property
    def packets(self) -> NDArray[Any]:
        """A row of PACKET_DTYPE per record of the last take(); a row with an error is also in `bad`."""
        return self._parser.packets

    def continued(self) -> PacketRows:
        """Return a reader that continues from the current state, with counts from zero."""
        made = PacketRows()
        made._reassemblers, made._known_before = self._reassemblers, self._known
        return made

    def take(self, batch: RecordBatch) -> MessageRows:
        """Return the messages that end in these records."""
        parser = self._parser
        data = numpy.frombuffer(batch.data, numpy.uint8)
        parser.parse(data, batch.rows)
        self.bad, self.lost = [], []
        if parser.has_bad:
            self._report_bad(batch)
        if parser.has_gone:
            self._report_lost(batch)
        rows, payloads = parser.messages, data
        if parser.has_fragments or self._reassemblers:
            rows, payloads = self._reassemble(batch, data)
        if parser.stream_count != len(self._known):
            self._known = {StreamEpoch(*key) for key in parser.streams[list(StreamEpoch._fields)].tolist()}
        return MessageRows(payloads, payloads, rows, parser.packets, batch.rows)

    def _report_bad(self, batch: RecordBatch) -> None:
        packets = self._parser.packets
        for index in numpy.flatnonzero((packets["error"] != 0) | (packets["kind"] == int(Kind.NACK))).tolist():
            error = int(packets[index]["error"])
            self._refuse(batch, index, ERROR_CAUSES[error] if error else Cause.UNEXPECTED)
        for index in self._parser.refused:
            self._refuse(batch, index, Cause.VALUE)

    def _refuse(self, batch: RecordBatch, index: int, cause: Cause, reason: str = "") -> None:
        row = batch.rows[index]
        excerpt = bytes(_content(batch, index)[:EXCERPT_SIZE])
        captured_ns = int(row["timestamp_ns"])
        self.bad.append(BadRecord(int(row["sequence"]), captured_ns, str(cause), reason or REASONS[cause], excerpt))

    def _report_lost(self, batch: RecordBatch) -> None:
        packets = self._parser.packets
        for index in numpy.flatnonzero((packets["kind"] == int(Kind.GONE)) & (packets["error"] == 0)).tolist():
            row, packet = batch.rows[index], decode(_content(batch, index))
            record, captured_ns = int(row["sequence"]), int(row["timestamp_ns"])
            stream = (packet.publisher_id, packet.group, packet.epoch)
            self.lost += [Loss(record, captured_ns, *stream, first, last) for first, last in packet.ranges]

    # Fragments are rare: they are handled packet by packet, like a receiver's

    def _reassemble(self, batch: RecordBatch, data: NDArray[numpy.uint8]) -> tuple[NDArray[Any], NDArray[numpy.uint8]]:
        rows = self._parser.messages.copy()
        fragments = numpy.flatnonzero(rows["flags"] & FRAGMENT)
        # of two fragments in one packet, the first counts: only the first can end a message
        ends = dict(zip(rows["packet_index"][fragments][::-1].tolist(), fragments[::-1].tolist(), strict=True))
        is_kept = numpy.ones(len(rows), numpy.bool_)
        is_kept[fragments] = False
        appended = [data]
        end = len(data)
        for index in self._packets_to_see(rows["packet_index"][fragments]):
            packet = decode(_content(batch, index))
            message = self._completed(packet, batch, index)
            if message is None:
                continue
            row = rows[ends[index]]
            extensions = encode_extensions(message.extensions)
            row["extensions_offset"], row["extensions_size"] = end, len(extensions)
            row["payload_offset"], row["payload_size"] = end + len(extensions), len(message.payload)
            row["flags"] = message.flags & ~FRAGMENT
            appended += [numpy.frombuffer(part, numpy.uint8) for part in (extensions, message.payload)]
            end += len(extensions) + len(message.payload)
            is_kept[ends[index]] = True
        self._reassemblers = {key: each for key, each in self._reassemblers.items() if each.is_waiting}
        return rows[is_kept], numpy.concatenate(appended)

    def _packets_to_see(self, fragmented: NDArray[Any]) -> list[int]:
        """Return every packet of a stream with fragments in this batch, or with an unfinished message."""
        packets = self._parser.packets
        streams = {StreamEpoch(*key) for key in packets[fragmented][PACKET_KEY].tolist()} | self._reassemblers.keys()
        is_wanted = numpy.zeros(len(packets), numpy.bool_)
        for publisher, group, epoch in streams:
            is_wanted |= (
                (packets["publisher_id"] == publisher) & (packets["group"] == group) & (packets["epoch"] == epoch)
            )
        is_wanted &= (packets["error"] == 0) & (packets["kind"] != int(Kind.NACK))
        return [int(index) for index in numpy.flatnonzero(is_wanted)]

    def _completed(self, packet: Packet, batch: RecordBatch, index: int) -> PacketMessage | None:
        """Return the message whose last fragment is in this packet, if the message is complete."""
        key = StreamEpoch(packet.publisher_id, packet.group, packet.epoch)
        reassembler = self._reassemblers.get(key)
        if reassembler is None:
            reassembler = self._reassemblers[key] = Reassembler(MESSAGE_SIZE_MAX)
            if key in self._known or key in self._known_before:
                list(reassembler.lose())  # no message is open, and none began before we joined
            elif packet.kind == Kind.DATA and len(packet) and packet[0].flags & MessageFlag.CONTINUATION:
                self.orphans += 1
                self._refuse(batch, index, Cause.FRAGMENT, "the beginning of this message is not in the journal")
        pieces = list(reassembler.messages(packet) if packet.kind == Kind.DATA else reassembler.lose())
        for piece in pieces:
            if isinstance(piece, BrokenMessage):
                reason = f"packets {piece.first} to {piece.last} do not form a complete message on {piece.topic}"
                self._refuse(batch, index, piece.cause, reason)
        whole = [piece for piece in pieces if isinstance(piece, PacketMessage)]
        if packet.kind != Kind.DATA or len(whole) == sum(not message.flags & FRAGMENT for message in packet):
            return None
        if len(whole[0].extensions.get(Extension.ORIGIN, ORIGIN_NONE)) != len(ORIGIN_NONE):
            self._refuse(batch, index, Cause.VALUE)
            return None
        return whole[0]


def _content(batch: RecordBatch, index: int) -> memoryview:
    row = batch.rows[index]
    start = int(row["offset"])
    return memoryview(batch.data)[start : start + int(row["size"])]
