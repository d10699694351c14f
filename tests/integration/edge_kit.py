"""WebSocket clients of an edge cache: one that follows the protocol, and one that is a bare socket."""

import contextlib
import json
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import msgspec
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

from integration.distribution_kit import NodeHere, node_here
from penstock.engine import Event, EventKind, control, read_events
from penstock.plant.config import UpstreamConfig
from penstock.plant.core.websocket_codec import BINARY, JSON
from penstock.plant.edge_config import EdgeAccess, EdgeConfig, WebSocketAccess
from waiting import PATIENCE_SECONDS, wait_until

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: edge\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: penstock.binary\r\n\r\n"
)


def edge_config(upstream_port: int, websocket: dict[str, Any] | None = None, **values: Any) -> EdgeConfig:
    return EdgeConfig(
        **{
            "name": "edge",
            "control": EdgeAccess(port=0),
            "websocket": WebSocketAccess(port=0, **(websocket or {})),
            "upstream": UpstreamConfig(port=upstream_port),
            "access": "open",
            **values,
        }
    )


@contextlib.contextmanager
def edge_here(upstream_port: int, **values: Any) -> Iterator[NodeHere]:
    with node_here(edge_config(upstream_port, **values)) as made:
        wait_until(made.node._source.upstream.link.attached.is_set, "the node above")
        yield made


def websocket_port(edge: NodeHere) -> int:
    port = edge.node.websocket_port
    assert port is not None
    return port


class Screen:
    """A client of a flavour, and the messages that it received."""

    def __init__(
        self,
        port: int,
        name: str = "screen",
        flavour: str = BINARY,
        *,
        tls: ssl.SSLContext | None = None,
        origin: str | None = None,
        **login: Any,
    ) -> None:
        scheme, host = ("ws", "127.0.0.1") if tls is None else ("wss", "localhost")
        self._open = contextlib.ExitStack()
        self.connection: ClientConnection = self._open.enter_context(
            connect(
                f"{scheme}://{host}:{port}",
                subprotocols=[Subprotocol(flavour)],
                origin=None if origin is None else Origin(origin),
                ssl=tls,
                proxy=None,
                max_size=None,
            )
        )
        self._is_json = flavour == JSON
        self.told: list[dict[str, Any]] = []
        """Control messages."""
        self.events: list[Event] = []
        self.objects: list[dict[str, Any]] = []
        """Events of the JSON flavour."""
        self.messages = 0
        """Number of messages with events."""
        self.say(control.Login(name, **login))

    def say(self, message: msgspec.Struct) -> None:
        self.connection.send(msgspec.json.encode(message).decode())

    def take(self) -> None:
        """The next message."""
        message = self.connection.recv(PATIENCE_SECONDS)
        if isinstance(message, bytes):
            self.events += read_events(message)
            self.messages += 1
        elif isinstance(found := json.loads(message), list):
            self.objects += found
            self.messages += 1
        else:
            self.told.append(found)

    def answer(self, kind: str) -> dict[str, Any]:
        """The next control message of this type."""
        while not (found := [each for each in self.told if each["type"] == kind]):
            self.take()
        self.told.remove(found[0])
        return found[0]

    def subscribe(self, *topics: str, number: int = 1, **more: Any) -> dict[str, Any]:
        """Subscribe, and wait until the subscription is live: from then on every update arrives."""
        self.say(control.Subscribe(number, list(topics), **more))
        held = self.answer("held")
        while not self._is_live(number):
            self.take()
        return held

    def _is_live(self, number: int) -> bool:
        return any(each.kind == EventKind.LIVE and each.subscription == number for each in self.events) or any(
            each["kind"] == "live" and each["subscription"] == number for each in self.objects
        )

    def versions(self, count: int) -> list[int]:
        """The versions of the received records, as soon as there are `count`."""
        while len(self._versions()) < count:
            self.take()
        return self._versions()

    def _versions(self) -> list[int]:
        if self._is_json:
            return [each["version"] for each in self.objects if each["kind"] in ("refresh", "update")]
        return [each.version for each in self.events if each.kind in (EventKind.REFRESH, EventKind.UPDATE)]

    def __enter__(self) -> "Screen":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._open.close()


class Bare:
    """A socket after the WebSocket handshake; it reads when the test orders it."""

    def __init__(self, port: int, name: str, *, receive_size: int = 4_096) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(PATIENCE_SECONDS)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_size)
        self.socket.connect(("127.0.0.1", port))
        self.socket.sendall(UPGRADE)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.socket.recv(1)
        assert b" 101 " in head
        if name:
            self.say(control.Login(name))

    def say(self, message: msgspec.Struct) -> None:
        self.socket.sendall(text_frame(msgspec.json.encode(message)))

    def rest(self) -> list[tuple[int, bytes]]:
        """Every frame until the end, as opcode and payload."""
        data = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := self.socket.recv(1 << 20):
                data += piece
        frames = []
        while len(data) >= 2:
            size, at = data[1], 2
            if size == 126:
                size, at = int.from_bytes(data[2:4], "big"), 4
            elif size == 127:
                size, at = int.from_bytes(data[2:10], "big"), 10
            frames.append((data[0] & 0x0F, data[at : at + size]))
            data = data[at + size :]
        return frames

    def __enter__(self) -> "Bare":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def text_frame(data: bytes) -> bytes:
    """A text frame of a client: masked, with zeros."""
    assert len(data) < 0xFFFF
    return b"\x81\xfe" + len(data).to_bytes(2, "big") + bytes(4) + data
