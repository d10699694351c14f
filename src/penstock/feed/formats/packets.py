"""The UDP datagram in a captured frame: Ethernet (with VLANs), Linux "cooked", loopback or raw; IPv4 or IPv6."""

import ipaddress
import struct
from enum import StrEnum

import msgspec

ETHERTYPE_IPV4 = 0x0800
ETHERTYPE_IPV6 = 0x86DD
VLAN_TAGS = {0x8100, 0x88A8, 0x9100}
VLANS_MAX = 4
UDP = 17
TCP = 6

LINK_NULL = 0
LINK_ETHERNET = 1
LINKS_RAW = {12, 14, 101, 228, 229}
LINK_COOKED = 113
LINK_COOKED_2 = 276
IPV6_FAMILIES = {10, 24, 28, 30}


class Unusable(StrEnum):
    """The reason why a frame has no datagram."""

    LINK = "a kind of link that is not known"
    NOT_IP = "not IP"
    NOT_UDP = "not UDP"
    TCP = "TCP, not UDP"
    FRAGMENT = "a fragment of a datagram"
    DAMAGED = "damaged"


class Datagram(msgspec.Struct, frozen=True):
    source: tuple[str, int]
    destination: tuple[str, int]
    data: bytes


def datagram_of(link: int, frame: bytes) -> Datagram | Unusable:
    """Return the datagram of a frame; lengths are taken from the headers, not from the frame's size."""
    try:
        kind, at = _network_layer(link, frame)
        if kind == ETHERTYPE_IPV4:
            return _ipv4(frame, at)
        if kind == ETHERTYPE_IPV6:
            return _ipv6(frame, at)
    except struct.error:
        return Unusable.DAMAGED  # the frame ends within a header
    return Unusable.LINK if kind < 0 else Unusable.NOT_IP


def _network_layer(link: int, frame: bytes) -> tuple[int, int]:
    """The ethertype and the offset of its header; -1 for an unknown link type."""
    if link == LINK_ETHERNET:
        at = 12
        (kind,) = struct.unpack_from(">H", frame, at)
        for _ in range(VLANS_MAX):
            if kind not in VLAN_TAGS:
                break
            at += 4
            (kind,) = struct.unpack_from(">H", frame, at)
        return kind, at + 2
    if link == LINK_COOKED:
        return struct.unpack_from(">H", frame, 14)[0], 16
    if link == LINK_COOKED_2:
        return struct.unpack_from(">H", frame, 0)[0], 20
    if link == LINK_NULL:
        family = struct.unpack_from("<I", frame)[0]
        is_ipv6 = family in IPV6_FAMILIES or family >> 24 in IPV6_FAMILIES
        return ETHERTYPE_IPV6 if is_ipv6 else ETHERTYPE_IPV4, 4
    if link in LINKS_RAW:
        version = struct.unpack_from(">B", frame)[0] >> 4
        return {4: ETHERTYPE_IPV4, 6: ETHERTYPE_IPV6}.get(version, 0), 0
    return -1, 0


def _ipv4(frame: bytes, at: int) -> Datagram | Unusable:
    first, size, fragment, protocol, source, destination = struct.unpack_from(">BxHxxHxBxx4s4s", frame, at)
    header_size = (first & 15) * 4
    if first >> 4 != 4 or header_size < 20:
        return Unusable.DAMAGED
    if fragment & 0x3FFF:
        return Unusable.FRAGMENT
    if protocol != UDP:
        return Unusable.TCP if protocol == TCP else Unusable.NOT_UDP
    end = at + size if size else len(frame)  # network cards that segment large sends leave a size of 0
    return _udp(frame, at + header_size, end, source, destination)


def _ipv6(frame: bytes, at: int) -> Datagram | Unusable:
    first, size, following, source, destination = struct.unpack_from(">IHBx16s16s", frame, at)
    if first >> 28 != 6:
        return Unusable.DAMAGED
    if following != UDP:
        return Unusable.TCP if following == TCP else Unusable.NOT_UDP
    return _udp(frame, at + 40, at + 40 + size, source, destination)


def _udp(frame: bytes, at: int, end: int, source: bytes, destination: bytes) -> Datagram | Unusable:
    source_port, destination_port, size = struct.unpack_from(">HHH", frame, at)
    if size < 8 or at + size > end or end > len(frame):
        return Unusable.DAMAGED
    return Datagram(
        (str(ipaddress.ip_address(source)), source_port),
        (str(ipaddress.ip_address(destination)), destination_port),
        frame[at + 8 : at + size],
    )
