"""Forwards streams: turns the receiver's instructions into packets in the outbox."""

from collections.abc import Iterator

from penstock.base.clock import NS_PER_MS
from penstock.base.errors import LimitError
from penstock.filter.config import FilterConfig
from penstock.filter.core.consumers import Application, Audience
from penstock.filter.core.events import FilterInstruction, Send, StreamOver, Tell
from penstock.filter.core.forwarded_stream import ForwardedStream
from penstock.filter.core.kernel._forward import Forwarder
from penstock.filter.core.ledger import Ledger
from penstock.middleware import (
    Collision,
    Deliver,
    DeliverBatch,
    LossReceipt,
    Multicast,
    StreamEnded,
    StreamKey,
    StreamStarted,
    Unicast,
)
from penstock.middleware.core.events import ReceiverInstruction
from penstock.middleware.core.incoming_stream import IncomingStream
from penstock.wire import RANGES_MAX, MessageBatch, Outbox, PacketFlag, encode_gone, restamp

REPAIR = int(PacketFlag.REPAIR)


class Traffic:
    """Forwards the packets of all streams; answers() returns the resulting instructions."""

    def __init__(
        self, config: FilterConfig, forwarder: Forwarder, audience: Audience, ledger: Ledger | None = None
    ) -> None:
        self.streams: dict[StreamKey, ForwardedStream] = {}
        self.incoming: dict[tuple[StreamKey, int], IncomingStream] = {}
        """Streams that have started but are not announced yet."""

        self._config = config
        self._forwarder = forwarder
        self._audience = audience
        self._ledger = ledger
        self._ended: dict[ForwardedStream, int] = {}  # with the time until which they are kept
        self._said: list[FilterInstruction] = []
        # instructions that are useful only after the packets have arrived
        self._afterwards: list[FilterInstruction] = []

    def begin(self) -> None:
        """Clear the outbox, whose content has been sent."""
        self._forwarder.outbox.clear()

    def answers(self) -> list[FilterInstruction]:
        """Return the instructions since begin()."""
        if len(self._forwarder.outbox):
            self._said.append(Send(self._forwarder.outbox))
        answers = self._said + self._afterwards
        self._said, self._afterwards = [], []
        return answers

    def carry(self, said: list[ReceiverInstruction], now_ns: int) -> None:
        for instruction in said:
            match instruction:
                case DeliverBatch(messages):
                    self.forward(messages)
                case Deliver():
                    self._deliver(instruction)
                case LossReceipt():
                    self._lose(instruction)
                case StreamStarted():
                    self._start(instruction)
                case StreamEnded():
                    self._end(instruction, now_ns)
                case Collision():
                    self._said.append(instruction)
                    self._tell(instruction.stream.group, instruction)
                case Unicast() | Multicast():
                    self._said.append(instruction)

    def forward(self, messages: MessageBatch) -> None:
        """Forward packets in the order of their streams."""
        done = 0
        while (done := self._forwarder.forward(messages, done)) < messages.packet_count:
            self._take_another_outbox()

    def listen(self, application: Application, group: int, *, is_new_to_consumer: bool) -> None:
        """The application, and perhaps its consumer, begins to listen to the group."""
        consumer = application.consumer.number
        for stream in self._of_group(group):
            if stream not in self._ended:
                if is_new_to_consumer:
                    stream.account.listen(consumer, stream.next_sequence)
                # in a shared copy, gaps before this number do not apply to a new application
                position = stream.position(application.number, stream.next_sequence)
                self._said.append(Tell(application.number, position))

    def tell_source(self, key: StreamKey, epoch: int) -> None:
        """Repeat the position to applications that request repairs at the stream's source, which has changed. The
        number stays the same, so that the stream continues."""
        stream = self.streams.get(key)
        if stream is None or stream.epoch != epoch or stream.kept is not None:
            return
        for application in self.listeners(key.group):
            if (told := stream.told.get(application.number)) is not None:
                self._said.append(Tell(application.number, stream.position(application.number, told)))

    def leave(self, consumer: int, group: int) -> None:
        """The consumer stops listening to the group."""
        for stream in self._of_group(group):
            if self._ledger is not None:
                self._ledger.close_consumer(stream, self._audience.consumers[consumer])
            stream.leave(consumer)

    def forget(self, group: int) -> None:
        """Remove the streams of a group without listeners."""
        for stream in list(self._of_group(group)):
            self._close(stream)

    def listeners(self, group: int) -> Iterator[Application]:
        for application in self._audience.applications.values():
            if group in application.listening:
                yield application

    def expire(self, now_ns: int) -> None:
        """Remove streams that ended long enough ago."""
        for stream in [stream for stream, until_ns in self._ended.items() if now_ns >= until_ns]:
            self._close(stream)

    def next_deadline_ns(self) -> int | None:
        return min(self._ended.values(), default=None)

    def ended(self, key: StreamKey, epoch: int) -> ForwardedStream | None:
        """Return a stream that has ended and is still kept."""
        stream = self.streams.get(key)
        return stream if stream in self._ended and stream.epoch == epoch else None

    def _start(self, started: StreamStarted) -> None:
        incoming = self.incoming.pop((started.stream, started.epoch))
        stream = self.streams.get(started.stream)
        if stream is not None:
            self._ended.pop(stream, None)
        if stream is not None and stream.epoch == started.epoch:
            stream.go_on(incoming)
        else:
            self._open(ForwardedStream(incoming, started.first, started.is_replay, self._forwarder, self._config))
            stream = self.streams[started.stream]
        group = started.stream.group
        for consumer in self._audience.consumers.values():
            if group in consumer.listening and not stream.account.expected_by(consumer.number):
                stream.account.listen(consumer.number, started.first)
        for application in self.listeners(group):
            next_sequence = stream.account.expected_by(application.consumer.number)
            self._said.append(Tell(application.number, stream.position(application.number, next_sequence)))

    def _end(self, ended: StreamEnded, now_ns: int) -> None:
        stream = self.streams[ended.stream]
        self._catch_up(stream, ended.next_sequence - 1)
        self._tell(ended.stream.group, StreamOver(ended.stream, ended.epoch, ended.next_sequence, ended.cause))
        self._ended[stream] = now_ns + self._config.linger_ms * NS_PER_MS

    def _lose(self, receipt: LossReceipt) -> None:
        """Advance all positions to the lost packets, so that no application requests more than these."""
        stream = self.streams[receipt.stream]
        self._catch_up(stream, receipt.first - 1)
        stream.lose(receipt.first, receipt.last, receipt.cause)

    def _deliver(self, deliver: Deliver) -> None:
        stream = self.streams[deliver.stream]
        if deliver.sequence < stream.next_sequence:
            self._forward_packet(stream, bytes(deliver.data), gap=0, to_all=True)
            return
        data = bytes(deliver.data)
        if deliver.flags & REPAIR:  # in order, the packet is not a repair for applications
            data = restamp(data, clear_flags=REPAIR)
            stream.repaired += 1
        lost, stream.lost_last = stream.lost_last, []
        self._forward_packet(stream, data, to_all=bool(lost))
        if lost and stream.kept is not None:
            self._say_gone(stream, lost)

    def _say_gone(self, stream: ForwardedStream, lost: list[tuple[int, int]]) -> None:
        """Tell applications that these packets are gone, so that they do not request them."""
        gone = encode_gone(stream.key.publisher_id, stream.key.group, stream.epoch, lost[:RANGES_MAX])
        self._afterwards += [each.unicast(gone) for each in self.listeners(stream.key.group)]

    def _catch_up(self, stream: ForwardedStream, sequence: int) -> None:
        while True:
            try:
                self._forwarder.catch_up(stream.account, sequence, flags=stream.flags)
            except LimitError:
                self._take_another_outbox()
            else:
                return

    def _forward_packet(
        self, stream: ForwardedStream, data: bytes, *, gap: int | None = None, to_all: bool = False
    ) -> None:
        while True:
            try:
                self._forwarder.forward_packet(data, stream.account, gap=gap, to_all=to_all)
            except LimitError:
                self._take_another_outbox()
            else:
                return

    def _take_another_outbox(self) -> None:
        """Replace the full outbox; it is sent with the answers. An empty outbox always has enough room."""
        self._said.append(Send(self._forwarder.use(Outbox.for_consumers(self._forwarder.consumers_max))))

    def _tell(self, group: int, what: StreamOver | Collision) -> None:
        self._said += [Tell(application.number, what) for application in self.listeners(group)]

    def _of_group(self, group: int) -> Iterator[ForwardedStream]:
        return (stream for stream in self.streams.values() if stream.key.group == group)

    def _open(self, stream: ForwardedStream) -> None:
        before = self.streams.get(stream.key)
        if self._ledger is not None:
            self._ledger.open(stream)
            if before is not None:
                self._ledger.close(before, self._audience.consumers.values())
        self.streams[stream.key] = stream

    def _close(self, stream: ForwardedStream) -> None:
        if self._ledger is not None:
            self._ledger.close(stream, self._audience.consumers.values())
        self._forwarder.close(stream.account)
        self._ended.pop(stream, None)
        del self.streams[stream.key]
