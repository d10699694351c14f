"""A publisher on UDP multicast, with a thread that answers repair requests and sends keep-alives."""

import atexit
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from weakref import WeakSet

from typing_extensions import Buffer

from penstock.base.clock import NS_PER_MS, SystemRandomness
from penstock.base.core import Tick
from penstock.base.counters import Counters
from penstock.base.errors import ConfigurationError, LocalProtocolError, PenstockError
from penstock.base.ids import random_publisher_id
from penstock.base.log import logger
from penstock.middleware.config import PublisherConfig
from penstock.middleware.core.batch import Packable
from penstock.middleware.core.direct import direct_message, direct_topic
from penstock.middleware.core.events import (
    Address,
    Close,
    Multicast,
    MulticastStored,
    OutgoingMessage,
    Publish,
    PublishBatch,
    PublisherInstruction,
    Unicast,
)
from penstock.middleware.core.grouping import batch_by_group, messages_by_group
from penstock.middleware.core.publisher import Publisher
from penstock.middleware.live._lanes import LanePublisher, PublishingLane
from penstock.middleware.live.epoch_file import claim_epoch
from penstock.middleware.live.receiver import note_unsent
from penstock.model import Message
from penstock.net.udp import Channel, Inlet, Memberships, Outlet, address_key, host_socket
from penstock.shm import RingWriter
from penstock.topics import GroupMap
from penstock.wire import AuthenticationKey, DatagramBatch, LeaseFlag

log = logger("middleware.driver")

SERVICE_SLICE_NS = 50 * NS_PER_MS
"""Maximum sleep of the publisher's thread before it checks whether it must stop."""

NEVER_NS = 2**62
"""The deadline of a core without a deadline."""

BATCH = 16


class MulticastPublisher(LanePublisher):
    """Publishes on one channel. Without a `publisher_id` the id is random; with one, the epochs are stored in a file,
    or the caller supplies an epoch that was never used.

    With a map (`groups`) every topic has its own group, on the map's port; the channel then only sets the interface and
    the hop count. Messages on different groups are not ordered.

    A `ring`, with room for the largest packet, gets every packet before the network: for a filter module on this host.
    The caller closes the ring, after the publisher. Messages with `is_host_only` are not sent to the network, because
    only applications of this host need them.

    With `to`, packets go to this one receiver instead of their group.

    With `keys`, packets have an authentication trailer made with the last key, and requests without a valid trailer are
    refused. authenticate() changes the keys. After their `lease` has ended, all requests are refused.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        publisher_id: int | None = None,
        epoch_path: Path | None = None,
        epoch: int | None = None,
        config: PublisherConfig | None = None,
        counters: Counters | None = None,
        groups: GroupMap | None = None,
        ring: RingWriter | None = None,
        is_host_only: bool = False,
        to: Address | None = None,
        keys: Sequence[AuthenticationKey] | None = None,
        lease: LeaseFlag | None = None,
    ) -> None:
        if publisher_id is not None and epoch_path is None and epoch is None:
            raise ConfigurationError(
                "a publisher with a fixed id needs a file for its epochs", hint="give epoch_path, or no publisher_id"
            )
        if is_host_only and ring is None:
            raise ConfigurationError("a publisher for this host only needs a ring", hint="give ring")
        identity = random_publisher_id(SystemRandomness()) if publisher_id is None else publisher_id
        if epoch is None:
            epoch = 1 if epoch_path is None else claim_epoch(epoch_path)
        self.counters = counters or Counters("publisher")
        config = config or PublisherConfig()
        super().__init__(channel.group_id, groups, linger_us=config.linger_us)
        self._core = Publisher(
            identity,
            epoch,
            config,
            self.counters,
            is_authenticated=keys is not None,
            lease=lease,
            seed=SystemRandomness().below(2**64),
        )
        if keys is not None:
            self._core.authenticate(keys, keys[-1].key_id if keys else 0)
        self._group = channel.group_id
        self._groups = groups
        self._ring = ring
        self._is_host_only = is_host_only
        self._only_key = None if to is None else address_key(to)
        self._port = channel.port if groups is None else groups.port
        self._socket = host_socket(channel.interface, multicast_hops=channel.hops)
        self._memberships = self._join(channel)
        listening = [self._socket.fileno(), *self._memberships.fds]
        self._inlet = Inlet(listening, DatagramBatch(max(BATCH, len(listening))))
        self._outlet = Outlet(self._socket.fileno())
        self._is_closed = threading.Event()  # the core has no further instructions
        self._own_key = address_key(self._socket.getsockname())
        self._core.gate.own = self._own_key
        self._failure: Exception | None = None
        self._service = threading.Thread(target=self._serve, name="penstock-publisher", daemon=True)
        self._service.start()
        _publishers.add(self)

    @property
    def publisher_id(self) -> int:
        return self._core.publisher_id

    @property
    def epoch(self) -> int:
        return self._core.epoch

    @property
    def address(self) -> Address:
        """The source address of packets, and the destination of repair requests."""
        host, port = self._socket.getsockname()
        return host, port

    @property
    def next_sequence(self) -> int:
        """The number of the next packet on the channel."""
        with self.turn:
            return self._core.next_sequence(self._group)

    def authenticate(self, keys: Sequence[AuthenticationKey], active_key_id: int) -> None:
        """Create trailers with the active key from now on, and accept requests with any of the keys."""
        with self.turn:
            self._core.authenticate(keys, active_key_id)

    @property
    def is_closed(self) -> bool:
        return self.is_stopped

    def publish_messages(self, messages: Sequence[OutgoingMessage]) -> None:
        """Send messages of any size now, with any extensions."""
        with self.turn:
            for group, chosen in messages_by_group(messages, self._groups, self._group):
                self._handle(Publish(group, chosen))

    def send_to(
        self,
        application: int,
        payload: Buffer | Message,
        *,
        topic: str = "",
        model_id: int = 0,
        model_version: int = 0,
    ) -> None:
        """Send one message to one application alone; `topic` only says what it is about. It goes to the publisher's
        group or, with a map, to that of direct_topic(); the application has to listen there."""
        if isinstance(payload, Message):
            model_id, model_version = payload.model.id, payload.version
        message = direct_message(application, payload, topic=topic, model_id=model_id, model_version=model_version)
        with self.turn:
            group = self._group if self._groups is None else self._groups.group_of(direct_topic(application))
            self._handle(Publish(group, (message,)))

    def publish_batch(self, batch: Packable) -> None:
        """Send many messages now, in as few packets as possible."""
        with self.turn:
            for group, chosen in batch_by_group(batch, self._groups, self._group):
                self._handle(PublishBatch(group, chosen))

    def restart_ring(self) -> None:
        """Restart the ring, for a new reader or one that was overrun."""
        with self.turn:
            if self._ring is not None:
                self._ring.restart()

    def say_goodbye(self) -> None:
        """Publish no further messages; repair requests are answered until close(), or for the configured time."""
        with self.turn:
            self.flush_lanes()
            self._carry_out(self._core.handle(Close(), time.monotonic_ns()))
            self._set_service()

    def close(self, *, linger: bool = True) -> None:
        """Send a goodbye; linger to answer the repair requests of stragglers, for the configured time."""
        if self.is_stopped:
            return
        self.say_goodbye()
        if linger and self._failure is None:
            self._is_closed.wait(self._core.config.linger_ms / 1_000 + 1)
        self.is_stopped = True
        self._outlet.send(self._own_key, b"")  # wakes the thread
        self._service.join()
        self.stop_flusher()
        self._outlet.close()
        self._memberships.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close(linger=error is None)

    def _leave_to_parent(self) -> None:
        """After a fork, in the child, which has no copy of the publisher's threads: its packets would reuse the
        parent's sequence numbers."""
        self.leave_to_parent()
        self.is_stopped = True
        self._failure = LocalProtocolError("it was made before a fork, and belongs to the parent")

    def _join(self, channel: Channel) -> Memberships:
        """The groups on which repair requests are received."""
        joined = Memberships(channel.interface)
        if self._core.config.nack == "unicast":
            return joined
        try:
            for group in (self._group,) if self._groups is None else self._groups.groups:
                joined.join(Channel.of(group, self._port, interface=channel.interface))
        except PenstockError:
            joined.close()
            self._socket.close()
            raise
        return joined

    def _serve(self) -> None:
        """The thread: answer requests and send keep-alives, until close() is complete. The thread waits without the
        GIL, so that it does not compete with the threads that publish."""
        batch = self._inlet.batch
        slice_ns = min(SERVICE_SLICE_NS, self._core.config.keep_alive_first_ms * NS_PER_MS)
        try:
            while not self.is_stopped:
                self.serve(self._inlet, self._core.gate, slice_ns)
                for index in range(len(batch)):
                    request, source = batch.datagram(index), batch.source(index)
                    with self.turn:
                        answers = self._carry_out_here(self._core.answer(request, source, time.monotonic_ns()))
                    self._send_each(answers)
                with self.turn:
                    answers = self._tick(time.monotonic_ns())
                self._send_each(answers)
        except Exception as error:  # the next caller that publishes gets the error
            log.error("publisher_failed", error=str(error))
            with self.turn:
                self._failure = error
                self.close_lanes()
            self._is_closed.set()

    def _send_each(self, answers: list[Unicast]) -> None:
        """Send repairs, while other threads publish."""
        for each in answers:
            self.note_unsent(1, self._outlet.send(address_key(each.destination), each.data))

    def _carry_out_here(self, instructions: list[PublisherInstruction]) -> list[Unicast]:
        """Execute all instructions except repairs, in this thread's turn; returns the repairs, for _send_each()."""
        self._carry_out([each for each in instructions if not isinstance(each, Unicast)])
        return [each for each in instructions if isinstance(each, Unicast)]

    def _tick(self, now_ns: int) -> list[Unicast]:
        """Give the core a Tick when it is due; returns repairs to send."""
        answers: list[Unicast] = []
        deadline_ns = self._core.next_deadline_ns()
        if deadline_ns is not None and now_ns >= deadline_ns:
            self.flush_lanes()
            answers = self._carry_out_here(self._core.handle(Tick(), now_ns))
        self._set_service()
        return answers

    def _set_service(self) -> None:
        """Tell serve() the core's next deadline. Call with the turn taken."""
        deadline_ns = self._core.next_service_ns()
        self.service_due_ns = NEVER_NS if deadline_ns is None else deadline_ns

    def publish_by_core(
        self, group: int, topic: str, payload: Buffer | Message, model_id: int, model_version: int
    ) -> None:
        """Publish a message that cannot use the group's lane, or the group's first message. Call with the turn
        taken."""
        self._handle(Publish(group, (OutgoingMessage(topic, payload, model_id, model_version),)))

    def _handle(self, event: Publish | PublishBatch) -> None:
        """Call with the turn taken."""
        if self._failure is not None:
            raise LocalProtocolError(f"the publisher has failed: {self._failure}", hint="make a new publisher")
        self.flush_lanes()
        if not self.has_lane(event.group):
            stream = self._core.stream(event.group, time.monotonic_ns())
            self.open_lane(event.group, PublishingLane(stream, self._outlet, self._key(event.group), self._ring))
        try:
            self._carry_out(self._core.handle(event, time.monotonic_ns()))
        finally:
            self._set_service()
        deadline_ns = self._core.next_deadline_ns()
        if deadline_ns is not None and deadline_ns < self.wakes_ns:
            self._outlet.send(self._own_key, b"")  # the thread sleeps in its socket: this wakes it

    def _carry_out(self, instructions: list[PublisherInstruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Multicast):
                if self._ring is not None:
                    self._ring.write(instruction.data)
                if key := self._key(instruction.group):
                    self.note_unsent(1, self._outlet.send(key, instruction.data))
            elif isinstance(instruction, MulticastStored):
                store, first, last = instruction.store, instruction.first, instruction.last
                if self._ring is not None:
                    self._ring.write_stored(store, first, last)
                if key := self._key(instruction.group):
                    self.note_unsent(*self._outlet.send_stored(key, store, first, last))
            elif isinstance(instruction, Unicast):
                self.note_unsent(1, self._outlet.send(address_key(instruction.destination), instruction.data))
            else:
                self._is_closed.set()

    def _key(self, group: int) -> int:
        """The outlet's key for the group and its port; 0 if packets are not sent to the network."""
        if self._only_key is not None:
            return self._only_key
        return 0 if self._is_host_only else group << 16 | self._port

    def note_unsent(self, count: int, error: int) -> None:
        if error:
            note_unsent(self.counters, count, error)


_publishers: WeakSet[MulticastPublisher] = WeakSet()


def _flush_all() -> None:
    """At the end of the program: send the waiting messages."""
    for publisher in list(_publishers):
        if not publisher.is_closed:
            publisher.flush()


def _leave_all_to_parent() -> None:
    for publisher in list(_publishers):
        publisher._leave_to_parent()


atexit.register(_flush_all)
os.register_at_fork(after_in_child=_leave_all_to_parent)
