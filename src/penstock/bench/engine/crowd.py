"""Thousands of screens: a process that connects them to an edge cache by WebSocket, reads and counts."""

import resource
import socket
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

import msgspec

from penstock.base.errors import LimitError, RemoteProtocolError
from penstock.bench._crowd import Crowd
from penstock.engine.control import Login, Subscribe
from penstock.net.udp import Address
from penstock.plant.core.websocket_codec import BINARY

TOGETHER = 100
"""Number of clients that connect concurrently."""

SPARE_FILES = 256
TURN_SECONDS = 0.05
ANSWER_SECONDS = 60.0

UPGRADE = (
    f"GET / HTTP/1.1\r\nHost: edge\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: {BINARY}\r\n\r\n"
).encode()


class CrowdTask(msgspec.Struct, frozen=True):
    address: Address
    clients: int
    topics: Sequence[Sequence[str]]
    """Topics of each client, in turns."""

    per_second: float


class CrowdReport(msgspec.Struct, frozen=True):
    """Counts since the previous report."""

    frames: int
    bytes: int
    updates: int
    merged: int
    closed: int
    fewest: int
    """Updates of the client with the fewest."""

    age_ms_p50: int
    age_ms_p99: int


def raise_files(wanted: int) -> None:
    """Raise this process's limit of open files, as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = wanted + SPARE_FILES
    if hard != resource.RLIM_INFINITY and hard < need:
        raise LimitError(f"{need} open files are needed, the hard limit is {hard}", hint="raise it with ulimit -Hn")
    if soft < need:
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))


def hold(task: CrowdTask, orders: Connection) -> None:
    """Connect all clients, report their number, then read; each order is answered with a report, None ends the
    process.
    """
    raise_files(task.clients)
    sockets: list[socket.socket] = []
    crowd = Crowd(task.clients)
    try:
        for first in range(0, task.clients, TOGETHER):
            began = time.monotonic()
            new = _connect(task, range(first, min(task.clients, first + TOGETHER)))
            sockets += new
            for each in new:
                crowd.add(each.fileno())
            crowd.run(max(TURN_SECONDS, time.monotonic() - began))  # connected clients must be read in time
        orders.send(len(sockets))
        while True:
            crowd.run(TURN_SECONDS)
            if orders.poll():
                if orders.recv() is None:
                    return
                orders.send(_report(crowd))
    finally:
        for each in sockets:
            each.close()


def _connect(task: CrowdTask, numbers: range) -> list[socket.socket]:
    """Connect several clients; their handshakes and logins overlap."""
    sockets = [socket.create_connection(task.address, timeout=ANSWER_SECONDS) for _ in numbers]
    for each in sockets:
        each.sendall(UPGRADE)
    for number, each in zip(numbers, sockets, strict=True):
        if b" 101 " not in _head(each):
            raise RemoteProtocolError("the edge refuses a WebSocket")
        topics = list(task.topics[number % len(task.topics)])
        login = Login(f"screen-{number}", classes=["metered"])
        each.sendall(_text(login) + _text(Subscribe(1, topics, "metered", task.per_second)))
        each.setblocking(False)
    return sockets


def _head(sock: socket.socket) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        piece = sock.recv(1)  # later bytes belong to the crowd
        if not piece:
            raise RemoteProtocolError("the edge ends the connection")
        head += piece
    return head


def _text(message: msgspec.Struct) -> bytes:
    """Encode a client's text frame, masked with zeros as the protocol requires."""
    data = msgspec.json.encode(message)
    size = len(data)
    length = bytes([0x80 | size]) if size <= 125 else b"\xfe" + size.to_bytes(2, "big")
    return b"\x81" + length + bytes(4) + data


def _report(crowd: Crowd) -> CrowdReport:
    each = crowd.updates_of_each()
    report = CrowdReport(
        crowd.frames,
        crowd.bytes,
        crowd.updates,
        crowd.merged,
        crowd.closed,
        min(each),
        crowd.age_ms(50),
        crowd.age_ms(99),
    )
    crowd.reset()
    return report
