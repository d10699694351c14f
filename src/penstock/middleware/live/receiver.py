"""Receivers on sockets: in the caller's thread, or in an asyncio loop."""

import asyncio
import errno
import os
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self, TypeAlias

from penstock.base.clock import NS_PER_SECOND, NS_PER_US, SystemRandomness
from penstock.base.core import Tick
from penstock.base.counters import Counters
from penstock.base.errors import ConfigurationError
from penstock.base.log import logger
from penstock.middleware.config import ReceiverConfig
from penstock.middleware.core.events import (
    Collision,
    Deliver,
    DeliverBatch,
    LossReceipt,
    Multicast,
    ReceiverInstruction,
    StreamEnded,
    StreamStarted,
    Unicast,
)
from penstock.middleware.core.receiver import Receiver
from penstock.middleware.live._lanes import LaneReceiver, ReceivingLane
from penstock.net.udp import (
    SOCKETS_MAX,
    Channel,
    Inlet,
    Outlet,
    address_key,
    group_sockets,
    host_socket,
    join_group,
    leave_group,
    sockets_needed,
)
from penstock.wire import Authenticator, DatagramBatch, MessageBatch

log = logger("middleware.driver")

Received: TypeAlias = Deliver | DeliverBatch | LossReceipt | StreamStarted | StreamEnded | Collision
"""All messages and events of a receiver, in order."""


class SocketReceiver(LaneReceiver):
    """A receiver on sockets: `own` sends requests and receives repairs; the others receive the groups. It works in the
    caller's thread, or in an asyncio loop. `keys` has the destination of each group for multicast requests.

    Spinning reacts within a microsecond and uses a whole core; otherwise the kernel wakes the thread. Then, with
    `gather_us`, the thread waits for further messages for up to that time: the delay is bounded, and many single
    messages cost few wake-ups. `loss` drops this share of the datagrams on arrival, to test repair. With an
    `authenticator` only authentic datagrams are accepted.
    """

    def __init__(
        self,
        own: socket.socket,
        others: Sequence[socket.socket],
        keys: dict[int, int],
        *,
        config: ReceiverConfig | None,
        counters: Counters | None,
        spin: bool,
        loss: float,
        gather_us: int = 0,
        bell: int = -1,
        only_expected: bool = False,
        authenticator: Authenticator | None = None,
    ) -> None:
        self.counters = counters or Counters("receiver")
        randomness = SystemRandomness()
        self._core = Receiver(
            config or ReceiverConfig(),
            randomness,
            self.counters,
            only_expected=only_expected,
            authenticator=authenticator,
        )
        self._loss = loss
        self._keys = keys
        self._own = own
        self._sockets = [own, *others]
        self._batch = DatagramBatch(64, randomness.below(2**64))
        self._bell = bell
        self._inlet = Inlet([each.fileno() for each in reversed(self._sockets)], self._batch, bell, coalesces=True)
        self._gather_ns = gather_us * NS_PER_US
        lane = ReceivingLane(self._inlet, self._core.in_order, gather_ns=self._gather_ns)
        super().__init__(lane, spin=spin, is_lossy=loss > 0)
        self._outlet = Outlet(own.fileno())
        inlet = self._inlet
        self.counters.watch("datagrams_overflowed", lambda: inlet.overflows)

    async def stream(self) -> AsyncIterator[list[Received]]:
        """Yield received items in an asyncio loop, until the generator is closed."""
        loop = asyncio.get_running_loop()
        is_ready = asyncio.Event()
        for each in self._sockets:
            loop.add_reader(each, is_ready.set)
        try:
            while True:
                timer = loop.call_later(self._idle_s(), is_ready.set)
                await is_ready.wait()
                timer.cancel()
                is_ready.clear()
                if self._inlet.receive(0):
                    is_ready.set()  # check again after the other tasks of this loop had a turn
                    if received := self.take():
                        yield received
                if received := self.do_due_work(time.monotonic_ns()):
                    yield received
                await asyncio.sleep(0)
        finally:
            for each in self._sockets:
                loop.remove_reader(each)

    def close(self) -> None:
        self._inlet.close()
        self._outlet.close()
        for each in self._sockets:
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _idle_s(self) -> float:
        """Time for which no work is due unless a datagram arrives."""
        due_ns = self.next_due_ns()
        return 1.0 if due_ns is None else max(due_ns - time.monotonic_ns(), 0) / NS_PER_SECOND

    def descriptors(self) -> list[int] | None:
        """Return the descriptors of the sockets; None if other threads wake the receiver as well."""
        return None if self._bell >= 0 else [each.fileno() for each in self._sockets]

    def next_due_ns(self) -> int | None:
        return self._core.next_deadline_ns()

    def do_due_work(self, now_ns: int) -> list[Received]:
        """Give the core a Tick when it is due."""
        due_ns = self._core.next_deadline_ns()
        if due_ns is None or now_ns < due_ns:
            return []
        return self._carry_out(self._core.handle(Tick(), now_ns))

    def take(self) -> list[Received]:
        """Pass the datagrams in the batch to the core."""
        if self._loss:
            self.counters.add("datagrams_discarded", self._batch.lose(self._loss))
        now_ns = time.monotonic_ns()
        return self.take_rest(self._core.in_order.begin(self._batch, now_ns), now_ns)

    def take_rest(self, messages: MessageBatch | None, now_ns: int) -> list[Received]:
        """Pass the batch to the core; its first `messages` were in order and are already handled."""
        return self._carry_out(self._core.receive_rest(self._batch, messages, now_ns))

    def _carry_out(self, instructions: list[ReceiverInstruction]) -> list[Received]:
        """Send datagrams; return the items for the application."""
        self.notice()  # the core's deadline may have changed
        received: list[Received] = []
        for instruction in instructions:
            if isinstance(instruction, Unicast):
                self._send(address_key(instruction.destination), instruction.data)
            elif isinstance(instruction, Multicast):
                if (key := self._keys.get(instruction.group)) is not None:
                    self._send(key, instruction.data)
                else:
                    self.counters.add("datagrams_unsent", cause="foreign_group")  # a packet may claim any group
            else:
                received.append(instruction)
        return received

    def _send(self, key: int, data: bytes) -> None:
        error = self._outlet.send(key, data)
        if error:
            note_unsent(self.counters, 1, error)


class MulticastReceiver(SocketReceiver):
    """Receives from one or more channels on one interface; listen() changes them."""

    def __init__(
        self,
        channels: Sequence[Channel],
        *,
        config: ReceiverConfig | None = None,
        counters: Counters | None = None,
        spin: bool = False,
        loss: float = 0.0,
        gather_us: int = 0,
        authenticator: Authenticator | None = None,
    ) -> None:
        interface = _interface_of(channels)
        # repairs arrive at a separate socket, because several receivers of a host share the group's port
        own = host_socket(interface, multicast_hops=channels[0].hops)
        try:
            self._joined = group_sockets(channels)
        except ConfigurationError:
            own.close()
            raise
        self._interface = interface
        self._left: dict[socket.socket, Channel] = {}
        """Sockets of channels that were left: they receive no new data, and are read until the next listen()."""
        super().__init__(
            own,
            list(self._joined),
            {channel.group_id: channel.key for channel in channels},
            config=config,
            counters=counters,
            spin=spin,
            loss=loss,
            gather_us=gather_us,
            authenticator=authenticator,
        )

    def listen(self, channels: Sequence[Channel]) -> None:
        """Listen to these channels from now on, by the same interface. Streams of channels that stay continue without
        a break, and datagrams of a channel that is left are delivered if they arrived before. A stream that ended
        while its channel was left returns like a new stream, so packets of that time are not reported lost.

        If a group cannot be joined, the receiver listens to the same channels as before. If there is no room for
        further sockets, all sockets are replaced; datagrams that were not read from them are repaired.
        """
        if _interface_of(channels) != self._interface:
            raise ConfigurationError(
                f"the receiver uses interface {self._interface}, and the channels use {channels[0].interface}",
                hint="make another receiver",
            )
        again = {sock: channel for sock, channel in self._left.items() if channel in channels}
        known = {channel for joined in self._joined.values() for channel in joined}
        fresh = [channel for channel in channels if channel not in known and channel not in again.values()]
        made: dict[socket.socket, list[Channel]] = {}
        with ExitStack() as undo:
            for sock, channel in again.items():
                join_group(sock, channel)
                undo.callback(leave_group, sock, channel)
            used = 1 + len(self._joined) + len(again)
            is_full = used + sockets_needed(fresh, used=used) > SOCKETS_MAX
            if is_full:
                made = group_sockets(channels)
            elif fresh:
                made = group_sockets(fresh, used=used)
            undo.pop_all()
        stale = [*self._joined, *self._left] if is_full else [sock for sock in self._left if sock not in again]
        joined_before = {} if is_full else {**self._joined, **{sock: [channel] for sock, channel in again.items()}}
        self._joined, self._left = made, {}
        for sock, joined in joined_before.items():
            for channel in [each for each in joined if each not in channels]:
                leave_group(sock, channel)
            if staying := [each for each in joined if each in channels]:
                self._joined[sock] = staying
            else:
                self._left[sock] = joined[-1]
        self._sockets = [self._own, *self._left, *self._joined]
        self._keys.update({channel.group_id: channel.key for channel in channels})
        self._inlet.listen_to([each.fileno() for each in reversed(self._sockets)])
        for sock in stale:
            sock.close()
        for group in {channel.group_id for channel in channels} - {channel.group_id for channel in known}:
            self._core.note_absence(group)


def _interface_of(channels: Sequence[Channel]) -> str:
    interfaces = {channel.interface for channel in channels}
    if len(interfaces) != 1:
        raise ConfigurationError("a receiver needs channels, all on one interface")
    return interfaces.pop()


def note_unsent(counters: Counters, count: int, error: int) -> None:
    """Drop the packet: receivers that miss it request it again."""
    counters.add("datagrams_unsent", count, cause=errno.errorcode.get(error, str(error)).lower())
    log.debug("datagram_unsent", error=os.strerror(error), count=count)
