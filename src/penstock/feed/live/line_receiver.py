"""Receives a source stream from its lines, requests missing messages, and returns the instructions of its
LineArbiter.
"""

import socket
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from penstock.base.clock import NS_PER_SECOND
from penstock.base.core import Tick
from penstock.base.counters import Counters
from penstock.base.errors import ConfigurationError
from penstock.feed.config import LineConfig
from penstock.feed.core.lines.arbiter import LineArbiter
from penstock.feed.core.lines.events import LineInstruction, RequestRetransmission
from penstock.feed.formats.datagram import DatagramFormat
from penstock.net.udp import Address, Channel, Inlet, Outlet, address_key, group_socket, host_socket
from penstock.wire import DatagramBatch

BATCH_DATAGRAMS = 64


class LineReceiver:
    """One source stream with sockets. Requests use a separate socket, which accepts answers only from the request
    server."""

    def __init__(
        self,
        channels: Sequence[Channel],
        framing: DatagramFormat,
        *,
        request_address: Address | None = None,
        config: LineConfig | None = None,
        counters: Counters | None = None,
        spin: bool = False,
    ) -> None:
        if not channels:
            raise ConfigurationError("a source stream needs at least one line")
        self.counters = counters or Counters("lines")
        self.arbiter = LineArbiter(config or LineConfig(), framing, lines=len(channels), counters=self.counters)
        self._framing = framing
        self._spin = spin
        self._request_key = None if request_address is None else address_key(request_address)
        self._sockets: list[socket.socket] = []
        try:
            for channel in channels:
                self._sockets.append(group_socket(channel))
            self._sockets.append(host_socket(channels[0].interface))
            if request_address is not None:
                self._sockets[-1].connect(request_address)
        except (ConfigurationError, OSError):
            self._close_sockets()
            raise
        self._inlet = Inlet([each.fileno() for each in self._sockets], DatagramBatch(BATCH_DATAGRAMS))
        self._outlet = Outlet(self._sockets[-1].fileno())
        inlet = self._inlet
        self.counters.watch("datagrams_overflowed", lambda: inlet.overflows)
        self.arbiter.handle(Tick(), time.monotonic_ns())

    def receive(self, timeout: float = 0.0) -> list[LineInstruction]:
        """Return received instructions, waiting at most `timeout` seconds; possibly none. They are valid until the
        next call."""
        deadline_ns = time.monotonic_ns() + round(timeout * NS_PER_SECOND)
        while True:
            now_ns = time.monotonic_ns()
            events: list[LineInstruction] = []
            wake_ns = self.arbiter.next_deadline_ns()
            if wake_ns is not None and wake_ns <= now_ns:
                events = self._carry_out(self.arbiter.handle(Tick(), now_ns))
            if not events:
                until_ns = deadline_ns if wake_ns is None else min(deadline_ns, max(wake_ns, now_ns))
                if self._wait(max(until_ns - now_ns, 0)):
                    events = self._carry_out(self.arbiter.receive_batch(self._inlet.batch, time.monotonic_ns()))
            if events or time.monotonic_ns() >= deadline_ns:
                return events

    def close(self) -> None:
        self._inlet.close()
        self._outlet.close()
        self._close_sockets()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _wait(self, wait_ns: int) -> int:
        try:
            return self._inlet.receive(wait_ns, self._spin)
        except ConnectionRefusedError:
            self.counters.add("datagrams_unsent", cause="econnrefused")  # no request server is running there now
            return 0

    def _close_sockets(self) -> None:
        for each in self._sockets:
            each.close()

    def _carry_out(self, instructions: list[LineInstruction]) -> list[LineInstruction]:
        """Send requests; return the other instructions."""
        events: list[LineInstruction] = []
        for instruction in instructions:
            if isinstance(instruction, RequestRetransmission):
                self._request(instruction)
            else:
                events.append(instruction)
        return events

    def _request(self, request: RequestRetransmission) -> None:
        data = self._framing.encode_request(request.session, request.first, request.count)
        if self._request_key is None or not data:
            return
        if error := self._outlet.send(self._request_key, data):
            self.counters.add("datagrams_unsent", cause=str(error))
