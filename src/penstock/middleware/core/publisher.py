"""Publisher: packs messages into numbered packets, and repairs packets that receivers missed."""

import zlib
from collections import deque
from collections.abc import Sequence
from enum import Enum, auto

from typing_extensions import Buffer

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.base.core import Tick, refuse
from penstock.base.counters import Cause, Counters
from penstock.base.errors import LocalProtocolError, PacketError
from penstock.base.ids import PUBLISHER_ID_MAX
from penstock.base.limits import EPOCH_MAX
from penstock.middleware.config import PublisherConfig
from penstock.middleware.core._outgoing import OutgoingCursor
from penstock.middleware.core._requests import RequestGate
from penstock.middleware.core.authentication import watch_refused
from penstock.middleware.core.events import (
    Address,
    Close,
    Closed,
    DatagramReceived,
    Multicast,
    MulticastStored,
    Publish,
    PublishBatch,
    PublisherEvent,
    PublisherInstruction,
    Unicast,
)
from penstock.middleware.core.gaps import merged
from penstock.middleware.core.repair_limits import BURSTS_PER_SECOND, RepairLimits
from penstock.topics import check_topic
from penstock.wire import (
    RANGES_MAX,
    TRAILER_SIZE,
    AuthenticationKey,
    AuthenticationScope,
    Authenticator,
    Kind,
    LeaseFlag,
    Packer,
    Packet,
    PacketFlag,
    PacketStore,
    VouchedPublisher,
    decode,
    encode_gone,
    restamp,
)
from penstock.wire._authentication import source_key, strip_trailer

TOPICS_REMEMBERED_MAX = 65_536

REPAIR_PACE_NS = NS_PER_MS
"""Time between two slices of retransmitted packets, during which new messages are published."""

REPAIR_SLICE = 32
"""Packets retransmitted in one slice; more if repair_rate_max requires it."""

REQUEST_BURST_MIN = 16
"""Minimum burst of admitted requests."""

REPAIRS_PENDING_MAX = 8_192
"""Packets that wait for retransmission."""


class _State(Enum):
    OPEN = auto()
    LINGERING = auto()
    CLOSED = auto()


class Publisher:
    """The core of one publisher, for any number of groups. The epoch must be higher than at its last start.

    With `is_authenticated` every packet has an authentication trailer, and requests without one are refused. Packets
    made before authenticate() was called have a trailer without a tag: receivers refuse them, and get them by repair
    when there is a key. While the `lease` of the keys has ended, requests are refused too, because a revoked client may
    hold the keys.

    Repair requests pass the `gate` and are answered in slices, REPAIR_PACE_NS apart. handle(DatagramReceived) does
    both; a driver with batches of datagrams has the gate admit a batch, and then calls answer() for each datagram.
    `seed` prevents others from predicting which sources share a token bucket.
    """

    def __init__(
        self,
        publisher_id: int,
        epoch: int,
        config: PublisherConfig,
        counters: Counters | None = None,
        *,
        is_authenticated: bool = False,
        lease: LeaseFlag | None = None,
        seed: int = 0,
    ) -> None:
        if not 1 <= publisher_id <= PUBLISHER_ID_MAX:
            raise LocalProtocolError(f"publisher id {publisher_id} is not in 1 to 2**64 - 1")
        if not 1 <= epoch <= EPOCH_MAX:
            raise LocalProtocolError(f"epoch {epoch} is not in 1 to 2**32 - 1")
        self.publisher_id = publisher_id
        self.epoch = epoch
        self.config = config
        self.counters = counters or Counters("publisher")
        self._streams: dict[int, _OutgoingStream] = {}
        self._state = _State.OPEN
        self.counters.watch("packets_sent", lambda: sum(each.packets_sent for each in self._streams.copy().values()))
        self.counters.watch(
            "messages_published", lambda: sum(each.messages_published for each in self._streams.copy().values())
        )
        self._linger_deadline_ns = 0
        self._limits = RepairLimits(config.repair_source_rate_max, config.repair_rate_max, config.repair_packets_max)
        self._repairs: deque[tuple[_OutgoingStream, int, Address]] = deque()  # packets to send again, in slices
        self._repair_slice = max(REPAIR_SLICE, -(-config.repair_rate_max * REPAIR_PACE_NS // NS_PER_SECOND))
        self._slice_left = 0
        self._next_slice_ns: int | None = None
        self._key: AuthenticationKey | None = None
        self._authenticator = Authenticator(lease=lease) if is_authenticated else None
        if self._authenticator is not None:
            watch_refused(self.counters, self._authenticator)
        self.gate = gate = RequestGate(
            seed,
            publisher_id=publisher_id,
            source_per_s=config.request_source_rate_max,
            source_burst=max(REQUEST_BURST_MIN, config.request_source_rate_max / BURSTS_PER_SECOND),
            total_per_s=config.request_rate_max,
            total_burst=max(REQUEST_BURST_MIN, config.request_rate_max / BURSTS_PER_SECOND),
            authenticator=self._authenticator,
        )
        self.counters.watch("nacks_limited", lambda: gate.limited)
        self.counters.watch("packets_dropped", lambda: gate.stale, cause=Cause.STALE_REQUEST)

    @property
    def authenticator(self) -> Authenticator | None:
        return self._authenticator

    @property
    def is_authenticated(self) -> bool:
        return self._authenticator is not None

    @property
    def key(self) -> AuthenticationKey | None:
        """The key of the trailers."""
        return self._key

    @property
    def packet_size_max(self) -> int:
        """Maximum size of a packet without its trailer."""
        return self.config.packet_size_max - (TRAILER_SIZE if self.is_authenticated else 0)

    def authenticate(self, keys: Sequence[AuthenticationKey], active_key_id: int) -> None:
        """Accept requests under these keys, and make trailers with the active one, from the next packet on."""
        if self._authenticator is None:
            raise LocalProtocolError("the publisher makes no trailers", hint="create it with is_authenticated=True")
        own = VouchedPublisher(self.publisher_id, self.epoch, self.epoch)
        self._authenticator.use([AuthenticationScope("", tuple(keys), active_key_id, (own,))])
        self._key = next((key for key in keys if key.key_id == active_key_id), None)
        for stream in self._streams.values():
            stream.kept.authenticate(self._key)

    def with_trailer(self, packet: bytes) -> bytes:
        return packet if self._authenticator is None else packet + self._authenticator.trailer(packet)

    def handle(self, event: PublisherEvent, now_ns: int) -> list[PublisherInstruction]:
        match event:
            case Publish():
                return self._stream(event.group, now_ns).publish(event, now_ns)
            case PublishBatch():
                return self._stream(event.group, now_ns).publish_batch(event, now_ns)
            case DatagramReceived():
                source_number = event.source_key or source_key(event.source) or zlib.crc32(repr(event.source).encode())
                if not self.gate.admits(event.data, source_number, now_ns):
                    return []
                return self.answer(event.data, event.source, now_ns)
            case Tick():
                return self._tick(now_ns)
            case Close():
                return self._close(now_ns)
            case _:
                refuse(self, event)

    def stream(self, group: int, now_ns: int) -> OutgoingCursor:
        """Return the stream of a group. Its publish_one() equals handle(Publish) for one message that is sent at
        once in its own packet, without an event."""
        return self._stream(group, now_ns)

    def next_deadline_ns(self) -> int | None:
        if self._state is _State.CLOSED:
            return None
        deadlines = [stream.keep_alive_deadline_ns for stream in self._streams.values()]
        if (service_ns := self.next_service_ns()) is not None:
            deadlines.append(service_ns)
        return min(deadlines, default=None)

    def next_service_ns(self) -> int | None:
        """next_deadline_ns() without the keep-alives, whose deadlines the streams have in compiled memory."""
        if self._state is _State.CLOSED:
            return None
        deadlines = [stream.send_at_ns for stream in self._streams.values() if stream.send_at_ns is not None]
        if self._repairs and self._next_slice_ns is not None:
            deadlines.append(self._next_slice_ns)
        if self._state is _State.LINGERING:
            deadlines.append(self._linger_deadline_ns)
        return min(deadlines, default=None)

    def next_sequence(self, group: int) -> int:
        """The number of the next packet to `group`."""
        stream = self._streams.get(group)
        return stream.packer.next_sequence if stream else 1

    def kept(self, group: int) -> PacketStore | None:
        """The packets kept for repairs on `group`."""
        stream = self._streams.get(group)
        return stream.kept if stream else None

    def _stream(self, group: int, now_ns: int) -> "_OutgoingStream":
        """Return the stream to publish on."""
        if self._state is not _State.OPEN:
            raise LocalProtocolError("publish after close", hint="make a new publisher, with a higher epoch")
        stream = self._streams.get(group)
        if stream is None:
            stream = self._streams[group] = _OutgoingStream(self, group, now_ns)
        return stream

    def _tick(self, now_ns: int) -> list[PublisherInstruction]:
        if self._state is _State.CLOSED:
            return []
        instructions = self._send_repairs(now_ns)
        for stream in self._streams.values():
            instructions += stream.tick(now_ns)
        if self._state is _State.LINGERING and now_ns >= self._linger_deadline_ns:
            self._state = _State.CLOSED
            instructions.append(Closed())
        return instructions

    def _close(self, now_ns: int) -> list[PublisherInstruction]:
        if self._state is not _State.OPEN:
            return []
        self._state = _State.LINGERING
        self._linger_deadline_ns = now_ns + self.config.linger_ms * NS_PER_MS
        instructions: list[PublisherInstruction] = []
        for stream in self._streams.values():
            instructions += stream.say_goodbye(now_ns)
        return instructions

    def answer(self, data: Buffer, source: Address, now_ns: int) -> list[PublisherInstruction]:
        """Answer a datagram that the gate has admitted."""
        try:
            packet = decode(strip_trailer(data))
        except PacketError as error:
            self.counters.add("packets_dropped", cause=error.cause)
            return []
        if packet.kind != Kind.NACK or packet.publisher_id != self.publisher_id:
            return []  # on a shared group, publishers receive all packets
        stream = None if self._state is _State.CLOSED else self._streams.get(packet.group)
        if stream is None or packet.epoch != self.epoch:
            self.counters.add("packets_dropped", cause=Cause.UNKNOWN_STREAM)
            return []
        self.counters.add("nacks_received")
        room = REPAIRS_PENDING_MAX - len(self._repairs)
        budget = min(self.config.repair_packets_max, room, self._limits.available(source, now_ns))
        chosen, instructions = stream.choose(packet, source, budget, now_ns)
        self._limits.spend(source, len(chosen))
        self._repairs += [(stream, sequence, source) for sequence in chosen]
        return self._send_repairs(now_ns) + instructions

    def _send_repairs(self, now_ns: int) -> list[PublisherInstruction]:
        """Send requested packets, at most one slice per REPAIR_PACE_NS; later Ticks send the rest, so that
        publishing is not delayed."""
        instructions: list[PublisherInstruction] = []
        if self._repairs and (self._next_slice_ns is None or now_ns >= self._next_slice_ns):
            self._next_slice_ns = now_ns + REPAIR_PACE_NS
            self._slice_left = self._repair_slice
        while self._repairs and self._slice_left:
            self._slice_left -= 1
            stream, sequence, source = self._repairs.popleft()
            instructions += stream.repair(sequence, source)
        return instructions


class _OutgoingStream(OutgoingCursor):
    """One group of a publisher."""

    def __init__(self, publisher: Publisher, group: int, now_ns: int) -> None:
        config = publisher.config
        self._publisher = publisher
        self._config = config
        self._counters = publisher.counters
        self._group = group
        self._packet_flags = int(PacketFlag.REPLAY) if config.is_replay else 0
        self.packer = Packer(
            publisher.publisher_id,
            group,
            publisher.epoch,
            packet_size_max=publisher.packet_size_max,
            keep_alive_packets=config.keep_alive_packets,
            flags=self._packet_flags,
        )
        self.kept = PacketStore(
            config.retransmission_packets_max,
            config.retransmission_bytes_max,
            has_trailers=publisher.is_authenticated,
        )
        if publisher.is_authenticated:
            self.kept.authenticate(publisher.key)
        self.topics = {}
        self.is_prompt = True
        self._closed: list[bytes] = []  # complete packets that are not sent yet
        self._unsent: list[PublisherInstruction] = []  # instructions of a batch that was refused
        self._goodbye: bytes | None = None
        self.send_at_ns: int | None = None
        """Time of the Tick that sends the messages before a message that was refused."""
        self.silence_first_ns = min(config.keep_alive_first_ms, config.keep_alive_ms) * NS_PER_MS
        self.silence_ns = self.silence_first_ns
        self.keep_alive_deadline_ns = now_ns + self.silence_ns
        self._repaired_ns: dict[int, int] = {}

    def publish(self, event: Publish, now_ns: int) -> list[PublisherInstruction]:
        """Send the messages. A message that cannot be sent is refused with an error; earlier ones are sent all the
        same."""
        try:
            for message in event.messages:
                self._check_topic(message.topic)
                self._closed += self.packer.add(
                    message.topic,
                    message.payload,
                    model_id=message.model_id,
                    model_version=message.model_version,
                    flags=message.flags,
                    extensions=message.extensions,
                )
                self.messages_published += 1
        except Exception:
            self._send_soon(now_ns)
            raise
        self._flush()
        return self._send(now_ns)

    def publish_batch(self, event: PublishBatch, now_ns: int) -> list[PublisherInstruction]:
        """Send the messages in packed form: all of them or, with an error, none."""
        batch = event.batch
        self._flush()
        self._unsent = self._send(now_ns)
        try:
            count = self.kept.pack(
                batch.topic_data,
                batch.payloads,
                batch.rows,
                publisher_id=self._publisher.publisher_id,
                group=self._group,
                epoch=self._publisher.epoch,
                packet_size_max=self._publisher.packet_size_max,
                keep_alive_packets=self._config.keep_alive_packets,
                flags=self._packet_flags,
            )
        except Exception:
            self._send_soon(now_ns)
            raise
        first = self.packer.next_sequence
        self.packer.skip(count)
        instructions, self._unsent = self._unsent, []
        if count:
            self.messages_published += len(batch)
            self._note_sent(count, now_ns)
            instructions.append(MulticastStored(self._group, self.kept, first, first + count - 1))
        return instructions

    def tick(self, now_ns: int) -> list[PublisherInstruction]:
        if self.send_at_ns is not None and now_ns >= self.send_at_ns:
            self._flush()
        if now_ns >= self.keep_alive_deadline_ns and not self._closed:
            self._flush()  # a message that waits in the packer also breaks the silence
            return self._send(now_ns) or self._keep_alive(now_ns)
        return self._send(now_ns)

    def say_goodbye(self, now_ns: int) -> list[PublisherInstruction]:
        self.is_prompt = False
        self._flush()
        self._goodbye = self.packer.empty(PacketFlag.KEEP_ALIVE | PacketFlag.GOODBYE)
        self._closed.append(self._goodbye)
        return self._send(now_ns)

    def choose(
        self, request: Packet, source: Address, budget: int, now_ns: int
    ) -> tuple[list[int], list[PublisherInstruction]]:
        """The packets to retransmit, at most `budget`, and by multicast once per hold time; and the GONE answer for
        packets that are no longer stored."""
        chosen: list[int] = []
        gone: list[tuple[int, int]] = []
        wanted = 0
        for first, last in merged(request.ranges[:RANGES_MAX]):
            lost, present = self.kept.split(first, last)
            if lost is not None:
                gone.append(lost)
                self._counters.add("repairs_unavailable", lost[1] - lost[0] + 1)
            wanted += len(present)
            within = present[: max(budget, 0)]
            budget -= len(within)
            chosen += [sequence for sequence in within if not self._is_held(sequence, now_ns)]
        if budget <= 0 < wanted:
            self._counters.add("nacks_limited")
        if not gone:
            return chosen, []
        answer = encode_gone(self._publisher.publisher_id, self._group, self._publisher.epoch, gone)
        return chosen, [self._address(answer, source)]

    def repair(self, sequence: int, source: Address) -> list[PublisherInstruction]:
        """Retransmit a packet, unless it has been evicted by newer packets."""
        if sequence < self.kept.oldest:
            self._counters.add("repairs_unavailable")
            return []
        self._counters.add("repairs_sent")
        packet = restamp(self.kept.get(sequence), set_flags=PacketFlag.REPAIR)
        return [self._address(packet, source)]

    def _check_topic(self, topic: str) -> None:
        if topic in self.topics or not topic:  # without a topic: the packer checks whether an empty topic is allowed
            return
        check_topic(topic)
        if len(self.topics) >= TOPICS_REMEMBERED_MAX:
            self.topics.clear()
        self.topics[topic] = topic.encode()

    def _is_held(self, sequence: int, now_ns: int) -> bool:
        if self._config.repair == "unicast":
            return False
        hold_ns = self._config.repair_hold_ms * NS_PER_MS
        repaired_ns = self._repaired_ns.get(sequence)
        if repaired_ns is not None and now_ns - repaired_ns < hold_ns:
            self._counters.add("repairs_suppressed")
            return True
        if len(self._repaired_ns) >= 2 * self._config.retransmission_packets_max:
            self._repaired_ns = {key: at for key, at in self._repaired_ns.items() if key >= self.kept.oldest}
        self._repaired_ns[sequence] = now_ns
        return False

    def _address(self, data: bytes, source: Address) -> PublisherInstruction:
        datagram = self._publisher.with_trailer(data)
        if self._config.repair == "unicast":
            return Unicast(source, datagram)
        return Multicast(self._group, datagram)

    def _flush(self) -> None:
        self.send_at_ns = None
        packet = self.packer.flush()
        if packet is not None:
            self._closed.append(packet)

    def _send(self, now_ns: int) -> list[PublisherInstruction]:
        """Send complete packets."""
        instructions, self._unsent = self._unsent, []
        self.is_prompt = self._goodbye is None
        if self._closed:
            packets, self._closed = self._closed, []
            for packet in packets:
                self.kept.keep(packet)
            self._note_sent(len(packets), now_ns)
            instructions += [Multicast(self._group, self._publisher.with_trailer(packet)) for packet in packets]
        return instructions

    def _send_soon(self, now_ns: int) -> None:
        """After an error, the next Tick sends the earlier messages."""
        self.is_prompt = False
        self.send_at_ns = now_ns

    def _note_sent(self, packets: int, now_ns: int) -> None:
        """Restart the silence timer after sending."""
        self.packets_sent += packets
        self.silence_ns = self.silence_first_ns
        self.keep_alive_deadline_ns = now_ns + self.silence_ns

    def _keep_alive(self, now_ns: int) -> list[PublisherInstruction]:
        """Send a keep-alive and double the interval, up to `keep_alive_ms`; after the goodbye, repeat the goodbye."""
        instructions: list[PublisherInstruction] = []
        silence_ns = min(2 * self.silence_ns, self._config.keep_alive_ms * NS_PER_MS)
        if self._goodbye is not None:
            instructions.append(Multicast(self._group, self._publisher.with_trailer(self._goodbye)))
        else:
            self._closed.append(self.packer.empty(PacketFlag.KEEP_ALIVE))
            self._counters.add("keep_alives_sent")
            instructions += self._send(now_ns)
        self.silence_ns = silence_ns
        self.keep_alive_deadline_ns = now_ns + silence_ns
        return instructions
