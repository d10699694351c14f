"""Read a journal back as the receiver's output."""

from collections.abc import Iterable, Iterator

from penstock.base.counters import Cause
from penstock.base.errors import PacketError
from penstock.base.limits import MESSAGE_SIZE_MAX
from penstock.journal import Record
from penstock.middleware import Deliver, LossReceipt, StreamKey
from penstock.middleware.core.reassembly import BrokenMessage, Reassembler
from penstock.wire import Kind, Packet, PacketMessage, decode


def replay(records: Iterable[Record]) -> Iterator[tuple[int, Deliver | LossReceipt]]:
    """Yield deliveries and losses with their times; fragments are reassembled to complete messages.

    A record that is not a packet raises PacketError: the journal is not a capture.
    """
    streams: dict[StreamKey, _CapturedStream] = {}
    for sequence, timestamp_ns, payload in records:
        packet = _packet(payload, f"record {sequence}")
        key = StreamKey(packet.publisher_id, packet.group)
        stream = streams.get(key)
        if stream is None or stream.epoch != packet.epoch:
            stream = streams[key] = _CapturedStream(key, packet)
        for each in stream.take(packet):
            yield timestamp_ns, each


def _packet(payload: bytes, where: str) -> Packet:
    try:
        packet = decode(payload)
    except PacketError as error:
        raise PacketError(error.what, cause=error.cause, where=where) from None
    if packet.kind == Kind.NACK:
        raise PacketError("a repair request, which a capture never contains", cause=Cause.UNEXPECTED, where=where)
    return packet


class _CapturedStream:
    """The reading state of one epoch of a stream."""

    def __init__(self, key: StreamKey, packet: Packet) -> None:
        self.epoch = packet.epoch
        self._key = key
        self._next_sequence = 0
        self._reassembler = Reassembler(MESSAGE_SIZE_MAX)

    def take(self, packet: Packet) -> Iterator[Deliver | LossReceipt]:
        if packet.kind == Kind.DATA:
            pieces = list(self._reassembler.messages(packet))
            messages = [piece for piece in pieces if isinstance(piece, PacketMessage)]
            yield from self._report(piece for piece in pieces if isinstance(piece, BrokenMessage))
            first = max(self._next_sequence, packet.sequence - packet.gap)
            self._next_sequence = packet.sequence + 1
            yield Deliver(self._key, self.epoch, first, packet.sequence, packet.flags, messages, packet.data)
        else:
            for first, last in packet.ranges:
                self._next_sequence = last + 1
                yield LossReceipt(self._key, self.epoch, first, last, Cause.GONE)
                yield from self._report(self._reassembler.lose())

    def _report(self, broken: Iterator[BrokenMessage]) -> Iterator[LossReceipt]:
        for message in broken:
            yield LossReceipt(self._key, self.epoch, message.first, message.last, message.cause, message.topic)
