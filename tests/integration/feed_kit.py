"""A feed for tests: an exchange that plays lines A and B from this process, and adapters as real processes."""

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from penstock.base.clock import random_bytes
from penstock.base.errors import PacketError
from penstock.bench.adapters import AdapterProcess, is_synchronised_pair, wait_for
from penstock.bench.merging import MergingSubscriber
from penstock.feed.adapter_config import (
    AdapterConfig,
    AddressConfig,
    LineAddress,
    PeerConfig,
    PeersConfig,
    PublishConfig,
    SourceStreamConfig,
)
from penstock.feed.config import ServiceConfig, SynchroniserConfig
from penstock.feed.core.play.generator import GeneratorConfig, ItchGenerator
from penstock.feed.formats.mold import decode_request, encode_end, encode_packet
from penstock.middleware import ReceiverConfig
from penstock.net.secret import write_private
from penstock.net.udp import free_channel, free_ports, host_socket

SESSION = "TEST000001"
PER_PACKET = 20


class Exchange:
    """Plays the generator's messages on two lines, and answers requests; in a thread from start() to stop().

    begin_session() ends the session and plays another one.
    """

    def __init__(self, *, rate: int = 5_000, symbols: int = 20, messages: int = 1_000_000) -> None:
        self.lines = (free_channel(), free_channel())
        self._rate = rate
        self._messages = iter(ItchGenerator(GeneratorConfig(symbols=symbols, messages=messages)))
        self.session = SESSION
        self._said: dict[str, list[bytes]] = {SESSION: []}
        self._next: tuple[str, Iterator[bytes]] | None = None
        self._socket = host_socket("127.0.0.1")
        self._requests = host_socket("127.0.0.1")
        self._requests.setblocking(False)
        self._is_stopped = threading.Event()
        self.is_paused = threading.Event()
        self._thread = threading.Thread(target=self._run, name="exchange", daemon=True)

    @property
    def request_port(self) -> int:
        port: int = self._requests.getsockname()[1]
        return port

    @property
    def next_sequence(self) -> int:
        return len(self._said[self.session]) + 1

    def start(self) -> None:
        self._thread.start()

    def begin_session(self, name: str, messages: Iterable[bytes]) -> None:
        """Returns when the first packet of the session has been sent."""
        self._next = name, iter(messages)
        wait_for(lambda: self._next is None and self.next_sequence > 1, "the session has begun")

    def stop(self) -> None:
        self._is_stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()
        self._requests.close()

    def _run(self) -> None:
        period = PER_PACKET / self._rate
        due = time.monotonic()
        while not self._is_stopped.is_set():
            self._answer()
            if self._next is not None:
                self._send(encode_end(self.session, self.next_sequence))
                (self.session, self._messages), self._next = self._next, None
                self._said[self.session] = []
            if self.is_paused.is_set():
                self._send(encode_packet(self.session, self.next_sequence, []))
                self._is_stopped.wait(0.02)
                due = time.monotonic()
                continue
            batch = list(islice(self._messages, PER_PACKET))
            packet = encode_packet(self.session, self.next_sequence, batch)
            self._said[self.session] += batch
            self._send(packet)
            due += period
            if (wait := due - time.monotonic()) > 0:
                self._is_stopped.wait(wait)

    def _send(self, packet: bytes) -> None:
        for line in self.lines:
            self._socket.sendto(packet, (line.group, line.port))

    def _answer(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                data, source = self._requests.recvfrom(2_048)
                try:
                    request = decode_request(data)
                except PacketError:
                    continue
                said, first = self._said.get(request.session, []), request.first_sequence
                end = min(first + request.count, len(said) + 1)
                while first < end:
                    last = min(first + PER_PACKET, end)
                    self._requests.sendto(encode_packet(request.session, first, said[first - 1 : last - 1]), source)
                    first = last


class Feed:
    """An exchange and its adapters."""

    def __init__(self, directory: Path, exchange: Exchange, count: int = 2, **options: Any) -> None:
        self.exchange = exchange
        self.channels = [free_channel() for _ in range(count)]
        ports = free_ports(count)
        secret_file = self._make_secret(directory) if "admin" in options else ""
        self.adapters = []
        for index in range(count):
            others = tuple(PeerConfig(index=each, port=ports[each]) for each in range(count) if each != index)
            config = AdapterConfig(
                name=f"a-{index}",
                feed="itch",
                index=index,
                table=options.get("table", "itch"),
                trading_date=options.get("trading_date", "2026-01-30"),
                streams=(source_of(exchange), *options.get("streams", ())),
                publish=PublishConfig(channel=self.channels[index], **options.get("publish", {})),
                peers=PeersConfig(port=ports[index], others=others, secret_file=secret_file),
                sync=SynchroniserConfig(**{"startup_ms": 300, "state_interval_ms": 50, **options.get("sync", {})}),
                service=options.get("service", ServiceConfig(open=True)),
                state_directory=str(directory / f"state-{index}"),
                **{key: each for key, each in options.items() if key in ("journal", "admin", "spin")},
            )
            self.adapters.append(AdapterProcess(config, directory))

    @staticmethod
    def _make_secret(directory: Path) -> str:
        """Shared by the adapters, which need one with an administration server."""
        path = directory / "feed.secret"
        write_private(path, random_bytes(32).hex().encode())
        return str(path)

    def subscriber(self) -> MergingSubscriber:
        return MergingSubscriber(self.channels, ReceiverConfig())

    def wait_until_synchronised(self) -> tuple[AdapterProcess, AdapterProcess]:
        """(the active one, the backup) of two."""
        first, second = self.adapters

        def is_done() -> bool:
            return is_synchronised_pair(first, second) or is_synchronised_pair(second, first)

        wait_for(is_done, "an active adapter and a synchronised backup")
        return (first, second) if first.status().role == "active" else (second, first)


def source_of(exchange: Exchange) -> SourceStreamConfig:
    lines = tuple(LineAddress(group=each.group, port=each.port, interface=each.interface) for each in exchange.lines)
    request = AddressConfig(host="127.0.0.1", port=exchange.request_port)
    return SourceStreamConfig(id=1, name="itch", lines=lines, request=request)


@contextlib.contextmanager
def running_feed(directory: Path, count: int = 2, rate: int = 5_000, **options: Any) -> Iterator[Feed]:
    with contextlib.ExitStack() as stack:
        exchange = Exchange(rate=rate)
        stack.callback(exchange.stop)
        feed = Feed(directory, exchange, count, **options)
        for adapter in feed.adapters:
            stack.enter_context(adapter)
        exchange.start()
        yield feed
