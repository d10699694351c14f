"""The event log of a run: its newest entries, and a digest of all entries for comparing runs."""

import hashlib
from collections import deque
from typing import TextIO

from penstock.base.errors import PacketError
from penstock.base.ids import format_group
from penstock.wire import Kind, PacketFlag, decode
from penstock.wire._authentication import strip_trailer

ENTRIES_KEPT = 2_000


class EventLog:
    """Every entry goes into the digest; two runs with equal digests had the same events at the same times."""

    def __init__(self, trace: TextIO | None = None) -> None:
        self._digest = hashlib.sha256()
        self._newest: deque[str] = deque(maxlen=ENTRIES_KEPT)
        self._trace = trace
        self.count = 0

    def write(self, now_ns: int, who: str, what: str) -> None:
        line = f"{now_ns / 1e9:14.9f} {who:12} {what}"
        self._digest.update(line.encode())
        self._newest.append(line)
        self.count += 1
        if self._trace is not None:
            self._trace.write(line + "\n")

    def digest(self) -> str:
        return self._digest.hexdigest()

    def tail(self, count: int = 40) -> list[str]:
        return list(self._newest)[-count:]


def describe(data: bytes) -> str:
    """A datagram in a few words."""
    try:
        packet = decode(strip_trailer(data))
    except PacketError as error:
        return f"{len(data)} bytes that are no packet ({error.cause})"
    stream = f"publisher {packet.publisher_id} epoch {packet.epoch} {format_group(packet.group)}"
    if packet.kind != Kind.DATA:
        return f"{Kind(packet.kind).name} {stream} packets {', '.join(f'{a}-{b}' for a, b in packet.ranges)}"
    flags = PacketFlag(packet.flags).name or ""
    return f"DATA {stream} packet {packet.sequence} with {len(packet)} messages {flags}".rstrip()
