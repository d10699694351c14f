"""Hosts as network namespaces (penstock.bench.hosts), paths between two hosts that lose all packets, and a cable
between a host and its bridge that delays, reorders, repeats and loses datagrams by a seed: some kernels lack netem."""

import ctypes
import fcntl
import functools
import heapq
import random
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from penstock.bench.hosts import INTERFACE, Host, Network, entered, reason_without, run

ETH_P_ALL = 3
SIOCETHTOOL = 0x8946
ETHTOOL_STXCSUM = 0x17
FRAME_SIZE_MAX = 65_600
OUTGOING = 4
IPV4, UDP = b"\x08\x00", 17


NOBODY = "02:00:00:00:00:00"
"""The address of no network card."""


@functools.cache
def reason(*, is_lossy: bool) -> str:
    return reason_without(is_lossy=is_lossy)


def network_or_skip(*, is_lossy: bool = True) -> Network:
    """A network without hosts yet; skips the test where namespaces are unavailable. `is_lossy`: the hosts whose
    datagrams lose() can drop."""
    if why := reason(is_lossy=is_lossy):
        pytest.skip(why)
    return Network()


def cut_way(source: Host, target: Host) -> None:
    """From now on packets from the one host to the other are lost without an error; the opposite direction works."""
    where = (target.address, "lladdr", NOBODY, "dev", INTERFACE)
    run("ip", "-n", source.namespace, "neighbour", "replace", *where, "nud", "permanent")


def mend_way(source: Host, target: Host) -> None:
    run("ip", "-n", source.namespace, "neighbour", "delete", target.address, "dev", INTERFACE)


class Faults(msgspec.Struct, frozen=True):
    """Faults of each datagram, in both directions; other frames are forwarded at once."""

    loss: float = 0.0
    repeated: float = 0.0
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    """Maximum additional delay of a datagram, so that others overtake it."""


class Wire:
    """Forwards frames between two interfaces of this namespace, in a thread, until close()."""

    def __init__(self, ends: tuple[str, str], faults: Faults, seed: int) -> None:
        self.faults = faults
        self.lost = self.overtaken = 0
        self._random = random.Random(seed)
        self._sockets = [_raw(end) for end in ends]
        self._waiting: list[tuple[float, int, int, bytes]] = []  # the time to send it, its number, the socket
        self._number = self._sent = 0
        self._is_over = False
        self._thread = threading.Thread(target=self._carry, name="wire")
        self._thread.start()

    def close(self) -> None:
        self._is_over = True
        self._thread.join()
        for each in self._sockets:
            each.close()

    def _carry(self) -> None:
        while not self._is_over:
            now = time.monotonic()
            while self._waiting and self._waiting[0][0] <= now:
                self._send(heapq.heappop(self._waiting))
            wait = min(self._waiting[0][0] - now, 0.05) if self._waiting else 0.05
            for readable in select.select(self._sockets, [], [], max(wait, 0.0))[0]:
                self._take(readable)

    def _take(self, arriving: socket.socket) -> None:
        frame, address = arriving.recvfrom(FRAME_SIZE_MAX)
        if address[2] == OUTGOING:
            return
        towards = 1 - self._sockets.index(arriving)
        if frame[12:14] != IPV4 or frame[23] != UDP:
            self._queue(frame, towards, 0.0)
        elif self._random.random() < self.faults.loss:
            self.lost += 1
        else:
            for _ in range(2 if self._random.random() < self.faults.repeated else 1):
                self._queue(frame, towards, self.faults.delay_ms + self._random.random() * self.faults.jitter_ms)

    def _queue(self, frame: bytes, towards: int, delay_ms: float) -> None:
        self._number += 1
        heapq.heappush(self._waiting, (time.monotonic() + delay_ms / 1_000, self._number, towards, frame))

    def _send(self, waiting: tuple[float, int, int, bytes]) -> None:
        _, number, towards, frame = waiting
        self.overtaken += number < self._sent
        self._sent = max(self._sent, number)
        try:
            self._sockets[towards].send(frame)
        except OSError:  # the cable is cut
            self.lost += 1


@contextmanager
def wired(host: Host, faults: Faults, *, seed: int) -> Iterator[Wire]:
    """Put a wire between the host and the bridge. The kernel leaves checksums of frames on virtual cables to a network
    card that does not exist; a wire that forwards real frames needs them."""
    inner, outer = f"{host.port}i", f"{host.port}o"
    run("ip", "-n", host.switch, "link", "set", host.port, "nomaster")
    run("ip", "-n", host.switch, "link", "add", inner, "type", "veth", "peer", "name", outer)
    run("ip", "-n", host.switch, "link", "set", inner, "up")
    run("ip", "-n", host.switch, "link", "set", outer, "master", "bridge", "up")
    with host.entered():
        _write_checksums(INTERFACE)
    with entered(host.switch):
        wire = Wire((host.port, inner), faults, seed)
    try:
        yield wire
    finally:
        wire.close()


def write_checksums(hosts: list[Host]) -> None:
    """Let hosts whose datagrams use the wire of another host compute their checksums."""
    for host in hosts:
        with host.entered():
            _write_checksums(INTERFACE)


def _write_checksums(interface: str) -> None:
    value = bytearray(struct.pack("=II", ETHTOOL_STXCSUM, 0))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        address = (ctypes.c_char * len(value)).from_buffer(value)
        request = struct.pack("=16sQ16x", interface.encode(), ctypes.addressof(address))
        fcntl.ioctl(any_socket, SIOCETHTOOL, request)


def _raw(interface: str) -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    made.bind((interface, 0))
    return made
