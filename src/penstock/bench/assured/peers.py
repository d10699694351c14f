"""Peer servers for durable messages, with clients that add as little cost as possible.

Each server is configured to store every message on disk before its acknowledgement, like a message router. The clients
are bare sockets: messages are encoded in advance, written in large batches, and acknowledgements are only counted.
"""

import os
import shutil
import socket
import struct
import subprocess
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from penstock.bench.adapters import die_with_parent
from penstock.bench.brokers import HOST, PLACES, READ_SIZE, end_server, free_port, wait_until_it_listens
from penstock.bench.transports import PATIENCE_SECONDS, check

QUEUE = "orders"
RABBIT_PLACES = "/usr/lib/rabbitmq/bin"
"""The program itself; the one in the PATH manages the system's own server."""


class StoringClient:
    """A publisher's connection to its own queue."""

    def __init__(self, port: int, payload: bytes) -> None:
        self._socket = socket.create_connection((HOST, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(PATIENCE_SECONDS)
        self._introduce()
        self._message = self._encode(payload)

    def publish(self, count: int, in_flight: int) -> None:
        """Publish `count` messages and return when all are acknowledged; acknowledged messages are replaced by new
        ones.
        """
        acknowledged, sent = 0, min(count, in_flight)
        messages = self._message * in_flight
        size = len(self._message)
        self._socket.sendall(messages[: sent * size])
        while acknowledged < count:
            acknowledged += self._acknowledgements(self._receive())
            more = min(count, acknowledged + in_flight) - sent
            if more:
                self._socket.sendall(messages[: more * size])
                sent += more

    def close(self) -> None:
        self._socket.close()

    @abstractmethod
    def empty(self) -> None:
        """Delete the queued messages."""

    @abstractmethod
    def queued(self) -> int:
        """Return the number of queued messages."""

    @abstractmethod
    def _introduce(self) -> None:
        """Create the queue."""

    @abstractmethod
    def _encode(self, payload: bytes) -> bytes:
        """Encode a message for publishing."""

    @abstractmethod
    def _acknowledgements(self, data: bytes) -> int:
        """Return the number of further messages acknowledged by this data."""

    def _receive(self) -> bytes:
        data = self._socket.recv(READ_SIZE)
        check(len(data) > 0, "the server has hung up")
        return data


class RedisClient(StoringClient):
    """Adds messages to a stream."""

    def _introduce(self) -> None:
        self._ask("PING")

    def empty(self) -> None:
        self._ask("DEL", QUEUE)

    def queued(self) -> int:
        return int(self._ask("XLEN", QUEUE))

    def _encode(self, payload: bytes) -> bytes:
        return _redis(b"XADD", QUEUE.encode(), b"*", b"p", payload)

    def _acknowledgements(self, data: bytes) -> int:
        check(b"ERR" not in data, "redis-server refuses")
        return data.count(b"$")

    def _ask(self, *words: str) -> bytes:
        self._socket.sendall(_redis(*(word.encode() for word in words)))
        answer = self._receive()
        check(answer[:1] in b"+:", f"redis-server refuses {words[0]}")
        return answer[1:-2]


def _redis(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


class RabbitClient(StoringClient):
    """Publishes to a quorum queue with confirms (AMQP 0-9-1)."""

    METHOD, HEADER, BODY = 1, 2, 3
    CHANNEL = 1
    PROPERTIES = struct.Struct(">HHQHB")
    DURABLE, PASSIVE = 2, 1
    ACK = struct.Struct(">BHIHHQBB")
    ACKNOWLEDGED = (60, 80)

    def _introduce(self) -> None:
        self._rest = b""
        self._confirmed = 0
        self._alone: set[int] = set()
        self._socket.sendall(b"AMQP\x00\x00\x09\x01")
        self._expect(10, 10, channel=0)
        login = b"\x00\x00\x00\x00" + _short("PLAIN") + _long(b"\0guest\0guest") + _short("en_US")
        self._say(10, 11, login, channel=0)
        tuned = self._expect(10, 30, channel=0)
        self._say(10, 31, tuned[:6] + b"\x00\x00", channel=0)  # no heartbeats
        self._say(10, 40, _short("/") + b"\x00\x00", channel=0)
        self._expect(10, 41, channel=0)
        self._say(20, 10, b"\x00")
        self._expect(20, 11)
        self._declare(self.DURABLE)
        self._say(85, 10, b"\x00")
        self._expect(85, 11)

    def empty(self) -> None:
        self._say(50, 30, b"\x00\x00" + _short(QUEUE) + b"\x00")
        self._expect(50, 31)

    def queued(self) -> int:
        return int.from_bytes(self._declare(self.PASSIVE)[-8:-4], "big")

    def _declare(self, flags: int) -> bytes:
        kind = _short("x-queue-type") + b"S" + _long(b"quorum")
        self._say(50, 10, b"\x00\x00" + _short(QUEUE) + bytes([flags]) + _long(kind))
        return self._expect(50, 11)

    def _encode(self, payload: bytes) -> bytes:
        persistent = self.PROPERTIES.pack(60, 0, len(payload), 1 << 12, 2)
        return (
            self._frame(self.METHOD, struct.pack(">HHH", 60, 40, 0) + _short("") + _short(QUEUE) + b"\x00")
            + self._frame(self.HEADER, persistent)
            + self._frame(self.BODY, payload)
        )

    def _acknowledgements(self, data: bytes) -> int:
        """A confirm covers one message, or all up to one; confirms may be out of order."""
        data = self._rest + data
        before = self._confirmed + len(self._alone)
        at = 0
        while at + self.ACK.size <= len(data):
            _, _, _, group, method, tag, is_multiple, _ = self.ACK.unpack_from(data, at)
            check((group, method) == self.ACKNOWLEDGED, f"RabbitMQ says {group}, {method}")
            at += self.ACK.size
            if is_multiple:
                self._confirmed = max(self._confirmed, tag)
                self._alone = {each for each in self._alone if each > tag}
            else:
                self._alone.add(tag)
            while self._confirmed + 1 in self._alone:
                self._confirmed += 1
                self._alone.remove(self._confirmed)
        self._rest = data[at:]
        return self._confirmed + len(self._alone) - before

    def _frame(self, kind: int, content: bytes, channel: int = CHANNEL) -> bytes:
        return struct.pack(">BHI", kind, channel, len(content)) + content + b"\xce"

    def _say(self, group: int, method: int, arguments: bytes, channel: int = CHANNEL) -> None:
        self._socket.sendall(self._frame(self.METHOD, struct.pack(">HH", group, method) + arguments, channel))

    def _expect(self, group: int, method: int, channel: int = CHANNEL) -> bytes:
        """Return the arguments of the expected answer."""
        data = b""
        while len(data) < 8 or len(data) < 8 + int.from_bytes(data[3:7], "big"):
            data += self._receive()
        found = struct.unpack_from(">HIHH", data, 1)
        check((found[0], *found[2:]) == (channel, group, method), f"RabbitMQ says {found[2:]}: {data[11:200]!r}")
        return data[11:-1]


def _short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def _long(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


class StoringPeer:
    """A server that may be installed."""

    name: ClassVar[str]
    package: ClassVar[str]
    client: ClassVar[type[StoringClient]]
    how: ClassVar[str]
    places: ClassVar[str] = PLACES

    @classmethod
    def program(cls) -> str | None:
        return shutil.which(cls.package, path=cls.places) or shutil.which(cls.package)

    @contextmanager
    def running(self, folder: Path, payload: bytes) -> Iterator[StoringClient]:
        """Run the server with this folder as its storage, and yield a client."""
        port = free_port()
        with self._started(folder, port):
            client = self.client(port, payload)
            try:
                yield client
            finally:
                client.close()

    @abstractmethod
    @contextmanager
    def _started(self, folder: Path, port: int) -> Iterator[None]: ...


class Redis(StoringPeer):
    name = "redis"
    package = "redis-server"
    client = RedisClient
    how = "appendonly yes, appendfsync always, XADD to a stream"

    @contextmanager
    def _started(self, folder: Path, port: int) -> Iterator[None]:
        settings = {"bind": HOST, "port": port, "dir": folder, "save": "", "appendonly": "yes", "appendfsync": "always"}
        settings["auto-aof-rewrite-percentage"] = 0
        options = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
        with child([str(self.program()), *options], folder) as server:
            wait_until_it_listens(port, server)
            yield


class Rabbit(StoringPeer):
    name = "rabbitmq"
    package = "rabbitmq-server"
    client = RabbitClient
    how = "quorum queue, publisher confirms"
    places = RABBIT_PLACES

    @contextmanager
    def _started(self, folder: Path, port: int) -> Iterator[None]:
        """Start with a separate name service, so that none is left running."""
        names, between = free_port(), free_port()
        (folder / "plugins").write_text("[].")
        (folder / "rabbitmq.conf").write_text(f"listeners.tcp.default = {HOST}:{port}\nlog.file.level = error\n")
        environment = {
            **os.environ,
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": HOST,
            "RUNNING_UNDER_SYSTEMD": "true",  # the started process is the server itself
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-start_epmd false",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_NODENAME": f"bench{port}@localhost",
            "RABBITMQ_DIST_PORT": str(between),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
        }
        epmd = [shutil.which("epmd") or "epmd", "-address", HOST, "-port", str(names)]
        with child(epmd, folder, environment) as service:
            wait_until_it_listens(names, service)
            with child([str(self.program())], folder, environment) as server:
                wait_until_it_listens(port, server)
                yield


@contextmanager
def child(
    command: list[str], folder: Path, environment: dict[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a process that is stopped at the end."""
    with (
        (folder / "output").open("ab") as output,
        subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=die_with_parent,
        ) as process,
    ):
        try:
            yield process
        finally:
            end_server(process)


PEERS: tuple[StoringPeer, ...] = (Redis(), Rabbit())
