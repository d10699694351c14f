"""FilteredReceiver: receives the messages of an application's interests through a filter module.

    with FilteredReceiver("127.0.0.1:7402", ["md.us.eq.AAPL.>"]) as receiver:
        for message in receiver: ...
        receiver.want("md.us.eq.IBM.>", where="bid_price > 100")

Use it like a MulticastReceiver, in the caller's thread; the control connection has a loop in another thread. When the
filter module ends, the receiver reconnects; then streams continue at their positions, and packets that cannot be
repaired are reported lost. Other threads may call want() at any time.
"""

import asyncio
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec

from penstock.base.clock import random_bytes
from penstock.base.counters import Counters
from penstock.base.errors import (
    OverrunError,
    RefusedError,
    SharedMemoryError,
    UnreachableError,
)
from penstock.base.log import logger
from penstock.filter.client.link import Attachment, Detached, FilterLink, Identity
from penstock.filter.client.selection import Selection
from penstock.filter.client.wanted import Condition, ModelFinder, WantedInterests, cut, shipped_model
from penstock.filter.core.control import (
    GROUP_KEY_ID,
    OWN_KEY_ID,
    Collided,
    Ended,
    Position,
    Register,
    Registered,
    Restarted,
    Wish,
)
from penstock.middleware import Collision, Expect, ExpectEnd, ReceiverConfig, StreamKey
from penstock.middleware.live._lanes import ReceivingLane, RingLane
from penstock.middleware.live.receiver import Received, SocketReceiver
from penstock.model import MessageModel
from penstock.net.live.loop_thread import LoopThread
from penstock.net.place import parse_place
from penstock.net.secret import Secret
from penstock.net.udp import Address, Outlet, address_key, host_socket
from penstock.shm.ring import RingReader
from penstock.wire import AuthenticationKey, Authenticator, MessageBatch

log = logger("filter.application")

STREAM = struct.Struct("<QI")  # publisher id and group
STREAM_AT, STREAM_END = 16, 28
POSITION_WAIT_S = 0.1
"""Maximum wait with a stream's first packet for its Position message, which arrives on the control connection."""

ATTACH_WAIT_S = 5.0
CHANGE_WAIT_S = 5.0
SLICE_S = 0.05
NAME_SIZE_MAX = 48

T = TypeVar("T")


class FilteredReceiver(SocketReceiver):
    """Receives from the filter module at `address`. The constructor returns when all interests are active; no answer
    within `timeout` seconds is an UnreachableError, a refusal a RefusedError.

    `delivery` is "unicast", "ring" (shared memory, on the filter's host) or "shared" (one copy for several
    applications of this host). `application_id` is the address for messages to this application alone; by default it
    is random, or, with a token, one of the token's client (security.direct_address) that the filter chooses.
    `models` finds models for conditions; the filter gets those of `documents`. Later refusals are passed to
    `on_refused`, or raised by receive(). Packets from the filter must be authentic under the registration's keys, if
    it has keys. With an `authenticator`, other packets (a publisher's repairs) must be authentic too.
    """

    def __init__(
        self,
        address: Address | str,
        topics: Sequence[str] = (),
        *,
        where: str = "",
        content: bytes = b"",
        channels: Sequence[str] = (),
        delivery: Wish = "unicast",
        name: str = "application",
        application_id: int = 0,
        token: str = "",
        models: ModelFinder | None = None,
        documents: Callable[[], Sequence[str]] = tuple,
        secret: Secret | None = None,
        tls: ssl.SSLContext | None = None,
        config: ReceiverConfig | None = None,
        counters: Counters | None = None,
        spin: bool = False,
        loss: float = 0.0,
        gather_us: int = 0,
        thread: LoopThread | None = None,
        on_refused: Callable[[RefusedError], None] | None = None,
        timeout: float = ATTACH_WAIT_S,
        authenticator: Authenticator | None = None,
    ) -> None:
        place = parse_place(address) if isinstance(address, str) else address
        interface = _interface_towards(place)
        own = host_socket(interface)
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        config = msgspec.structs.replace(config or ReceiverConfig(), nack="unicast")
        self._has_keys = authenticator is not None
        authenticator = authenticator or Authenticator()
        super().__init__(
            own,
            [],
            {},
            config=config,
            counters=counters,
            spin=spin,
            loss=loss,
            bell=self._bell,
            only_expected=True,
            gather_us=gather_us,
            authenticator=authenticator,
        )
        self._authenticator = authenticator
        self._wanted = WantedInterests(models or shipped_model, self.counters)
        if topics:
            self._wanted.add(topics, Condition(where, content), channels)
        self._lock = threading.Lock()  # for threads that change interests
        self._ring: RingReader | None = None
        self._attachment: Attachment | None = None
        self._attachment_count = 0
        self._filter: Address = ("", 0)
        self._first_positions: dict[tuple[StreamKey, int], int] = {}  # of streams, per filter connection
        self._waited: set[StreamKey] = set()  # streams whose Position message did not arrive in time
        self._refusal: RefusedError | None = None
        self._on_refused = on_refused
        self._own_thread = None if thread is not None else LoopThread("penstock-filter-link")
        self._thread: LoopThread = thread or self._own_thread  # type: ignore[assignment]
        register = _register(name, own.getsockname()[1], delivery, application_id, token)
        identity = Identity(register, interface, secret, tls)
        self._link = FilterLink(place, identity, self._wanted, documents, self._on_inbox, self._refused)
        self._run(self._link.run())
        try:
            self._wait_until_attached(place, timeout)
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> int:
        """The address for messages to this application alone (MulticastPublisher.send_to)."""
        return self._link.application_id

    @property
    def is_attached(self) -> bool:
        """True if the filter module is connected and all interests are active."""
        return self._link.attached.is_set()

    @property
    def is_refused(self) -> bool:
        """True if a refusal prevents further registrations."""
        return self._link.failure is not None

    @property
    def detached_s(self) -> float:
        """Seconds since the receiver was last attached."""
        return 0.0 if self.is_attached else time.monotonic() - self._link.lost_at

    @property
    def attachment(self) -> int:
        """Number of connections to a filter so far, in the order of receive()."""
        return self._attachment_count

    # Changing interests, in any thread

    def want(self, *topics: str, where: str = "", content: bytes = b"", channels: Sequence[str] = ()) -> bool:
        """Add interests. True if they are active; otherwise they will be after the next registration. Raises
        RefusedError."""
        return self.change(topics, (), where=where, content=content, channels=channels)

    def unwant(self, *topics: str, where: str = "", content: bytes = b"") -> bool:
        """Remove interests; messages on their way may still arrive."""
        return self.change((), topics, where=where, content=content)

    def change(
        self,
        want: Sequence[str],
        unwant: Sequence[str],
        *,
        where: str = "",
        content: bytes = b"",
        channels: Sequence[str] = (),
    ) -> bool:
        """Add and remove interests at once: messages that match both before and after are never missed."""
        condition = Condition(where, content)
        more = list(cut(want, condition, channels))
        less = list(cut([topic for topic in unwant if topic not in set(want)], condition))
        with self._lock:
            fresh = self._wanted.add(want, condition, channels)
        try:
            holds = self._change(self._link.change(more, less))
        except RefusedError:
            with self._lock:
                self._wanted.remove(fresh, condition)
            raise
        with self._lock:
            self._wanted.remove([topic for each in less for topic in each.topics], condition)
        return holds

    def learn(self, models: Sequence[MessageModel]) -> None:
        """Register models that conditions refer to."""
        self._run(self._link.learn([model.text for model in models])).result(CHANGE_WAIT_S)

    def renew(self, token: str) -> None:
        """Use a newer token; delivery continues."""
        self._run(self._link.renew(token))

    # Receiving

    async def stream(self) -> AsyncIterator[list[Received]]:
        """Yield received items in an asyncio loop, until the generator is closed. A thread waits for them."""
        while True:
            if received := await asyncio.to_thread(self.receive, SLICE_S):
                yield received

    def close(self) -> None:
        self._run(self._link.close()).result()
        if self._own_thread is not None:
            self._own_thread.close()
        self._leave_ring()
        for told in self._link.inbox:
            if isinstance(told, Attachment):
                told.close()
        if self._attachment is not None:
            self._attachment.close()
        super().close()
        os.close(self._bell)

    # Messages of the filter module

    def do_due_work(self, now_ns: int) -> list[Received]:
        is_told = self._link.inbox or self._refusal is not None
        return (self._hear(now_ns) if is_told else []) or super().do_due_work(now_ns)

    def _hear(self, now_ns: int) -> list[Received]:
        received: list[Received] = []
        inbox = self._link.inbox
        while inbox:
            told = inbox.popleft()
            match told:
                case Attachment():
                    self._attach(told)
                case Position():
                    received += self._carry_out(self._core.handle(self._expectation(told), now_ns))
                case Ended():
                    key = StreamKey(told.publisher_id, told.group)
                    self._first_positions.pop((key, told.epoch), None)
                    received += self._carry_out(
                        self._core.handle(ExpectEnd(key, told.epoch, told.next_sequence), now_ns)
                    )
                case Collided():
                    key = StreamKey(told.publisher_id, told.group)
                    received.append(Collision(key, told.epoch, parse_place(told.owner), parse_place(told.intruder)))
                case Restarted():
                    self._enter_ring()
                case Detached():
                    self._leave_ring()
        if self._refusal is not None:
            raise self._refusal
        return received

    def _attach(self, attachment: Attachment) -> None:
        """Use the sources of this registration only."""
        if self._attachment is not None:
            self._attachment.close()
        registered = attachment.registered
        self._attachment = attachment
        self._attachment_count += 1
        self._filter = (registered.host, registered.port)
        keys = keys_of(registered)
        self._authenticator.trust({self._filter: keys}, is_open=not self._has_keys and not keys)
        self._first_positions.clear()
        self._waited.clear()
        self._sockets = [each for each in (self._own, attachment.group, attachment.request_socket) if each is not None]
        self._outlet = Outlet((attachment.request_socket or self._own).fileno())
        self._inlet.listen_to([each.fileno() for each in reversed(self._sockets)])
        selection = Selection.of(self._wanted, registered, self.address)
        self.choose = None if selection is None else selection.among
        self._enter_ring()

    def _enter_ring(self) -> None:
        self._leave_ring()
        attachment = self._attachment
        if attachment is not None and attachment.segment is not None:
            self._ring = RingReader(attachment.segment, wait="spin" if self.spin else "block")
            source, gather_ns = address_key(self._filter), self._gather_ns
            self.lane = RingLane(
                self._inlet, self._core.in_order, self._ring, source, self._lose_ring, gather_ns=gather_ns
            )

    def _lose_ring(self, error: SharedMemoryError) -> None:
        """The ring was overrun, or the filter module has ended."""
        if isinstance(error, OverrunError):
            self._run(self._link.restart_ring())
            self.counters.add("rings_overrun")
        self._leave_ring()

    def _leave_ring(self) -> None:
        """Read the rest of an intact ring, then use only the application's own socket until the next ring."""
        if self._ring is not None:
            self.lane = ReceivingLane(self._inlet, self._core.in_order, gather_ns=self._gather_ns)
            self._ring.close()
            self._ring = None

    def _expectation(self, told: Position) -> Expect:
        key = StreamKey(told.publisher_id, told.group)
        # a second Position further on means that the stream was not forwarded in between
        is_anew = self._first_positions.get((key, told.epoch), told.next_sequence) < told.next_sequence
        self._first_positions[key, told.epoch] = told.next_sequence
        assert self._attachment is not None
        is_ours = self._attachment.registered.repair == "filter" or not told.host
        repair_source = None if is_ours else (told.host, told.port)
        return Expect(key, told.epoch, told.next_sequence, self._filter, repair_source, is_anew)

    def _on_inbox(self) -> None:
        """Called in the thread of the loop."""
        self.notice()
        self._inlet.wake()

    def _refused(self, error: RefusedError) -> None:
        """Called in the thread of the loop."""
        if self._on_refused is not None:
            self._on_refused(error)
        elif self._link.failure is not None:
            self._refusal = error

    # Packets out of order or before their Position

    def take_rest(self, messages: MessageBatch | None, now_ns: int) -> list[Received]:
        received = self._await_position(0 if messages is None else messages.packet_count, now_ns)
        return received + super().take_rest(messages, now_ns)

    def _await_position(self, start: int, now_ns: int) -> list[Received]:
        """Wait for the Position message of a stream whose first packet overtook it."""
        received: list[Received] = []
        deadline = time.monotonic() + POSITION_WAIT_S
        for key in self._streams_without_position(start):
            while not self._core.is_expected(key, self._filter) and key not in self._waited:
                left = deadline - time.monotonic()
                if left <= 0:
                    self._waited.add(key)
                    break
                with self._link.arrived:
                    if not self._link.inbox:
                        self._link.arrived.wait(left)
                received += self._hear(now_ns)
        return received

    def _streams_without_position(self, start: int) -> set[StreamKey]:
        """Streams of the filter module's packets without a Position message so far."""
        found = set()
        for index in range(start, len(self._batch)):
            data = self._batch.datagram(index)
            if len(data) >= STREAM_END and self._batch.source(index) == self._filter:
                key = StreamKey(*STREAM.unpack_from(data, STREAM_AT))
                if not self._core.is_expected(key, self._filter):
                    found.add(key)
        return found

    # Helpers

    def _run(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return self._thread.start(work)

    def _change(self, work: Coroutine[Any, Any, bool]) -> bool:
        future = self._run(work)
        try:
            return future.result(CHANGE_WAIT_S)
        except TimeoutError:
            future.cancel()
            return False

    def _wait_until_attached(self, place: Address, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not self._link.attached.wait(min(SLICE_S, max(deadline - time.monotonic(), 0.0))):
            if self._link.failure is not None:
                raise self._link.failure
            if time.monotonic() >= deadline:
                raise self._link.last_refusal or UnreachableError(
                    f"no filter module answers at {place[0]}:{place[1]}",
                    hint="start `penstock filter`, or receive from the channels directly",
                )


def keys_of(registered: Registered) -> tuple[AuthenticationKey, ...]:
    """Keys of packets from the filter module, and of requests to it."""
    keys = ((OWN_KEY_ID, registered.key), (GROUP_KEY_ID, registered.group_key))
    return tuple(AuthenticationKey(key_id, key) for key_id, key in keys if key)


def _register(name: str, port: int, delivery: Wish, application_id: int, token: str) -> Register:
    unique = f"{name[:NAME_SIZE_MAX]}-{random_bytes(6).hex()}"  # names of a filter's applications are unique
    if not application_id and not token:  # with a token, the filter chooses: an address is bound to its client
        application_id = 1 + int.from_bytes(random_bytes(8), "little") % (2**64 - 1)
    return Register(unique, port, delivery, "", application_id, token)


def _interface_towards(place: Address) -> str:
    """The address of the interface towards the filter module, to which it will send."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(place)
        except OSError as error:
            raise UnreachableError(f"no route to {place[0]}: {error.strerror or error}") from None
        return str(probe.getsockname()[0])
