"""Addresses of nodes: host:port, and whether a server listens there."""

import ipaddress
import socket

from penstock.base.errors import ConfigurationError
from penstock.net.udp import Address

PROBE_WAIT_S = 0.5
ANY, LOOPBACK = "0.0.0.0", "127.0.0.1"
DISCARD_PORT = 9


def parse_place(text: str) -> Address:
    """Parse host:port."""
    host, _, port = text.rpartition(":")
    if not host or set(host) & set("/@ ") or not (port.isascii() and port.isdigit() and 0 < int(port) <= 65_535):
        raise ConfigurationError(f"{text!r} is not an address", hint="write host:port, like 127.0.0.1:7402")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether a host is this one for sure; a name other than localhost is not, wherever it leads today."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def interface_to(host: str) -> str:
    """The address of the interface by which this machine reaches a host."""
    if is_loopback(host):
        return LOOPBACK
    if host == ANY:  # the kernel chooses
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, DISCARD_PORT))  # sends nothing
        except OSError as error:
            raise ConfigurationError(
                f"no interface leads to {host}: {error.strerror}",
                hint="`ip route` shows the routes of this machine; name an interface by its address: interface=…, "
                "--interface",
            ) from None
        address: str = probe.getsockname()[0]
        return address


def answers(place: Address) -> bool:
    """True if a TCP connection is accepted there."""
    try:
        socket.create_connection(place, PROBE_WAIT_S).close()
    except OSError:
        return False
    return True
