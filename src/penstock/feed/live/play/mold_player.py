"""Plays an exchange over MoldUDP64: sends every datagram to each line, and answers repair requests."""

import random
import select
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.base.counters import Counters
from penstock.base.errors import ConfigurationError
from penstock.base.log import logger
from penstock.feed.core.play.config import PlayerConfig
from penstock.feed.core.play.generator import ItchGenerator
from penstock.feed.core.play.mold_server import MoldServer
from penstock.feed.core.play.pace import Pace
from penstock.feed.core.play.script import Script
from penstock.feed.formats._framing import MOLD_HEADER_SIZE
from penstock.feed.formats.stream import ByteStream
from penstock.feed.recorded.files import guess_format, open_file
from penstock.net.udp import Outlet, host_socket

REQUESTS_AT_ONCE = 64
ENDS = 3
"""Number of end-of-session datagrams, because datagrams may be lost."""

NOT_PLAYED = {"csv": "text", "capture": "a capture"}

log = logger("feed.player")


class MoldPlayer:
    """Opens its sockets when it is created; run() plays until the end of the day or until stopped."""

    def __init__(self, config: PlayerConfig, counters: Counters | None = None) -> None:
        self.config = config
        self.counters = counters or Counters("feed.player", node=config.name)
        self._open = ExitStack()
        self._randomness = random.Random(config.seed)
        self._losses = [*config.loss, *[0.0] * (len(config.lines) - len(config.loss))]
        self._server = MoldServer(
            config.session,
            packet_size_max=config.packet_size_max,
            kept_bytes_max=config.kept_bytes_max,
            counters=self.counters,
        )
        try:
            self._outlets = [(self._outlet(line.interface, line.hops), line.key) for line in config.lines]
            self._requests = self._open.enter_context(_request_socket(config.host, config.port))
            self.script = open_script(config, self._open)
        except BaseException:
            self._open.close()
            raise
        self.request_port: int = self._requests.getsockname()[1]
        self._heard_ns = 0

    @property
    def next_sequence(self) -> int:
        """Number of the next message."""
        return self._server.next_sequence

    def run(self, stop: threading.Event) -> None:
        """Play. At the end of the day send the end of the session, and answer requests until stopped."""
        pace = Pace(self.script, speed=self.config.speed, rate=self.config.rate, now_ns=time.monotonic_ns())
        ends = 0
        while not stop.is_set():
            now_ns = time.monotonic_ns()
            blocks = b"" if pace.is_over else pace.due(now_ns)
            if blocks:
                self._send(self._server.send(blocks), now_ns)
            elif now_ns - self._heard_ns >= self.config.heartbeat_ms * NS_PER_MS or (pace.is_over and ends < ENDS):
                self._send([self._server.end() if pace.is_over else self._server.heartbeat()], now_ns)
                ends += pace.is_over
            wait_ns = self.config.heartbeat_ms * NS_PER_MS if pace.is_over else pace.wait_ns(now_ns)
            self._answer(min(wait_ns, 50 * NS_PER_MS))

    def _send(self, datagrams: list[bytes], now_ns: int) -> None:
        self._heard_ns = now_ns
        for datagram in datagrams:
            for (outlet, key), loss in zip(self._outlets, self._losses, strict=True):
                if loss and self._randomness.random() < loss:
                    self.counters.add("datagrams_discarded")
                elif outlet.send(key, datagram):
                    self.counters.add("datagrams_unsent")

    def _answer(self, wait_ns: int) -> None:
        """Wait, answering requests meanwhile."""
        ready, _, _ = select.select([self._requests], [], [], wait_ns / NS_PER_SECOND)
        for _ in range(REQUESTS_AT_ONCE if ready else 0):
            try:
                request, source = self._requests.recvfrom(MOLD_HEADER_SIZE + 1)
                for datagram in self._server.answer(request):
                    self._requests.sendto(datagram, source)
            except BlockingIOError:
                return
            except OSError as error:
                # the requester's port is closed, or the buffer is full
                log.warning("request_unanswered", error=error.strerror)
                return

    def close(self) -> None:
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _outlet(self, interface: str, hops: int) -> Outlet:
        made = self._open.enter_context(host_socket(interface, multicast_hops=hops))
        outlet = Outlet(made.fileno())
        self._open.callback(outlet.close)
        return outlet


def open_script(config: PlayerConfig, open_files: ExitStack) -> Script:
    """Open the configured day; refuse a file of other messages than ITCH."""
    if not config.file:
        return Script.made_up(ItchGenerator(config.generate))
    path = Path(config.file)
    stream = ByteStream(open_files.enter_context(open_file(path)))
    file_format = guess_format(path, stream)
    if file_format != "itch":
        raise ConfigurationError(
            f"this is {NOT_PLAYED[file_format]}, which cannot be played",
            where=config.file,
            hint="a player reads a file of ITCH messages, plain or compressed",
        )
    return Script.of_file(stream)


def _request_socket(host: str, port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        made.bind((host, port))
        made.setblocking(False)
    except OSError as error:
        made.close()
        raise ConfigurationError(
            f"cannot accept requests at {host}:{port}: {error.strerror}", hint="choose another port, or 0"
        ) from None
    return made
