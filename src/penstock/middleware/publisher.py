"""The sending side: messages in, numbered packets out, repairs for whoever missed some."""

from penstock.base.core import Tick
from penstock.base.counters import Counters
from penstock.base.errors import LocalProtocolError, PacketError
from penstock.middleware.config import PublisherConfig
from penstock.middleware.events import (
    Address,
    Close,
    Closed,
    DatagramReceived,
    Multicast,
    Publish,
    PublisherEvent,
    PublisherInstruction,
    Unicast,
)
from penstock.middleware.retransmission import RetransmissionBuffer
from penstock.wire import RANGES_MAX, Kind, Packer, Packet, PacketFlag, decode, encode_gone, restamp

NS_PER_MS = 1_000_000
NS_PER_US = 1_000


class Publisher:
    """The core of one publisher, on any number of groups. The epoch must be higher than at its last start."""

    def __init__(
        self, publisher_id: int, epoch: int, config: PublisherConfig, counters: Counters | None = None
    ) -> None:
        self.publisher_id = publisher_id
        self.epoch = epoch
        self.config = config
        self.counters = counters or Counters("publisher")
        self._streams: dict[int, _OutgoingStream] = {}
        self._close_deadline_ns: int | None = None

    def handle(self, event: PublisherEvent, now_ns: int) -> list[PublisherInstruction]:
        match event:
            case Publish():
                return self._publish(event, now_ns)
            case DatagramReceived():
                return self._answer(event, now_ns)
            case Tick():
                return self._tick(now_ns)
            case Close():
                return self._close(now_ns)

    def next_deadline_ns(self) -> int | None:
        deadlines = [stream.next_deadline_ns() for stream in self._streams.values()]
        if self._close_deadline_ns is not None:
            deadlines.append(self._close_deadline_ns)
        return min(deadlines, default=None)

    def next_sequence(self, group: int) -> int:
        """The number the next packet to `group` will have."""
        stream = self._streams.get(group)
        return stream.packer.next_sequence if stream else 1

    def kept(self, group: int) -> RetransmissionBuffer | None:
        """What is kept for repairs on `group`."""
        stream = self._streams.get(group)
        return stream.kept if stream else None

    def _publish(self, event: Publish, now_ns: int) -> list[PublisherInstruction]:
        if self._close_deadline_ns is not None:
            raise LocalProtocolError("publish after close", hint="make a new publisher")
        stream = self._streams.get(event.group)
        if stream is None:
            stream = self._streams[event.group] = _OutgoingStream(self, event.group)
        instructions = stream.publish(event, now_ns)
        self.counters.add("messages_published", len(event.messages))
        return instructions

    def _tick(self, now_ns: int) -> list[PublisherInstruction]:
        instructions: list[PublisherInstruction] = []
        for stream in self._streams.values():
            instructions += stream.tick(now_ns)
        if self._close_deadline_ns is not None and now_ns >= self._close_deadline_ns:
            self._streams.clear()
            self._close_deadline_ns = None
            instructions.append(Closed())
        return instructions

    def _close(self, now_ns: int) -> list[PublisherInstruction]:
        instructions: list[PublisherInstruction] = []
        if self._close_deadline_ns is None:
            self._close_deadline_ns = now_ns + self.config.linger_ms * NS_PER_MS
            for stream in self._streams.values():
                instructions += stream.say_goodbye(now_ns)
        return instructions

    def _answer(self, event: DatagramReceived, now_ns: int) -> list[PublisherInstruction]:
        try:
            packet = decode(event.data)
        except PacketError as error:
            self.counters.add("packets_dropped", cause=error.cause)
            return []
        stream = self._streams.get(packet.group)
        is_ours = packet.publisher_id == self.publisher_id and packet.epoch == self.epoch and stream is not None
        if packet.kind != Kind.NACK or not is_ours or stream is None:
            return []  # on a shared group a publisher hears everybody's packets
        self.counters.add("nacks_received")
        return stream.repair(packet, event.source, now_ns)


class _OutgoingStream:
    """One group of a publisher."""

    def __init__(self, publisher: Publisher, group: int) -> None:
        self._publisher = publisher
        self._config = publisher.config
        self._counters = publisher.counters
        self._group = group
        self.packer = Packer(
            publisher.publisher_id, group, publisher.epoch, packet_size_max=self._config.packet_size_max
        )
        self.kept = RetransmissionBuffer(self._config.retransmission_packets_max, self._config.retransmission_bytes_max)
        self._goodbye: bytes | None = None
        self._flush_deadline_ns: int | None = None
        self._keep_alive_deadline_ns = 0
        self._silence_ms = self._config.keep_alive_first_ms
        self._packets_since_keep_alive = 0
        self._repaired_ns: dict[int, int] = {}

    def next_deadline_ns(self) -> int:
        if self._flush_deadline_ns is None:
            return self._keep_alive_deadline_ns
        return min(self._flush_deadline_ns, self._keep_alive_deadline_ns)

    def publish(self, event: Publish, now_ns: int) -> list[PublisherInstruction]:
        packets: list[bytes] = []
        for message in event.messages:
            packets += self.packer.add(
                message.topic,
                message.payload,
                model_id=message.model_id,
                model_version=message.model_version,
                flags=message.flags,
                extensions=message.extensions,
            )
        if self._config.flush_deadline_us == 0:
            packets += self._flush()
        elif packets or self._flush_deadline_ns is None:
            # what is open now was begun by this event
            self._flush_deadline_ns = now_ns + self._config.flush_deadline_us * NS_PER_US
        if self.packer.pending_count == 0:
            self._flush_deadline_ns = None
        if packets:
            self._silence_ms = self._config.keep_alive_first_ms
        return self._send(packets, now_ns)

    def tick(self, now_ns: int) -> list[PublisherInstruction]:
        packets: list[bytes] = []
        if self._flush_deadline_ns is not None and now_ns >= self._flush_deadline_ns:
            packets += self._flush()
            self._silence_ms = self._config.keep_alive_first_ms
        elif now_ns >= self._keep_alive_deadline_ns:
            self._silence_ms = min(2 * self._silence_ms, self._config.keep_alive_ms)
            if self._goodbye is not None:
                return self._send_again(self._goodbye, now_ns)
            packets += self._flush() or [self._keep_alive()]
        return self._send(packets, now_ns)

    def say_goodbye(self, now_ns: int) -> list[PublisherInstruction]:
        packets = self._flush()
        self._goodbye = self.packer.empty(PacketFlag.KEEP_ALIVE | PacketFlag.GOODBYE)
        self._silence_ms = self._config.keep_alive_first_ms
        return self._send([*packets, self._goodbye], now_ns)

    def repair(self, request: Packet, source: Address, now_ns: int) -> list[PublisherInstruction]:
        """Send again what is still kept, once per hold time when by multicast; name what is gone."""
        instructions: list[PublisherInstruction] = []
        gone: list[tuple[int, int]] = []
        budget = self._config.repair_packets_max
        for first, last in request.ranges[:RANGES_MAX]:
            missing, present = self.kept.split(first, last)
            if missing:
                gone.append((missing.start, missing.stop - 1))
                self._counters.add("repairs_unavailable", len(missing))
            for sequence in present[:budget]:
                packet = self.kept.get(sequence)
                if packet is None or self._is_held(sequence, now_ns):
                    continue
                instructions.append(self._address(restamp(packet, set_flags=PacketFlag.REPAIR), source))
                self._counters.add("repairs_sent")
                budget -= 1
        if gone:
            answer = encode_gone(self._publisher.publisher_id, self._group, self._publisher.epoch, gone)
            instructions.append(self._address(answer, source))
        return instructions

    def _is_held(self, sequence: int, now_ns: int) -> bool:
        if self._config.repair == "unicast":
            return False
        hold_ns = self._config.repair_hold_ms * NS_PER_MS
        repaired_ns = self._repaired_ns.get(sequence)
        if repaired_ns is not None and now_ns - repaired_ns < hold_ns:
            self._counters.add("repairs_suppressed")
            return True
        if len(self._repaired_ns) >= 2 * self._config.retransmission_packets_max:
            self._repaired_ns = {key: at for key, at in self._repaired_ns.items() if now_ns - at < hold_ns}
        self._repaired_ns[sequence] = now_ns
        return False

    def _address(self, data: bytes, source: Address) -> PublisherInstruction:
        if self._config.repair == "unicast":
            return Unicast(source, data)
        return Multicast(self._group, data)

    def _flush(self) -> list[bytes]:
        is_marked = self._packets_since_keep_alive >= self._config.keep_alive_packets
        packet = self.packer.flush(PacketFlag.KEEP_ALIVE if is_marked else 0)
        if packet is None:
            return []
        self._flush_deadline_ns = None
        if is_marked:
            self._packets_since_keep_alive = 0
        return [packet]

    def _keep_alive(self) -> bytes:
        self._packets_since_keep_alive = 0
        self._counters.add("keep_alives_sent")
        return self.packer.empty(PacketFlag.KEEP_ALIVE)

    def _send(self, packets: list[bytes], now_ns: int) -> list[PublisherInstruction]:
        """Send packets that were just numbered, the last of them with the highest number."""
        self._packets_since_keep_alive += len(packets)
        is_overdue = self._packets_since_keep_alive > self._config.keep_alive_packets
        if is_overdue and self._goodbye is None and self.packer.pending_count == 0:
            packets = [*packets, self._keep_alive()]
        sequence = self.packer.next_sequence - len(packets)
        for packet in packets:
            self.kept.keep(sequence, packet)
            sequence += 1
        self._counters.add("packets_sent", len(packets))
        self._keep_alive_deadline_ns = now_ns + self._silence_ms * NS_PER_MS
        return [Multicast(self._group, packet) for packet in packets]

    def _send_again(self, packet: bytes, now_ns: int) -> list[PublisherInstruction]:
        self._keep_alive_deadline_ns = now_ns + self._silence_ms * NS_PER_MS
        return [Multicast(self._group, restamp(packet, set_flags=PacketFlag.REPAIR))]
