"""UDP sockets as Penstock uses them: multicast on a chosen interface, large buffers, the kernel's receive times.

`Inlet` and `Outlet` (compiled) move datagrams in batches; this file makes the sockets and names the addresses.
"""

import errno
import ipaddress
import secrets
import socket
from collections import deque
from collections.abc import Sequence
from typing import Annotated, TypeAlias

import msgspec

from penstock.base.config import Config
from penstock.base.errors import ConfigurationError, LimitError
from penstock.base.ids import Group, format_group, parse_group
from penstock.base.log import logger
from penstock.net._udp import SOCKETS_MAX, Inlet, Outlet

Address: TypeAlias = tuple[str, int]
Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]


class Channel(Config, frozen=True):
    """Where a stream flows: a multicast group and port, on one interface of this machine."""

    group: str = "239.255.74.1"
    port: Port = 7401
    interface: str = "127.0.0.1"
    """The address of the interface; traffic stays on this machine unless another one is named."""

    hops: Annotated[int, msgspec.Meta(ge=0, le=255)] = 1
    """How many routers a packet may pass, less one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_group(self.group)
        try:
            ipaddress.IPv4Address(self.interface)
        except ValueError:
            raise ConfigurationError(
                f"{self.interface!r} is not an IPv4 address", where="interface", hint="write one like 127.0.0.1"
            ) from None

    @property
    def group_id(self) -> Group:
        return parse_group(self.group)

    @property
    def key(self) -> int:
        """The number that stands for group and port in Outlet.send()."""
        return self.group_id << 16 | self.port

    @staticmethod
    def parse(text: str, *, interface: str = "127.0.0.1") -> "Channel":
        """A channel written as group:port, like 239.255.74.1:7401."""
        group, _, port = text.rpartition(":")
        if not group or not port.isascii() or not port.isdigit():
            raise ConfigurationError(f"{text!r} is not a channel", hint="write group:port, like 239.255.74.1:7401")
        return Channel(group=group, port=int(port), interface=interface)

    @staticmethod
    def of(group: int, port: int, *, interface: str, hops: int = 1) -> "Channel":
        return Channel(group=format_group(group), port=port, interface=interface, hops=hops)

    def __str__(self) -> str:
        return f"{self.group}:{self.port}"


MEMBERSHIPS_MAX = 20
"""Groups that Linux lets a socket join, unless told otherwise."""

RECEIVE_BUFFER_SIZE = 64 * 1024 * 1024
SEND_BUFFER_SIZE = 4 * 1024 * 1024

# Linux's numbers, which the socket module does not name
IP_MULTICAST_ALL = 49
SO_TIMESTAMPNS = 35
SO_RXQ_OVFL = 40

log = logger("net.udp")

FREE_PORT_FIRST = 12_000
FREE_PORTS = 20_000


def group_sockets(channels: Sequence[Channel], *, used: int = 1) -> dict[socket.socket, list[Channel]]:
    """Sockets that together receive what is sent to the channels, with the channels of each: one channel per socket
    while there is room for so many beside the `used` sockets of the receiver."""
    parts = _parted(channels, used)
    if len(parts) + used > SOCKETS_MAX:
        raise ConfigurationError(
            f"{len(channels)} channels need {len(parts)} sockets, a receiver has room for {SOCKETS_MAX - used}",
            hint="use fewer groups, or several receivers",
        )
    made: dict[socket.socket, list[Channel]] = {}
    try:
        for together in parts:
            made[group_socket(*together)] = together
    except ConfigurationError:
        for each in made:
            each.close()
        raise
    return made


def sockets_needed(channels: Sequence[Channel], *, used: int = 1) -> int:
    """Number of sockets that group_sockets() makes for these channels."""
    return len(_parted(channels, used))


def _parted(channels: Sequence[Channel], used: int) -> list[list[Channel]]:
    """The channels of each socket."""
    at_once = 1 if len(channels) + used <= SOCKETS_MAX else MEMBERSHIPS_MAX
    by_port: dict[int, list[Channel]] = {}
    for channel in dict.fromkeys(channels):
        by_port.setdefault(channel.port, []).append(channel)
    return [alike[start : start + at_once] for alike in by_port.values() for start in range(0, len(alike), at_once)]


def group_socket(channel: Channel, *others: Channel) -> socket.socket:
    """A socket that receives what is sent to the channels, and nothing else; many may share it. All have one port."""
    made = _socket()
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.IPPROTO_IP, IP_MULTICAST_ALL, 0)
        made.bind(("" if others else channel.group, channel.port))
        for each in dict.fromkeys((channel, *others)):
            made.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, _membership(each, each.interface))
    except OSError as error:
        made.close()
        raise _explained(error, f"cannot join {channel} on {channel.interface}") from None
    return made


def join_group(sock: socket.socket, channel: Channel) -> None:
    """Have a socket that is bound to the channel receive what is sent to it, again."""
    try:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, _membership(channel, channel.interface))
    except OSError as error:
        raise _explained(error, f"cannot join {channel} on {channel.interface}") from None


def leave_group(sock: socket.socket, channel: Channel) -> None:
    """Have the socket receive nothing more that is sent to the channel; what came before stays to be read."""
    try:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_DROP_MEMBERSHIP, _membership(channel, channel.interface))
    except OSError as error:  # the interface is gone, and the membership with it
        log.warning("group_not_left", channel=str(channel), error=str(error))


def _membership(channel: Channel, interface: str) -> bytes:
    return socket.inet_aton(channel.group) + socket.inet_aton(interface)


class Memberships:
    """The joined groups of one interface, which may change at any time, on as few sockets as possible."""

    def __init__(self, interface: str) -> None:
        self._interface = interface
        self._sockets: list[tuple[int, socket.socket, set[str]]] = []  # with their ports and groups

    @property
    def fds(self) -> list[int]:
        return [each.fileno() for _, each, _ in self._sockets]

    def join(self, channel: Channel) -> None:
        membership = _membership(channel, self._interface)
        for port, sock, groups in self._sockets:
            if port != channel.port:
                continue
            try:
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    continue  # the system lets a socket have no more
                raise _explained(error, f"cannot join {channel} on {self._interface}") from None
            groups.add(channel.group)
            return
        if len(self._sockets) >= SOCKETS_MAX - 1:
            raise LimitError(
                f"{len(self._sockets)} sockets are full of groups", hint="raise net.ipv4.igmp_max_memberships"
            )
        self._sockets.append((channel.port, group_socket(channel, channel), {channel.group}))

    def leave(self, channel: Channel) -> None:
        """A group that was joined."""
        for number, (port, sock, groups) in enumerate(self._sockets):
            if port == channel.port and channel.group in groups:
                groups.remove(channel.group)
                if groups:
                    leave_group(sock, msgspec.structs.replace(channel, interface=self._interface))
                else:
                    sock.close()
                    del self._sockets[number]
                return

    def close(self) -> None:
        for _, sock, _ in self._sockets:
            sock.close()
        self._sockets.clear()


def host_socket(interface: str, *, multicast_hops: int = 1, port: int = 0) -> socket.socket:
    """A socket of our own on this interface: sends to groups and hosts, receives what is addressed to it."""
    made = _socket()
    try:
        made.bind((interface, port))
        made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
        made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, multicast_hops)
        made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
    except OSError as error:
        made.close()
        raise _explained(error, f"cannot use the interface {interface}") from None
    return made


def free_channel() -> Channel:
    """A channel on this machine that nobody else is likely to use: a group at random, a port that is free."""
    (port,) = free_ports(1)
    return Channel(group=f"239.255.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}", port=port)


_given_ports: deque[int] = deque(maxlen=256)
"""Ports that this process chose lately and may not have bound yet: free_ports() does not choose them again."""


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody uses for TCP or UDP right now, at random from a range that the kernel does not
    give to connections: they are likely to be free in a moment, too."""
    sockets: list[socket.socket] = []
    try:
        while len(sockets) < 2 * count:
            address = ("127.0.0.1", FREE_PORT_FIRST + secrets.randbelow(FREE_PORTS))
            if address[1] in _given_ports:
                continue
            tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                tcp.bind(address)
                udp.bind(address)
            except OSError:
                tcp.close()
                udp.close()
                continue
            sockets += [tcp, udp]
        ports = [each.getsockname()[1] for each in sockets[::2]]
        _given_ports.extend(ports)
        return ports
    finally:
        for each in sockets:
            each.close()


def address_key(address: Address) -> int:
    """The number that stands for an IPv4 address and port in Inlet and Outlet."""
    return int(ipaddress.IPv4Address(address[0])) << 16 | address[1]


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    made.setsockopt(socket.SOL_SOCKET, SO_RXQ_OVFL, 1)
    _set_buffer(made, socket.SO_RCVBUF, "SO_RCVBUFFORCE", 33, RECEIVE_BUFFER_SIZE)
    _set_buffer(made, socket.SO_SNDBUF, "SO_SNDBUFFORCE", 32, SEND_BUFFER_SIZE)
    return made


def _set_buffer(made: socket.socket, option: int, name: str, forced: int, size: int) -> None:
    """As large as wanted where we may, else as large as the system lets everybody."""
    try:
        made.setsockopt(socket.SOL_SOCKET, forced, size)
    except PermissionError:
        made.setsockopt(socket.SOL_SOCKET, option, size)
        granted = made.getsockopt(socket.SOL_SOCKET, option) // 2
        if granted < size:
            log.debug("small_socket_buffer", option=name, granted=granted, wanted=size, hint="raise net.core.rmem_max")


def _explained(error: OSError, what: str) -> ConfigurationError:
    hints = {
        errno.EADDRINUSE: "another program uses this port; choose another one",
        errno.EADDRNOTAVAIL: "no interface of this machine has this address; `ip addr` lists them",
        errno.ENODEV: "no interface of this machine has this address; `ip addr` lists them",
        errno.EACCES: "ports below 1024 need privileges",
        errno.ENOBUFS: "raise net.ipv4.igmp_max_memberships",
    }
    return ConfigurationError(f"{what}: {error.strerror or error}", hint=hints.get(error.errno or 0, ""))


__all__ = [
    "SOCKETS_MAX",
    "Address",
    "Channel",
    "Inlet",
    "Memberships",
    "Outlet",
    "address_key",
    "free_channel",
    "free_ports",
    "group_socket",
    "group_sockets",
    "host_socket",
    "join_group",
    "leave_group",
    "sockets_needed",
]
