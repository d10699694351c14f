"""Network captures: pcap and pcapng, as written by tcpdump and Wireshark; the UDP datagrams in them."""

import struct
from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from penstock.base.errors import RemoteProtocolError
from penstock.feed.formats.packets import Datagram, Unusable, datagram_of
from penstock.feed.formats.stream import ByteStream, Damage, Damages, excerpt

PCAP_MAGICS = {
    b"\xd4\xc3\xb2\xa1": ("<", 1_000),
    b"\xa1\xb2\xc3\xd4": (">", 1_000),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
    b"\xa1\xb2\x3c\x4d": (">", 1),
}
"""By magic number: the byte order, and the nanoseconds per unit of a time's fraction."""

PCAPNG_MAGIC = b"\x0a\x0d\x0d\x0a"
ORDER_MAGIC = b"\x1a\x2b\x3c\x4d"

SECTION = 0x0A0D0D0A
INTERFACE = 1
SIMPLE_PACKET = 3
ENHANCED_PACKET = 6
RESOLUTION_OPTION = 9

FRAME_SIZE_MAX = 256 * 1024
BLOCK_SIZE_MAX = 16 * 1024 * 1024
INTERFACES_MAX = 1_024


class CapturedDatagram(msgspec.Struct, frozen=True):
    """A captured UDP datagram; `offset` is the position of its record in the file."""

    time_ns: int
    source: tuple[str, int]
    destination: tuple[str, int]
    data: bytes
    offset: int


class _Interface(msgspec.Struct, frozen=True):
    link: int
    ticks_per_second: int
    snap_size: int


Frame: TypeAlias = tuple[int, int, int, bytes, int]
"""Time, link type, size on the wire, content and file offset of a frame."""


def is_capture(start: bytes) -> bool:
    return start[:4] in PCAP_MAGICS or start[:4] == PCAPNG_MAGIC


class CaptureReader:
    """The datagrams of a capture, in order; afterwards `damages` lists what could not be read.

    `skipped` counts the frames that are not UDP datagrams, by kind.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.damages = Damages()
        self.skipped: dict[str, int] = {}
        self.frames = 0
        if not is_capture(stream.peek(4)):
            raise RemoteProtocolError("is neither pcap nor pcapng", where="offset 0", hint=excerpt(stream.peek(8)))

    def __iter__(self) -> Iterator[CapturedDatagram]:
        frames = self._pcapng() if self._stream.peek(4) == PCAPNG_MAGIC else self._pcap()
        for time_ns, link, wire_size, frame, offset in frames:
            self.frames += 1
            if wire_size > len(frame):
                self._damaged(f"only {len(frame)} of a frame's {wire_size} bytes were captured", offset, frame)
                continue
            found = datagram_of(link, frame)
            if isinstance(found, Datagram):
                yield CapturedDatagram(time_ns, found.source, found.destination, found.data, offset)
            elif found == Unusable.DAMAGED:
                self._damaged("a frame's headers do not match its size", offset, frame)
            else:
                self.skipped[found] = self.skipped.get(found, 0) + 1
        self.damages.note(self._stream.damage)

    def _damaged(self, what: str, offset: int, data: bytes = b"") -> None:
        self.damages.note(Damage(what, offset, excerpt(data)))

    def _pcap(self) -> Iterator[Frame]:
        header = self._stream.read(24)
        order, fraction_ns = PCAP_MAGICS[header[:4]]
        if len(header) < 24:
            self._damaged("the file's header is truncated", 0, header)
            return
        link = struct.unpack_from(f"{order}I", header, 20)[0] & 0xFFFF
        record = struct.Struct(f"{order}IIII")
        while True:
            offset = self._stream.offset
            head = self._stream.read(record.size)
            if not head:
                return
            if len(head) < record.size:
                self._damaged("a record's header is truncated", offset, head)
                return
            seconds, fraction, size, wire_size = record.unpack(head)
            if size > FRAME_SIZE_MAX:
                self._damaged(f"a record claims {size} bytes; the rest of the file cannot be read", offset, head)
                return
            frame = self._stream.read(size)
            if len(frame) < size:
                self._damaged(f"a record is truncated after {len(frame)} of {size} bytes", offset, frame)
                return
            yield seconds * 1_000_000_000 + fraction * fraction_ns, link, wire_size, frame, offset

    def _pcapng(self) -> Iterator[Frame]:
        order = "<"
        interfaces: list[_Interface] = []
        while True:
            offset = self._stream.offset
            head = self._stream.read(8)
            if not head:
                return
            if len(head) < 8:
                self._damaged("a block's header is truncated", offset, head)
                return
            if head[:4] == PCAPNG_MAGIC:
                order = "<" if self._stream.peek(4) == ORDER_MAGIC[::-1] else ">"
                interfaces = []
            kind, size = struct.unpack(f"{order}II", head)
            if size < 12 or size % 4 or size > BLOCK_SIZE_MAX:
                self._damaged(f"a block claims {size} bytes; the rest of the file cannot be read", offset, head)
                return
            rest = self._stream.read(size - 8)
            if len(rest) < size - 8:
                self._damaged(f"a block is truncated after {len(rest) + 8} of {size} bytes", offset, rest)
                return
            body = rest[:-4]
            if kind == INTERFACE and len(interfaces) < INTERFACES_MAX:
                interfaces.append(_interface(order, body))
            elif kind in (ENHANCED_PACKET, SIMPLE_PACKET):
                frame = (
                    _enhanced(order, body, interfaces) if kind == ENHANCED_PACKET else _simple(order, body, interfaces)
                )
                if frame is None:
                    self._damaged("a packet block is inconsistent", offset, body)
                else:
                    yield *frame, offset


def _interface(order: str, body: bytes) -> _Interface:
    if len(body) < 8:
        return _Interface(-1, 1_000_000, 0)
    link, snap_size = struct.unpack_from(f"{order}HxxI", body)
    ticks_per_second, at = 1_000_000, 8
    while at + 4 <= len(body):
        code, size = struct.unpack_from(f"{order}HH", body, at)
        if code == RESOLUTION_OPTION and size >= 1 and at + 4 < len(body):
            power = body[at + 4]
            ticks_per_second = 2 ** min(power & 127, 63) if power & 128 else 10 ** min(power, 18)
        at += 4 + (size + 3) // 4 * 4
        if code == 0:
            break
    return _Interface(link, ticks_per_second, snap_size)


def _enhanced(order: str, body: bytes, interfaces: list[_Interface]) -> tuple[int, int, int, bytes] | None:
    if len(body) < 20:
        return None
    number, high, low, size, wire_size = struct.unpack_from(f"{order}IIIII", body)
    if number >= len(interfaces) or size > len(body) - 20 or size > FRAME_SIZE_MAX:
        return None
    ticks = high << 32 | low
    time_ns = ticks * 1_000_000_000 // interfaces[number].ticks_per_second
    return time_ns, interfaces[number].link, wire_size, body[20 : 20 + size]


def _simple(order: str, body: bytes, interfaces: list[_Interface]) -> tuple[int, int, int, bytes] | None:
    if len(body) < 4 or not interfaces:
        return None
    (wire_size,) = struct.unpack_from(f"{order}I", body)
    size = min(wire_size, interfaces[0].snap_size or wire_size)
    if size > len(body) - 4 or size > FRAME_SIZE_MAX:
        return None
    return 0, interfaces[0].link, wire_size, body[4 : 4 + size]
