"""Publication in the data thread: application messages become numbered packets, which are sent, kept for repairs, and
read by the stream service and the recorder through taps.

A sealed feed has two copies of each packet: the sealed one is sent, the plain one is for the stream service and the
recorder. Models in band are sealed, so that nobody else can define what messages mean. Announcements of sessions and
discontinuities are not sealed, because receivers merge streams by them before they open messages, and their content
(reason, lost source numbers, session, trading date) is no market data. With the transport `tcp` no packet is sent;
everything else is the same.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy
from numpy.typing import NDArray

from penstock.base.core import Tick
from penstock.base.counters import Cause, Counters
from penstock.feed.core.models_in_band import ModelsInBand
from penstock.feed.core.sealing import seal_batch, seal_message
from penstock.feed.core.service.published import cut
from penstock.feed.live._tap import Tap
from penstock.middleware import Close, Multicast, MulticastStored, Publish, PublishBatch, Publisher
from penstock.middleware.core.batch import Packable
from penstock.middleware.core.events import OutgoingMessage, PublisherInstruction, Unicast
from penstock.middleware.core.reserved_topics import DISCONTINUITY_TOPIC
from penstock.middleware.live.receiver import note_unsent
from penstock.net.udp import Channel, Outlet, address_key
from penstock.security import Sealer
from penstock.security.live.key_lease import KeyLease
from penstock.wire import DatagramBatch, PacketStore

ROWS_MAX = 4_096
"""Maximum number of messages packed at once, so that the repair store can hold all their packets."""


class Rows(msgspec.Struct, frozen=True):
    """A subset of a batch's messages."""

    topic_data: bytes | NDArray[numpy.uint8]
    payloads: NDArray[numpy.uint8]
    rows: NDArray[Any]

    def __len__(self) -> int:
        return len(self.rows)


class Outbound:
    """One publisher on one channel; only the data thread uses it, except for the taps it gives away."""

    def __init__(
        self,
        publisher: Publisher,
        channel: Channel,
        outlet: Outlet | None,
        *,
        now_ns: int,
        is_sealed: bool = False,
        models: ModelsInBand | None = None,
    ) -> None:
        self.publisher = publisher
        self.group = channel.group_id
        self.destination = channel.key
        self.outlet = outlet
        self.cursor = publisher.stream(self.group, now_ns)
        self.is_sealed = is_sealed
        self.models = models or ModelsInBand()
        self.lease = KeyLease("sealing")
        self._sealer: Sealer | None = None
        self._sealers: dict[int, Sealer] = {}
        config = publisher.config
        self.open_store = self.cursor.kept
        if is_sealed:
            self.open_store = PacketStore(config.retransmission_packets_max, config.retransmission_bytes_max)
        self.taps: list[Tap] = []
        self.messages_unsent = 0

    def tap(self) -> Tap:
        """A reader of the packets that are published from now on, for another thread."""
        tap = Tap(self.open_store)
        self.taps.append(tap)
        return tap

    @property
    def key_id(self) -> int:
        """The id of the sealing key; 0: none."""
        return 0 if self._sealer is None else self._sealer.key_id

    def seal_with(self, sealer: Sealer) -> None:
        """Use a sealer from the next message on. A key keeps its first sealer, because the sealer counts its nonces."""
        if sealer.key_id != self.key_id:
            self._sealer = self._sealers.setdefault(sealer.key_id, sealer)

    def publish(self, batch: Packable, now_ns: int) -> None:
        for part in _parts(batch):
            if not self.is_sealed:
                self._carry_out(self.publisher.handle(PublishBatch(self.group, part), now_ns))
                continue
            self._keep_open(part)
            sealer = self._usable_sealer()
            if sealer is None:
                self._note_unsealed(len(part))  # nothing is sent unsealed
            else:
                sealed = seal_batch(part, sealer)
                self._carry_out(self.publisher.handle(PublishBatch(self.group, sealed), now_ns))
        self.announce()

    def publish_message(self, message: OutgoingMessage, now_ns: int) -> None:
        if not self.is_sealed:
            self._carry_out(self.publisher.handle(Publish(self.group, (message,)), now_ns))
        else:
            self._keep_message_open(message)
            sealer = self._usable_sealer()
            if sealer is None:
                self._note_unsealed(1)
            else:
                is_announcement = message.topic == DISCONTINUITY_TOPIC
                sealed = message if is_announcement else seal_message(message, sealer)
                self._carry_out(self.publisher.handle(Publish(self.group, (sealed,)), now_ns))
        self.announce()

    def receive(self, batch: DatagramBatch, now_ns: int) -> None:
        """Answer repair requests."""
        self.publisher.gate.admit(batch, now_ns)
        for index in range(len(batch)):
            self._carry_out(self.publisher.answer(batch.datagram(index), batch.source(index), now_ns))

    def tick(self, now_ns: int) -> None:
        if self._may_leave:
            for model in self.models.due(now_ns):
                self.publish_message(model, now_ns)
        deadline_ns = self.publisher.next_deadline_ns()
        if deadline_ns is not None and deadline_ns <= now_ns:
            self._carry_out(self.publisher.handle(Tick(), now_ns))
            self.announce()

    def next_deadline_ns(self) -> int | None:
        deadlines = (self.publisher.next_deadline_ns(), self.models.next_deadline_ns() if self._may_leave else None)
        return min((each for each in deadlines if each is not None), default=None)

    def say_goodbye(self, now_ns: int) -> None:
        self._carry_out(self.publisher.handle(Close(), now_ns))
        self.announce()

    def announce(self) -> None:
        for tap in self.taps:
            tap.announce(self.open_store.next_sequence)

    @property
    def counters(self) -> Counters:
        return self.publisher.counters

    @property
    def _may_leave(self) -> bool:
        """True if a key is available or not needed. Models wait for the key; no data is lost."""
        return not self.is_sealed or self._usable_sealer() is not None

    def _usable_sealer(self) -> Sealer | None:
        """None: there is no key, or the lease to use it has ended."""
        return self._sealer if self._sealer is not None and self.lease.is_valid else None

    def _note_unsealed(self, count: int) -> None:
        self.messages_unsent += count
        self.counters.add("messages_unsealed", count, cause=Cause.NO_KEY)

    def _keep_message_open(self, message: OutgoingMessage) -> None:
        publisher, store = self.publisher, self.open_store
        size_max = publisher.config.packet_size_max
        stream = (publisher.publisher_id, self.group, publisher.epoch)
        for packet in cut(message, *stream, store.next_sequence, size_max):
            store.keep(packet)

    def _keep_open(self, part: Packable) -> None:
        self.open_store.pack(
            part.topic_data,
            part.payloads,
            part.rows,
            publisher_id=self.publisher.publisher_id,
            group=self.group,
            epoch=self.publisher.epoch,
            packet_size_max=self.publisher.config.packet_size_max,
        )

    def _carry_out(self, instructions: list[PublisherInstruction]) -> None:
        if self.outlet is None:
            return
        for instruction in instructions:
            count, error = 1, 0
            if isinstance(instruction, MulticastStored):
                store, first, last = instruction.store, instruction.first, instruction.last
                count, error = self.outlet.send_stored(self.destination, store, first, last)
            elif isinstance(instruction, Multicast):
                error = self.outlet.send(self.destination, instruction.data)
            elif isinstance(instruction, Unicast):
                error = self.outlet.send(address_key(instruction.destination), instruction.data)
            if error:
                note_unsent(self.counters, count, error)


def _parts(batch: Packable) -> Iterator[Packable]:
    if len(batch) <= ROWS_MAX:
        yield batch
        return
    for start in range(0, len(batch), ROWS_MAX):
        yield Rows(batch.topic_data, batch.payloads, batch.rows[start : start + ROWS_MAX])
