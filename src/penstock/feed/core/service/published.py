"""Published packets in decoded form, for the stream service and for packets from the journal."""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy
from numpy.typing import NDArray

from penstock.base.limits import PACKET_SIZE_DEFAULT
from penstock.middleware.core.events import OutgoingMessage
from penstock.wire import MESSAGE_DTYPE, MESSAGES_MAX, PACKET_DTYPE, Packer, decode_batch, encode_batch
from penstock.wire._codec import MESSAGE_HEADER_SIZE, PACKET_HEADER_SIZE


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
        is_sourced = self.rows["extensions_size"] > 0
        return self.rows if is_sourced.all() else self.rows[is_sourced]


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
            expected = numpy.arange(first, first + len(packets), dtype=numpy.uint64)
            bad = numpy.flatnonzero((packets["error"] != 0) | (packets["sequence"] != expected))
            first += len(packets)
            if not len(bad):
                yield 0, batch
                continue
            lost = int(bad[-1]) + 1
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

    def pack(
        self, topics: NDArray[numpy.uint8] | bytes, payloads: NDArray[numpy.uint8], rows: NDArray[Any]
    ) -> list[bytes]:
        """Return the packets of these messages, in order; none of the messages needs fragmentation."""
        if not len(rows):
            return []
        out = numpy.empty(_space_of(rows) + PACKET_HEADER_SIZE * len(rows), numpy.uint8)
        places = numpy.zeros(len(rows), PACKET_DTYPE)
        _, count = encode_batch(
            topics,
            payloads,
            numpy.ascontiguousarray(rows),
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


def _space_of(rows: NDArray[Any]) -> int:
    """Upper bound of the size of these messages in packets."""
    padding = 2 * 8
    parts = rows["topic_size"].astype(numpy.int64) + rows["payload_size"] + rows["extensions_size"]
    return int(parts.sum()) + (MESSAGE_HEADER_SIZE + padding) * len(rows)
