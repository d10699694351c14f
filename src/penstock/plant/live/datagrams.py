"""Events between nodes by UDP (docs/reference/protocol/distribution-datagrams.md).

The upstream node sends messages of events in a packet stream of the middleware to the downstream node, which requests
lost packets again. Adaptive updates can have their own stream, whose packets are not kept: the next update replaces a
lost one. They can also be sent to a multicast group, which several nodes receive.

Packets and repair requests are authenticated with a random key of the sender, which the downstream node gets in the
welcome message of its control connection. When a member of a group leaves, the other members get a new group key. A
datagram without a valid trailer changes no state; it is counted.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from penstock.base.clock import NS_PER_SECOND, random_bytes
from penstock.base.counters import Cause, Counters
from penstock.base.errors import PenstockError
from penstock.base.log import logger
from penstock.engine import EventKind, TransmissionClass
from penstock.engine.control import GroupKey, Welcome
from penstock.middleware import Deliver, DeliverBatch, Expect, LossReceipt, StreamEnded, StreamKey, StreamStarted
from penstock.middleware.live import MulticastPublisher
from penstock.middleware.live.receiver import Received, SocketReceiver
from penstock.net.udp import Address, Channel, group_socket, host_socket
from penstock.plant.config import FRESH, SURE, DatagramsConfig
from penstock.plant.core.event_blocks import (
    BLOCK_SIZE_MAX,
    EPOCH,
    FORGETFUL,
    TOPIC,
    Cut,
    Publish,
    Publishing,
    blocks_of,
    cut_events,
    joined,
)
from penstock.plant.live.group_sender import GroupSender
from penstock.wire import AuthenticationKey, AuthenticationScope, Authenticator, VouchedPublisher
from penstock.wire.authentication import KEY_SIZE

OWN_KEY_ID = 1
SLICE_SECONDS = 0.05
GROUP_SILENCE_NS = 5 * NS_PER_SECOND
"""Time after which a node gives up a group that is alive but not received."""

RESENT_MAX = 4_096
"""Maximum number of records that are sent to the whole group again after one node missed them; more are sent to that
node alone."""

Way: TypeAlias = Literal["sure", "fresh", "group"]

log = logger("plant.datagrams")


class DatagramSender:
    """The upstream side: sends the events of one consumer, in one thread at a time. A member of the group is sent
    only the events that the group does not carry."""

    def __init__(
        self,
        config: DatagramsConfig,
        to: Address,
        counters: Counters,
        group: GroupSender | None = None,
        publish: Publish = MulticastPublisher,
        random: Callable[[int], bytes] = random_bytes,
    ) -> None:
        self.group = group
        self._missed = config.missed
        self._items: set[int] = set()  # items that a member knows
        self._key = AuthenticationKey(OWN_KEY_ID, random(KEY_SIZE))
        self._sure = publish(_channel(SURE, config.interface), to=to, counters=counters, keys=(self._key,))
        self._fresh: Publishing | None = None
        if config.missed == "wait":
            self._fresh = publish(
                _channel(FRESH, config.interface),
                to=to,
                counters=counters,
                config=FORGETFUL,
                publisher_id=self._sure.publisher_id,
                epoch=EPOCH,
                keys=(self._key,),
            )

    def introduce(self, welcome: Welcome) -> Welcome:
        """Add the addresses of the streams to the welcome message."""
        host, port = self._sure.address
        fresh_port = 0 if self._fresh is None else self._fresh.address[1]
        placed = msgspec.structs.replace(
            welcome,
            publisher_id=self._sure.publisher_id,
            host=host,
            port=port,
            fresh_port=fresh_port,
            key=self._key.key,
        )
        if self.group is None:
            return placed
        return msgspec.structs.replace(
            placed,
            group=str(self.group.channel),
            group_port=self.group.port,
            group_publisher_id=self.group.publisher_id,
            group_sequence=self.group.next_sequence,
            group_key=self.group.key.key,
            group_key_id=self.group.key.key_id,
        )

    def send(self, data: bytes) -> None:
        """Send complete events."""
        if self.group is not None:
            data = self._without_group(data, self.group)
        sure, fresh = (data, b"") if self._fresh is None else split_events(data)
        if sure:
            self._sure.publish(TOPIC, sure)
        if fresh and self._fresh is not None:
            self._fresh.publish(TOPIC, fresh)

    def missed(self, first_sequence: int, last_sequence: int) -> None:
        """Handle packets of the group that a member did not receive, as configured."""
        if (group := self.group) is None:
            return
        if first_sequence == last_sequence == 0:  # the member receives nothing from the group
            self.group, last_sequence = None, group.next_sequence
        elif self._missed == "wait":
            return
        lacking = [each for each in group.missed(first_sequence, last_sequence) if each.item in self._items]
        if self.group is not None and self._missed == "resend_all" and len(lacking) <= RESENT_MAX:
            group.send_updates(lacking)
            return
        for block in blocks_of(lacking, BLOCK_SIZE_MAX):
            self._sure.publish(TOPIC, joined(block))

    def _without_group(self, data: bytes, group: GroupSender) -> bytes:
        own: list[Cut] = []
        for event in cut_events(data):
            if event.kind == EventKind.DEFINE:
                self._items.add(event.item)
            elif event.kind == EventKind.REMOVE:
                self._items.discard(event.item)
            if not group.brings(event):
                own.append(event)
        return joined(own)

    def close(self) -> None:
        for each in (self._sure, self._fresh):
            if each is not None:
                each.close(linger=False)


def split_events(data: bytes) -> tuple[bytes, bytes]:
    """Split events into those that need reliable delivery and adaptive updates, which a later update supersedes.
    Metered updates need reliable delivery: the last one of a burst may stay the newest for a long time."""
    parts: tuple[list[Cut], list[Cut]] = ([], [])
    for event in cut_events(data):
        parts[event.kind == EventKind.UPDATE and event.cls == TransmissionClass.ADAPTIVE].append(event)
    return joined(parts[0]), joined(parts[1])


class Hearer(Protocol):
    """The downstream node; called in the receiver's thread."""

    def take_datagram(self, data: bytes, way: Way) -> None:
        """Events arrived."""

    def lose_datagrams(self) -> None:
        """Events that need reliable delivery were lost."""

    def miss_datagrams(self, first_sequence: int, last_sequence: int) -> None:
        """Packets of the group were lost."""

    def hear_no_group(self) -> None:
        """The group is alive, but its packets do not arrive."""


class _UpstreamReceiver(SocketReceiver):
    def expect(self, event: Expect) -> None:
        self._carry_out(self._core.handle(event, time.monotonic_ns()))


class DatagramReceiver:
    """The downstream side: receives from one upstream node at a time, in a thread."""

    def __init__(self, interface: str, hearer: Hearer, counters: Counters) -> None:
        self._interface = interface
        self._socket = host_socket(interface)
        self._hearer = hearer
        self._counters = counters
        self._groups: list[socket.socket] = []  # joined groups
        self._welcome: Welcome | None = None
        self._authenticator = Authenticator()
        self.group_keys: Sequence[GroupKey] = ()
        """The keys under which packets of the group are accepted."""
        self._thread: threading.Thread | None = None
        self._is_stopped = threading.Event()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def follow(self, welcome: Welcome) -> None:
        """Switch to the streams of this upstream session, and drop those of the previous session."""
        self.rest()
        self._welcome, self._authenticator = welcome, authenticator_of(welcome)
        self.group_keys = group_keys_of(welcome)
        streams = streams_of(welcome, self._interface)
        self._groups = [group_socket(each.channel) for each in streams if each.way == "group"]
        receiver = _UpstreamReceiver(
            socket.socket(fileno=os.dup(self._socket.fileno())),
            self._groups,
            {},
            config=None,
            counters=self._counters,
            spin=False,
            loss=0.0,
            only_expected=True,
            authenticator=self._authenticator,
        )
        for each in streams:
            receiver.expect(each.expected_from(welcome.host))
        self._is_stopped.clear()
        ways = {each.channel.group_id: each.way for each in streams}
        self._thread = threading.Thread(target=self._run, args=(receiver, ways), name="penstock-datagrams", daemon=True)
        self._thread.start()

    def use_group_keys(self, keys: Sequence[GroupKey]) -> None:
        """Accept packets of the group only under these keys. May be called in any thread."""
        if self._welcome is not None:
            self.group_keys = keys
            self._authenticator.use(scopes_of(self._welcome, keys))

    def rest(self) -> None:
        """Stop receiving."""
        if self._thread is not None:
            self._is_stopped.set()
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        self.rest()
        self._socket.close()

    def _run(self, receiver: SocketReceiver, ways: dict[int, Way]) -> None:
        deaf_ns = time.monotonic_ns() + GROUP_SILENCE_NS if "group" in ways.values() else None
        with receiver:
            while not self._is_stopped.is_set():
                try:
                    for each in receiver.receive(SLICE_SECONDS):
                        if isinstance(each, StreamStarted) and ways[each.stream.group] == "group":
                            deaf_ns = None
                        hear(each, ways, self._hearer)
                except PenstockError as error:  # malformed data: nothing in it can be trusted
                    log.warning("events_refused", code=error.code, error=str(error))
                    self._hearer.lose_datagrams()
                if deaf_ns is not None and time.monotonic_ns() >= deaf_ns:
                    deaf_ns = None
                    self._hearer.hear_no_group()


def hear(received: Received, ways: dict[int, Way], hearer: Hearer) -> None:
    """Pass a receiver's instructions on to the downstream node; `ways` has the kind of each stream."""
    match received:
        case Deliver(stream=stream, messages=messages):
            for message in messages:
                hearer.take_datagram(bytes(message.payload), ways[stream.group])
        case DeliverBatch(messages=batch):
            for index, message in enumerate(batch):
                hearer.take_datagram(bytes(message.payload), ways[batch.group_of(index)])
        case LossReceipt(stream=stream, first=first, last=last):
            if ways[stream.group] == "sure":
                hearer.lose_datagrams()
            elif ways[stream.group] == "group":
                hearer.miss_datagrams(first, last)
        case StreamEnded(stream=stream, cause=Cause.EXPIRED):
            if ways[stream.group] == "group":
                hearer.hear_no_group()


class Stream(NamedTuple):
    """A stream that a downstream node receives."""

    way: Way
    channel: Channel
    publisher_id: int
    port: int
    """The source port of its packets."""

    next_sequence: int = 1

    def expected_from(self, host: str) -> Expect:
        key = StreamKey(self.publisher_id, self.channel.group_id)
        return Expect(key, EPOCH, self.next_sequence, (host, self.port))


def authenticator_of(welcome: Welcome) -> Authenticator:
    """Verifies packets of the upstream node, and authenticates requests to it. Datagrams are dropped if the upstream
    node sent no key."""
    return Authenticator(scopes_of(welcome, group_keys_of(welcome)))


def group_keys_of(welcome: Welcome) -> list[GroupKey]:
    """The group's keys in the welcome message."""
    return [GroupKey(welcome.group_key_id, welcome.group_key)] if welcome.group else []


def scopes_of(welcome: Welcome, group_keys: Sequence[GroupKey]) -> list[AuthenticationScope]:
    """The authentication scopes of the upstream node; packets of the group are accepted under the given keys."""
    own = _scope("own", [AuthenticationKey(OWN_KEY_ID, welcome.key)], welcome.publisher_id)
    keys = [AuthenticationKey(each.key_id, each.key) for each in group_keys]
    return [*own, *_scope("group", keys, welcome.group_publisher_id)]


def _scope(name: str, keys: Sequence[AuthenticationKey], publisher_id: int) -> list[AuthenticationScope]:
    usable = {each.key_id: each for each in keys if len(each.key) == KEY_SIZE}
    if not usable or not publisher_id:
        return []
    vouched = VouchedPublisher(publisher_id, EPOCH, EPOCH)
    return [AuthenticationScope(name, tuple(usable.values()), max(usable), (vouched,))]


def streams_of(welcome: Welcome, interface: str) -> list[Stream]:
    """The streams that the welcome message announces."""
    streams = [Stream("sure", _channel(SURE, interface), welcome.publisher_id, welcome.port)]
    if welcome.fresh_port:
        streams.append(Stream("fresh", _channel(FRESH, interface), welcome.publisher_id, welcome.fresh_port))
    if welcome.group:
        channel = Channel.parse(welcome.group, interface=interface)
        publisher_id, sequence = welcome.group_publisher_id, welcome.group_sequence
        streams.append(Stream("group", channel, publisher_id, welcome.group_port, sequence))
    return streams


def _channel(group: str, interface: str) -> Channel:
    return Channel(group=group, port=1, interface=interface)
