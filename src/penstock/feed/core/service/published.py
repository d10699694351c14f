"""Published packets in decoded form, for the stream service and for packets from the journal."""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy
from numpy.typing import NDArray

from penstock.base.limits import PACKET_SIZE_DEFAULT
from penstock.feed.core.service._rows import are_sourced, count_overwritten, packed_size
from penstock.middleware.core.events import OutgoingMessage
from penstock.wire import MESSAGE_DTYPE, MESSAGES_MAX, PACKET_DTYPE, Packer, decode_batch, encode_batch

OUT_SIZE = 4_096
OUT_PACKETS = 16


class PublishedBatch(msgspec.Struct, frozen=True):
    """Consecutive packets and their messages; all rows point into `data`."""

    data: NDArray[numpy.uint8]
    packets: NDArray[Any]
    """PACKET_DTYPE"""
    rows: NDArray[Any]
    """MESSAGE_DTYPE; `packet_index` counts from this batch's first packet."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sourced(self) -> NDArray[Any]:
        """The rows of messages from a source. Each of them has an ORIGIN and is complete; models in band have no
        ORIGIN and may be fragmented."""
        return self.rows if are_sourced(self.rows) else self.rows[self.rows["extensions_size"] > 0]


class Unpacker:
    """Decodes packets into memory that is reused: a batch is valid until the next call."""

    def __init__(self, packets_max: int = 4_096) -> None:
        self._packets = numpy.zeros(packets_max, PACKET_DTYPE)
        self._rows = numpy.zeros(max(MESSAGES_MAX, 32_768), MESSAGE_DTYPE)

    def unpack(
        self, data: NDArray[numpy.uint8], offsets: NDArray[numpy.uint32], sizes: NDArray[numpy.uint32]
    ) -> Iterator[PublishedBatch]:
        """Decode the packets at these places. Damaged packets have a row with their error, and no messages."""
        done = 0
        while done < len(offsets):
            end = min(len(offsets), done + len(self._packets))
            count, rows, _ = decode_batch(data, offsets[done:end], sizes[done:end], self._packets, self._rows)
            yield PublishedBatch(data, self._packets[:count], self._rows[:rows])
            done += count

    def unpack_taken(
        self, first: int, data: NDArray[numpy.uint8], offsets: NDArray[numpy.uint32], sizes: NDArray[numpy.uint32]
    ) -> Iterator[tuple[int, PublishedBatch]]:
        """Decode packets of a Tap. Each batch comes with the number of packets that were overwritten before it."""
        for batch in self.unpack(data, offsets, sizes):
            packets = batch.packets
            lost = count_overwritten(packets, first)
            first += len(packets)
            if not lost:
                yield 0, batch
                continue
            rows = batch.rows[batch.rows["packet_index"] >= lost].copy()
            rows["packet_index"] -= lost
            yield lost, PublishedBatch(batch.data, packets[lost:], rows)


class StreamPacker:
    """Packs selected messages into one subscriber's packets, numbered from 1, with their extensions unchanged."""

    def __init__(self, publisher_id: int, epoch: int, packet_size_max: int = PACKET_SIZE_DEFAULT) -> None:
        self.publisher_id = publisher_id
        self.epoch = epoch
        self.next_sequence = 1
        self._packet_size_max = packet_size_max
        self._out = numpy.empty(OUT_SIZE, numpy.uint8)  # for a few messages
        self._places = numpy.zeros(OUT_PACKETS, PACKET_DTYPE)

    def pack(
        self, topics: NDArray[numpy.uint8] | bytes, payloads: NDArray[numpy.uint8], rows: NDArray[Any]
    ) -> list[bytes]:
        """Return the packets of these messages, in order; none of the messages needs fragmentation."""
        if not len(rows):
            return []
        rows = numpy.ascontiguousarray(rows)
        size = packed_size(rows)
        out = self._out if size <= len(self._out) else numpy.empty(size, numpy.uint8)
        places = self._places if len(rows) <= len(self._places) else numpy.zeros(len(rows), PACKET_DTYPE)
        _, count = encode_batch(
            topics,
            payloads,
            rows,
            out,
            places,
            publisher_id=self.publisher_id,
            group=0,
            epoch=self.epoch,
            first_sequence=self.next_sequence,
            packet_size_max=self._packet_size_max,
        )
        self.next_sequence += count
        packed = out.data
        ranges = zip(places["offset"][:count].tolist(), places["size"][:count].tolist(), strict=True)
        return [bytes(packed[offset : offset + size]) for offset, size in ranges]

    def pack_message(self, message: OutgoingMessage) -> list[bytes]:
        """Return the packets of one message, which is fragmented if necessary."""
        packets = cut(message, self.publisher_id, 0, self.epoch, self.next_sequence, self._packet_size_max)
        self.next_sequence += len(packets)
        return packets


def cut(
    message: OutgoingMessage, publisher_id: int, group: int, epoch: int, first_sequence: int, packet_size_max: int
) -> list[bytes]:
    """Return the packets of one message, possibly fragmented."""
    packer = Packer(publisher_id, group, epoch, packet_size_max=packet_size_max, first_sequence=first_sequence)
    packets = packer.add(
        message.topic,
        message.payload,
        model_id=message.model_id,
        model_version=message.model_version,
        flags=message.flags,
        extensions=message.extensions,
    )
    last = packer.flush()
    return packets if last is None else [*packets, last]
