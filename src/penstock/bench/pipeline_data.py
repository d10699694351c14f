"""Made-up journals for benches: as an adapter's capture has them, written as fast as the disk takes them."""

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
    """Trades of stream 7 on a few topics, each with its ORIGIN, in packets of the usual size."""
    model = shipped("trade")
    topics = [f"md.xnas.eq.S{number:03d}.trade".encode() for number in range(TOPICS)]
    origin = numpy.dtype(
        [
            ("type", "<u2"), ("size", "<u2"), ("stream", "<u4"), ("term", "<u4"), ("index", "<u2"), ("flags", "<u2"),
            ("source_seq", "<u8"), ("seq", "<u8"),
        ]
    )  # fmt: skip
    block = numpy.zeros(BLOCK, numpy.dtype([("origin", origin), ("record", model.dtype)]))
    block["origin"]["type"], block["origin"]["size"] = 1, 28
    block["origin"]["stream"], block["origin"]["term"], block["origin"]["flags"] = 7, TERM, 1
    block["record"] = numpy.frombuffer(bytes(model.new(symbol="S000", venue="XNAS", price=100)), model.dtype)[0]
    rows = numpy.zeros(BLOCK, MESSAGE_DTYPE)
    rows["topic_size"] = len(topics[0])
    rows["topic_offset"] = numpy.arange(BLOCK) % TOPICS * len(topics[0])
    rows["extensions_offset"] = numpy.arange(BLOCK) * block.itemsize
    rows["extensions_size"] = origin.itemsize
    rows["payload_offset"] = rows["extensions_offset"] + origin.itemsize
    rows["payload_size"] = model.record_size
    rows["model_id"], rows["model_version"] = model.id, model.version
    out, packets = numpy.empty(BLOCK * 256, numpy.uint8), numpy.empty(BLOCK, PACKET_DTYPE)
    done, packet_number = 0, 1
    with JournalWriter.open(path) as journal:
        while done < messages:
            count = min(BLOCK, messages - done)
            numbers = numpy.arange(done + 1, done + count + 1)
            part = block[:count]
            part["origin"]["seq"] = part["origin"]["source_seq"] = part["record"]["source_seq"] = numbers
            part["record"]["quantity"] = numbers % 1_000
            part["record"]["event_time"] = FIRST_NS + numbers * 1_000
            _, made = encode_batch(
                b"".join(topics), part.view(numpy.uint8), rows[:count], out, packets,
                publisher_id=1, group=0xEF010101, epoch=1, first_sequence=packet_number,
            )  # fmt: skip
            times_ns = FIRST_NS + numpy.arange(packet_number, packet_number + made, dtype=numpy.int64) * 10_000
            places = packets[:made]
            journal.append_packed(out.data, places["offset"].copy(), places["size"].copy(), times_ns)
            done += count
            packet_number += made
        journal.commit()
