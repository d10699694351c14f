"""Plays messages as an exchange does: MoldUDP64 on lines A and B, with a request server. A driver: it has the sockets.

with MoldPlayer(MoldPlayerConfig()) as player:
    player.play(pieces(blocks, player.piece_size), Pace(rate=50_000))
"""

import random
import socket
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Annotated, Self

import msgspec

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.base.config import Config
from penstock.base.counters import Counters
from penstock.base.errors import ConfigurationError, PacketError
from penstock.base.log import logger
from penstock.feed.formats._framing import MOLD_HEADER_SIZE
from penstock.feed.formats.mold import PACKET_SIZE_DEFAULT, decode_request, encode_end, encode_header, session_name
from penstock.feed.history import History, Pace, Piece
from penstock.net.udp import Channel, Inlet, Outlet, address_key, host_socket
from penstock.wire import DatagramBatch

WAIT_NS_MAX = 50 * NS_PER_MS
PIECES_PER_LOOK = 16
ENDS = 3

log = logger("feed.mold_player")

Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class MoldPlayerConfig(Config, frozen=True):
    """Where and how to play; everything stays on this machine unless a channel names another interface."""

    session: Annotated[str, msgspec.Meta(min_length=1, max_length=10)] = "PENSTOCK"
    line_a: Channel = Channel(group="239.255.74.11", port=7411)
    line_b: Channel | None = Channel(group="239.255.74.12", port=7412)
    request_host: str = "127.0.0.1"
    request_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 7413
    """0 takes a free one."""

    packet_size_max: Annotated[int, msgspec.Meta(ge=100, le=65_507)] = PACKET_SIZE_DEFAULT
    heartbeat_ms: Annotated[int, msgspec.Meta(ge=1, le=60_000)] = 1_000
    history_size_max: Annotated[int, msgspec.Meta(ge=0, le=2**36)] = 256 * 1024 * 1024
    """Bytes of messages that are kept for requests."""

    loss_a: Share = 0.0
    loss_b: Share = 0.0
    """The share of a line's packets that are not sent, to see how they are missed."""

    seed: int = 1
    """Which ones those are."""


class MoldPlayer:
    """One session. `counters` has packets_sent, datagrams_discarded, retransmissions_served and _unavailable."""

    def __init__(self, config: MoldPlayerConfig | None = None, counters: Counters | None = None) -> None:
        self.config = config or MoldPlayerConfig()
        self.counters = counters or Counters("mold_player")
        self.history = History(self.config.history_size_max)
        self.piece_size = self.config.packet_size_max - MOLD_HEADER_SIZE
        self._randomness = random.Random(self.config.seed)
        channels = [channel for channel in (self.config.line_a, self.config.line_b) if channel is not None]
        self._sockets: list[socket.socket] = []
        try:
            for channel in channels:
                self._sockets.append(host_socket(channel.interface, multicast_hops=channel.hops))
            self._requests = self._request_socket()
        except ConfigurationError:
            self._close_sockets()
            raise
        losses = (self.config.loss_a, self.config.loss_b)
        self._lines = [
            (Outlet(made.fileno()), channel.key, loss)
            for made, channel, loss in zip(self._sockets, channels, losses, strict=False)
        ]
        self._sockets.append(self._requests)
        self._inlet = Inlet([self._requests.fileno()], DatagramBatch(64))
        self._answers = Outlet(self._requests.fileno())
        self._sent_ns = 0

    @property
    def request_address(self) -> tuple[str, int]:
        """Where to ask for messages to be sent again."""
        host, port = self._requests.getsockname()
        return host, port

    def play(self, pieces: Iterable[Piece], pace: Pace, *, should_stop: Callable[[], bool] = lambda: False) -> int:
        """Send everything, serving requests meanwhile; returns how many messages were sent."""
        before = self.history.next_sequence
        for number, piece in enumerate(pieces):
            now_ns = time.monotonic_ns()
            due_ns = pace.due_ns(piece, now_ns)
            if due_ns > now_ns:
                self._wait_until(due_ns, should_stop)
            elif number % PIECES_PER_LOOK == 0:
                self.serve(0)
            if should_stop():
                break
            self.history.add(piece)
            self._send_to_lines(self._packet(piece))
        return self.history.next_sequence - before

    def serve(self, wait_ns: int) -> None:
        """Answer requests for at most so long, and keep the lines alive."""
        now_ns = time.monotonic_ns()
        if now_ns - self._sent_ns >= self.config.heartbeat_ms * NS_PER_MS:
            self._send_to_lines(encode_header(self.config.session, self.history.next_sequence, 0))
        batch = self._inlet.batch
        self._inlet.receive(wait_ns)
        for index in range(len(batch)):
            self._answer(bytes(batch.datagram(index)), batch.source(index))

    def linger(self, seconds: float, *, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Heartbeats and answers only, so that stragglers can catch up."""
        self._wait_until(time.monotonic_ns() + round(seconds * NS_PER_SECOND), should_stop)

    def end(self) -> None:
        """Say that the session is over."""
        for _ in range(ENDS):
            self._send_to_lines(encode_end(self.config.session, self.history.next_sequence))

    def close(self) -> None:
        self._inlet.close()
        for outlet, _, _ in self._lines:
            outlet.close()
        self._answers.close()
        self._close_sockets()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _wait_until(self, due_ns: int, should_stop: Callable[[], bool]) -> None:
        while (wait_ns := due_ns - time.monotonic_ns()) > 0 and not should_stop():
            self.serve(min(wait_ns, WAIT_NS_MAX, self.config.heartbeat_ms * NS_PER_MS))

    def _packet(self, piece: Piece) -> bytes:
        return encode_header(self.config.session, piece.first_sequence, piece.count) + piece.blocks

    def _send_to_lines(self, packet: bytes) -> None:
        self._sent_ns = time.monotonic_ns()
        for outlet, key, loss in self._lines:
            if loss and self._randomness.random() < loss:
                self.counters.add("datagrams_discarded")
            elif error := outlet.send(key, packet):
                self.counters.add("datagrams_unsent", cause=str(error))
            else:
                self.counters.add("packets_sent")

    def _answer(self, data: bytes, source: tuple[str, int]) -> None:
        try:
            request = decode_request(data)
        except PacketError as error:
            self.counters.add("packets_dropped", cause=error.cause)
            return
        piece = None
        if request.session == session_name(self.config.session.encode("ascii")):
            piece = self.history.find_some(request.first_sequence, request.count)
        if piece is None:
            self.counters.add("retransmissions_unavailable")
            return
        self._answers.send(address_key(source), self._packet(piece))
        self.counters.add("retransmissions_served")

    def _request_socket(self) -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            made.bind((self.config.request_host, self.config.request_port))
        except OSError as error:
            made.close()
            where = f"{self.config.request_host}:{self.config.request_port}"
            raise ConfigurationError(
                f"cannot serve requests: {error.strerror}", where=where, hint="choose another port, or 0"
            ) from None
        return made

    def _close_sockets(self) -> None:
        for each in self._sockets:
            each.close()
