"""The data thread of a filter module, the only user of the core, its sockets and its rings.

Other threads send mail: calls that the data thread makes between two batches. The effects of a call on the core are
carried out before the caller gets the result.
"""

import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol, TypeVar

import msgspec

from penstock.base.clock import NS_PER_MS, random_bytes
from penstock.base.core import Tick
from penstock.base.counters import Cause, Counters
from penstock.base.errors import LocalProtocolError, PenstockError, SharedMemoryError
from penstock.base.limits import PACKET_SIZE_MAX
from penstock.base.log import logger
from penstock.base.segment import Segment
from penstock.filter.core.control import RefusalCode
from penstock.filter.core.events import (
    Attached,
    Collision,
    FilterEvent,
    FilterInstruction,
    Join,
    Leave,
    Multicast,
    Opened,
    Send,
    Shut,
    Tell,
    Unicast,
)
from penstock.filter.core.module import FilterModule
from penstock.filter.live._dispatch import Dispatcher
from penstock.filter.live._relay import Relay
from penstock.filter.module_config import FilterModuleConfig
from penstock.middleware.live.receiver import note_unsent
from penstock.net.live.handover import Handover
from penstock.net.live.mailbox import Mailbox
from penstock.net.udp import Address, Channel, Inlet, Memberships, Outlet, address_key, host_socket
from penstock.security.core.refusal import RefusalError
from penstock.shm import RingReader, RingWriter
from penstock.wire import DatagramBatch

WAKE_NS = 50 * NS_PER_MS
"""Maximum sleep of the thread."""

RINGS_WAKE_NS = 1 * NS_PER_MS
"""Maximum sleep while publishers' rings are read: rings do not wake the thread, although copies from the network do."""

BATCH = 64
SEGMENT_NAME_SIZE = 16

T = TypeVar("T")

log = logger("filter.data")


class Owner(Protocol):
    """Receives events of the data thread. Called in the data thread."""

    def told(self, tell: Tell) -> None: ...

    def joined(self, group: int) -> None: ...

    def left(self, group: int) -> None: ...

    def ring_lost(self, number: int, error: PenstockError) -> None: ...

    def failed(self, error: Exception) -> None: ...

    def port_of(self, group: int) -> int | None: ...


class Placed(msgspec.Struct, frozen=True):
    """An application's place, and the segment of its ring if it has one."""

    attached: Attached
    segment: str = ""


class _PublisherRing(msgspec.Struct):
    reader: RingReader
    segment: Segment


class DataPath:
    """Forwards packets from start() to stop()."""

    def __init__(
        self, config: FilterModuleConfig, core: FilterModule, owner: Owner, handover: Handover, counters: Counters
    ) -> None:
        self.core = core
        self._config = config
        self._owner = owner
        self._handover = handover
        self._counters = counters
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._own = host_socket(config.interface, multicast_hops=config.hops)
        self._memberships = Memberships(config.interface)
        self._inlet = Inlet([self._own.fileno()], DatagramBatch(BATCH), self._bell)
        self._outlet = Outlet(self._own.fileno())
        self.dispatcher = Dispatcher(self._outlet, config.applications_max)
        self._relay = Relay(self._inlet, core.receiver.in_order, core.forwarder, self.dispatcher)
        self._channels: dict[int, Channel] = {}  # of joined groups
        self._rings: dict[int, tuple[RingWriter, str]] = {}  # by consumer
        self._publishers: dict[int, _PublisherRing] = {}
        self._mail = Mailbox(self._inlet.wake, "the filter")
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="penstock-filter", daemon=True)
        inlet, dispatcher, relay = self._inlet, self.dispatcher, self._relay
        counters.watch("datagrams_overflowed", lambda: inlet.overflows)
        counters.watch("datagrams_unsent", lambda: dispatcher.unsent, cause="to_application")
        core.counters.watch("packets_received", lambda: relay.copies)
        core.counters.watch("packets_dropped", lambda: relay.copies, cause=Cause.DUPLICATE)

    @property
    def address(self) -> Address:
        """The address of the module's own socket."""
        host, port = self._own.getsockname()
        return host, port

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Finish the current batch and stop. A second call has no effect."""
        self._is_stopped = True
        if self._bell < 0:
            return
        self._inlet.wake()
        if self._thread.is_alive():
            self._thread.join()
        self._close()

    # Mail, from any thread

    def ask(self, question: Callable[[], T]) -> "Future[T]":
        """Call the function in the data thread and return its result."""
        return self._mail.ask(question)

    # Calls in the data thread

    def handle(self, event: FilterEvent) -> list[Attached]:
        """Pass an event to the core and carry out its instructions."""
        instructions = self.core.handle(event, time.monotonic_ns())
        try:
            return self._carry_out(instructions)
        except PenstockError as error:  # the core has changed already, so the application must detach
            code = RefusalCode.RING if isinstance(error, SharedMemoryError) else RefusalCode.CHANNEL
            raise RefusalError(code, error.what, hint=error.hint, is_final=True) from None

    def attach(self, event: FilterEvent) -> Placed:
        (attached,) = self.handle(event)
        ring = self._rings.get(attached.consumer)
        return Placed(attached, "" if ring is None else ring[1])

    def restart_ring(self, consumer: int) -> None:
        if consumer not in self._rings:
            raise SharedMemoryError("the application has no ring")
        self._rings[consumer][0].restart()

    def read_publisher(self, number: int, segment: Segment, source: Address) -> None:
        """Receive packets from a publisher's ring as if they came from its socket. The segment is closed with the
        ring."""
        if len(self._publishers) >= self._config.publishers_max:
            raise SharedMemoryError(f"{len(self._publishers)} rings of publishers are the limit")
        reader = RingReader(segment)
        self._relay.add_ring(number, reader, address_key(source))
        self._publishers[number] = _PublisherRing(reader, segment)

    def forget_publisher(self, number: int) -> None:
        ring = self._publishers.pop(number, None)
        if ring is not None:
            self._relay.remove_ring(number)
            ring.reader.close()
            ring.segment.close()

    @property
    def groups(self) -> Sequence[int]:
        """The joined groups."""
        return list(self._channels)

    # The thread

    def _run(self) -> None:
        try:
            if self._config.cpu >= 0:
                os.sched_setaffinity(threading.get_native_id(), {self._config.cpu})
            while not self._is_stopped:
                self._turn()
        except Exception as error:  # otherwise the process would appear to be alive without its data thread
            log.error("data_thread_failed", error=repr(error))
            self._owner.failed(error)
        finally:
            self._mail.close()

    def _turn(self) -> None:
        self._mail.deliver()
        now_ns = time.monotonic_ns()
        deadline_ns = self.core.next_deadline_ns()
        if deadline_ns is not None and deadline_ns <= now_ns:
            self._carry_out(self.core.handle(Tick(), now_ns))
            deadline_ns = self.core.next_deadline_ns()
        wake_ns = now_ns + (RINGS_WAKE_NS if self._publishers and not self._config.spin else WAKE_NS)
        if deadline_ns is not None:
            wake_ns = min(wake_ns, deadline_ns)
        relay = self._relay
        if relay.run(wake_ns, self._config.spin):
            self._carry_out(self.core.receive_rest(self._inlet.batch, relay.start, relay.now_ns))
        if relay.lost_ring is not None:
            self._lose_publisher(relay.lost_ring)

    def _lose_publisher(self, number: int) -> None:
        """Drop a publisher whose ring was overrun, closed or is invalid; one more read of the ring finds the cause."""
        error: PenstockError = SharedMemoryError("the ring cannot be read")
        try:
            self._publishers[number].reader.read(0)
        except (SharedMemoryError, LocalProtocolError) as found:
            error = found
        self.forget_publisher(number)
        self._owner.ring_lost(number, error)

    def _carry_out(self, instructions: list[FilterInstruction]) -> list[Attached]:
        attached: list[Attached] = []
        for instruction in instructions:
            match instruction:
                case Send(outbox):
                    if self.dispatcher.send(outbox):
                        log.debug("datagrams_unsent", error=os.strerror(self.dispatcher.last_error))
                case Unicast(destination, data):
                    self._send(address_key(destination), data)
                case Multicast(group, data):
                    channel = self._channels.get(group)
                    self._send(0 if channel is None else channel.key, data)
                case Tell():
                    self._owner.told(instruction)
                case Opened():
                    self._open(instruction)
                case Shut(consumer):
                    self._shut(consumer)
                case Join(group):
                    self._join(group)
                case Leave(group):
                    self._leave(group)
                case Attached():
                    attached.append(instruction)
                case Collision():
                    log.warning("publisher_collision", stream=instruction.stream, intruder=instruction.intruder)
        return attached

    def _send(self, key: int, data: bytes) -> None:
        error = self._outlet.send(key, data) if key else errno.EADDRNOTAVAIL
        if error:
            note_unsent(self._counters, 1, error)

    def _open(self, opened: Opened) -> None:
        if opened.delivery != "ring":
            self.dispatcher.open(opened.consumer, address_key(opened.address), opened.key)
            return
        ring = RingWriter.create(self._config.ring_bytes, PACKET_SIZE_MAX)
        name = random_bytes(SEGMENT_NAME_SIZE).hex()  # known only to the application
        self._handover.offer(name, ring.segment)
        self._rings[opened.consumer] = (ring, name)
        self.dispatcher.open_ring(opened.consumer, ring)

    def _shut(self, consumer: int) -> None:
        self.dispatcher.shut(consumer)
        if consumer in self._rings:
            ring, name = self._rings.pop(consumer)
            self._handover.withdraw(name)
            ring.close()

    def _join(self, group: int) -> None:
        port = self._owner.port_of(group)
        if port is None:
            raise LocalProtocolError(f"cannot join group {group}: its port is unknown")
        channel = Channel.of(group, port, interface=self._config.interface)
        self._memberships.join(channel)
        self._channels[group] = channel
        self._listen()
        self._owner.joined(group)

    def _leave(self, group: int) -> None:
        channel = self._channels.pop(group, None)
        if channel is not None:
            self._memberships.leave(channel)
            self._listen()
        self._owner.left(group)

    def _listen(self) -> None:
        self._inlet.listen_to([*self._memberships.fds, self._own.fileno()])

    def _close(self) -> None:
        for number in list(self._publishers):
            self.forget_publisher(number)
        for consumer in list(self._rings):
            self._shut(consumer)
        self._inlet.close()
        self._outlet.close()
        self._memberships.close()
        self._own.close()
        bell, self._bell = self._bell, -1
        os.close(bell)
