"""Peer brokers of filter modules, with clients that add as little cost as possible.

The clients are bare sockets: messages are encoded in advance and written in large pieces, and received messages are
counted by bytes, because all have the same size. No client library is faster, so the broker itself is measured.
"""

import shutil
import socket
import subprocess
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import msgspec

from penstock.bench.harness import cpu_seconds
from penstock.bench.transports import PATIENCE_SECONDS, check

READ_SIZE = 1 << 20
FILTERS_PER_PACKET = 1_000
PLACES = "/usr/sbin:/usr/local/sbin"  # directories of servers, in addition to the PATH
HOST = "127.0.0.1"
END_SECONDS = 5.0
PING = b"PING\r\n"  # of NATS


class Client:
    """A connection to a broker; `levels` is the separator of topic levels."""

    levels: ClassVar[str]

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port))
        self._socket.settimeout(PATIENCE_SECONDS)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, READ_SIZE)
        self._buffer = bytearray(READ_SIZE)
        self._introduce()

    @abstractmethod
    def _introduce(self) -> None:
        """Perform the handshake with the broker."""

    @abstractmethod
    def subscribe(self, topics: Sequence[str]) -> None:
        """Subscribe to topics of equal length; return when the broker has confirmed."""

    @abstractmethod
    def encode(self, topic: str, payload: bytes) -> bytes:
        """Encode a message for publishing."""

    @abstractmethod
    def received_size(self, topic: str, payload: bytes) -> int:
        """Return the size of the message on arrival."""

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> int:
        """Return the number of bytes received."""
        received = self._socket.recv_into(self._buffer)
        check(received > 0, "the broker has hung up")
        return received

    def receive_bytes(self) -> bytes:
        """Return the bytes received."""
        return bytes(self._buffer[: self.receive()])

    def receive_within(self, seconds: float) -> int:
        """Return the number of bytes received, 0 after the timeout."""
        self._socket.settimeout(seconds)
        try:
            return self.receive()
        except TimeoutError:
            return 0
        finally:
            self._socket.settimeout(PATIENCE_SECONDS)

    def close(self) -> None:
        self._socket.close()

    def _expect(self, size: int) -> bytes:
        answer = b""
        while len(answer) < size:
            part = self._socket.recv(size - len(answer))
            check(len(part) > 0, "the broker has hung up")
            answer += part
        return answer


class NatsClient(Client):
    levels = "."

    def _introduce(self) -> None:
        with self._socket.makefile("rb") as lines:
            check(lines.readline().startswith(b"INFO"), "this is no NATS server")
        self.send(b'CONNECT {"verbose":false,"pedantic":false,"lang":"bench","version":"1"}\r\n')
        self._meet()

    def subscribe(self, topics: Sequence[str]) -> None:
        lines = [f"SUB {topic} {self._number(index)}\r\n" for index, topic in enumerate(topics)]
        self.send("".join(lines).encode())
        self._meet()

    def encode(self, topic: str, payload: bytes) -> bytes:
        return b"PUB %s %d\r\n%s\r\n" % (topic.encode(), len(payload), payload)

    def received_size(self, topic: str, payload: bytes) -> int:
        return len(self.encode(topic, payload)) + len(self._number(0)) + 1

    def payloads(self, topic: str, size: int) -> Iterator[bytes]:
        """Yield the payloads of messages of one topic and size; answer the server's pings between messages."""
        message_size = self.received_size(topic, bytes(size))
        first = message_size - len(b"\r\n") - size
        waiting = b""
        while True:
            waiting += self.receive_bytes()
            at = 0
            while len(waiting) - at >= len(PING):
                if waiting.startswith(b"MSG", at):
                    if len(waiting) - at < message_size:
                        break
                    yield waiting[at + first : at + first + size]
                    at += message_size
                else:
                    check(waiting.startswith(PING, at), "the NATS server sends neither messages nor pings")
                    self.send(b"PONG\r\n")
                    at += len(PING)
            waiting = waiting[at:]

    def _meet(self) -> None:
        self.send(PING)
        while (answer := self._expect(len(PING))) == PING:  # the server also sends pings from time to time
            self.send(b"PONG\r\n")
        check(answer == b"PONG\r\n", "the NATS server does not answer")

    @staticmethod
    def _number(index: int) -> str:
        """Return the number of a subscription, in fixed length."""
        return str(10_000_000 + index)


class MqttClient(Client):
    levels = "/"

    def _introduce(self) -> None:
        self.send(_mqtt(0x10, b"\x00\x04MQTT\x04\x02\x00\x00" + _text(f"bench-{id(self)}")))
        check(self._expect(4) == b"\x20\x02\x00\x00", "the MQTT broker refuses")

    def subscribe(self, topics: Sequence[str]) -> None:
        for start in range(0, len(topics), FILTERS_PER_PACKET):
            chosen = topics[start : start + FILTERS_PER_PACKET]
            filters = b"".join(_text(topic) + b"\x00" for topic in chosen)
            self.send(_mqtt(0x82, b"\x00\x01" + filters))
            self._expect(len(_mqtt(0x90, bytes(2 + len(chosen)))))

    def encode(self, topic: str, payload: bytes) -> bytes:
        return _mqtt(0x30, _text(topic) + payload)

    def received_size(self, topic: str, payload: bytes) -> int:
        return len(self.encode(topic, payload))


def _mqtt(kind: int, body: bytes) -> bytes:
    size, digits = len(body), bytearray()
    while size >= 0x80:
        digits.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([kind, *digits, size]) + body


def _text(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


class Server(msgspec.Struct, frozen=True):
    """A broker running on loopback."""

    port: int
    process: int

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.process)


class Broker:
    """A server that may be installed; its configuration prevents drops for slow clients."""

    def __init__(self, name: str, client: type[Client], package: str, configuration: str) -> None:
        self.name = name
        self.package = package
        self.client = client
        self._program = shutil.which(package) or shutil.which(package, path=PLACES)
        self._configuration = configuration

    @property
    def is_installed(self) -> bool:
        return self._program is not None

    @contextmanager
    def running(self, folder: Path, more: str = "") -> Iterator["Server"]:
        """Run the broker with additional configuration lines."""
        check(self._program is not None, f"{self.name} is not installed")
        port = free_port()
        path = folder / f"{self.name}-{port}.conf"
        path.write_text(self._configuration.format(host=HOST, port=port) + more)
        command = [str(self._program), "-c", str(path)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            try:
                wait_until_it_listens(port, server)
                yield Server(port, server.pid)
            finally:
                end_server(server)


def end_server(server: "subprocess.Popen[bytes]") -> None:
    """Stop a server; kill it if it does not stop."""
    server.terminate()
    try:
        server.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_it_listens(port: int, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        check(server.poll() is None and time.monotonic() < deadline, "the broker did not start")
        try:
            socket.create_connection((HOST, port)).close()
        except OSError:
            time.sleep(0.02)
        else:
            return


NATS_CONFIGURATION = """
listen: "{host}:{port}"
max_pending: 1GB
write_deadline: "30s"
"""

MOSQUITTO_CONFIGURATION = """
listener {port} {host}
allow_anonymous true
persistence false
max_queued_messages 0
max_queued_bytes 0
log_type none
"""

NATS = Broker("nats", NatsClient, "nats-server", NATS_CONFIGURATION)
BROKERS = (
    NATS,
    Broker("mosquitto", MqttClient, "mosquitto", MOSQUITTO_CONFIGURATION),
)
