"""Generated journals for benches: like an adapter's capture, written as fast as the disk allows."""

from pathlib import Path

import numpy

from penstock.journal import JournalWriter
from penstock.model import shipped
from penstock.wire import MESSAGE_DTYPE, PACKET_DTYPE, encode_batch

BLOCK = 32_768
TOPICS = 64
TERM = 1 << 14
FIRST_NS = 1_700_000_000_000_000_000


def trades_in_journal(path: Path, messages: int) -> None:
    """Write trades of stream 7 on a few topics, each with its ORIGIN, in packets of the usual size."""
    packets = TradePackets()
    with JournalWriter.open(path) as journal:
        packets.append(journal, messages)


class TradePackets:
    """Generates such trades, numbered continuously across calls."""

    def __init__(self) -> None:
        model = shipped("trade")
        self._topics = [f"md.xnas.eq.S{number:03d}.trade".encode() for number in range(TOPICS)]
        origin = numpy.dtype(
            [
                ("type", "<u2"), ("size", "<u2"), ("stream", "<u4"), ("term", "<u4"), ("index", "<u2"),
                ("flags", "<u2"), ("source_seq", "<u8"), ("seq", "<u8"),
            ]
        )  # fmt: skip
        block = self._block = numpy.zeros(BLOCK, numpy.dtype([("origin", origin), ("record", model.dtype)]))
        block["origin"]["type"], block["origin"]["size"] = 1, 28
        block["origin"]["stream"], block["origin"]["term"], block["origin"]["flags"] = 7, TERM, 1
        block["record"] = numpy.frombuffer(bytes(model.new(symbol="S000", venue="XNAS", price=100)), model.dtype)[0]
        rows = self._rows = numpy.zeros(BLOCK, MESSAGE_DTYPE)
        rows["topic_size"] = len(self._topics[0])
        rows["topic_offset"] = numpy.arange(BLOCK) % TOPICS * len(self._topics[0])
        rows["extensions_offset"] = numpy.arange(BLOCK) * block.itemsize
        rows["extensions_size"] = origin.itemsize
        rows["payload_offset"] = rows["extensions_offset"] + origin.itemsize
        rows["payload_size"] = model.record_size
        rows["model_id"], rows["model_version"] = model.id, model.version
        self._out, self._packets = numpy.empty(BLOCK * 256, numpy.uint8), numpy.empty(BLOCK, PACKET_DTYPE)
        self._done, self._packet_number = 0, 1

    def append(self, journal: JournalWriter, messages: int, captured_ns: int | None = None) -> int:
        """Append further messages; return the number of the last record. Without a time, records are captured 10 µs
        apart.
        """
        end = self._done + messages
        while self._done < end:
            made = self._encode(min(BLOCK, end - self._done))
            numbers = numpy.arange(self._packet_number, self._packet_number + made, dtype=numpy.int64)
            times_ns = (
                FIRST_NS + numbers * 10_000 if captured_ns is None else numpy.full(made, captured_ns, numpy.int64)
            )
            places = self._packets[:made]
            journal.append_packed(self._out.data, places["offset"].copy(), places["size"].copy(), times_ns)
            self._packet_number += made
        journal.commit()
        return self._packet_number - 1

    def _encode(self, count: int) -> int:
        """Encode the next messages as packets; return the number of packets."""
        numbers = numpy.arange(self._done + 1, self._done + count + 1)
        part = self._block[:count]
        part["origin"]["seq"] = part["origin"]["source_seq"] = part["record"]["source_seq"] = numbers
        part["record"]["quantity"] = numbers % 1_000
        part["record"]["event_time"] = FIRST_NS + numbers * 1_000
        _, made = encode_batch(
            b"".join(self._topics), part.view(numpy.uint8), self._rows[:count], self._out, self._packets,
            publisher_id=1, group=0xEF010101, epoch=1, first_sequence=self._packet_number,
        )  # fmt: skip
        self._done += count
        return made
