"""How far a peer's wall clock is from ours, and how sure that is. It does no I/O.

One exchange of timestamps (events.ClockSample) proves that the offset (the peer's clock minus ours) lies in an
interval: the request cannot have come before it left, so offset <= t2 - t1, and the same holds for the answer, so
offset >= t3 - t4. Nothing is assumed about how the round trip divides into there and back. Between exchanges the
interval grows by what two clocks can drift apart; each exchange is intersected with it. When nothing is left, a clock
was set, here or there: all that was known is forgotten.

The bytes of the exchange over UDP are below and in protocol/clock.md; net/live/clock_driver.py sends them.
"""

import struct
from enum import IntEnum

import msgspec

from penstock.base.counters import Cause, Counters
from penstock.base.crc32c import crc32c
from penstock.base.errors import PacketError
from penstock.net.config import ClockConfig
from penstock.net.core.events import ClockSample

PARTS_PER_MILLION = 1_000_000


class ClockEstimate(msgspec.Struct, frozen=True):
    """The peer's wall clock minus the local one is offset_ns, with an error of at most error_ns."""

    offset_ns: int
    error_ns: int
    round_trip_ns: int
    """Of the fastest exchange since a clock was last set."""

    samples: int
    """Number of exchanges since then."""

    age_ns: int
    """Time since the last exchange."""


class ClockEstimator:
    """Estimates a clock offset as one interval, in constant memory. `now_ns` is the local monotonic clock."""

    def __init__(self, config: ClockConfig, counters: Counters) -> None:
        self._config = config
        self._counters = counters
        self._samples = 0
        self._low_ns = 0
        self._high_ns = 0
        self._at_ns = 0
        self._round_trip_ns = 0

    def add(self, sample: ClockSample, now_ns: int) -> None:
        """Add an exchange whose answer arrived at `now_ns`."""
        round_trip_ns = (sample.t4 - sample.t1) - (sample.t3 - sample.t2)
        # the lower bound held when the request was sent: the clocks have drifted since
        drift_ns = self._drift_ns(abs(sample.t4 - sample.t1))
        low_ns, high_ns = sample.t3 - sample.t4 - drift_ns, sample.t2 - sample.t1 + drift_ns
        if low_ns > high_ns or sample.t3 < sample.t2:
            self._forget()  # a clock was set during the exchange, which is therefore useless
            return
        if self._samples:
            grown_ns = self._drift_ns(now_ns - self._at_ns)
            first_ns, last_ns = self._low_ns - grown_ns, self._high_ns + grown_ns
            if max(low_ns, first_ns) > min(high_ns, last_ns):
                self._forget()
            else:
                low_ns, high_ns = max(low_ns, first_ns), min(high_ns, last_ns)
        self._round_trip_ns = min(round_trip_ns, self._round_trip_ns) if self._samples else round_trip_ns
        self._low_ns, self._high_ns, self._at_ns = low_ns, high_ns, now_ns
        self._samples += 1
        self._counters.add("clock_samples")

    def estimate(self, now_ns: int) -> ClockEstimate | None:
        """Return the estimate; None if there is none, or if it is too old."""
        age_ns = now_ns - self._at_ns
        if not self._samples or age_ns > self._config.age_ms_max * 1_000_000:
            return None
        offset_ns = (self._low_ns + self._high_ns) // 2
        error_ns = self._high_ns - offset_ns + self._drift_ns(age_ns)
        return ClockEstimate(offset_ns, error_ns, max(0, self._round_trip_ns), self._samples, age_ns)

    def _forget(self) -> None:
        if self._samples:
            self._counters.add("clock_jumps")
        self._samples = 0

    def _drift_ns(self, elapsed_ns: int) -> int:
        """Rounded up, plus one for the rounding of the clocks themselves."""
        return -(-elapsed_ns * self._config.drift_ppm // PARTS_PER_MILLION) + 1


# The exchange over UDP

CLOCK_PACKET_SIZE = 64
_CHECKED = struct.Struct("<4sBBHQqqq20x")
_CHECKSUM = struct.Struct("<I")
_MAGIC = b"PSCK"
_VERSION = 1


class ClockPacketKind(IntEnum):
    REQUEST = 1
    RESPONSE = 2


class ClockPacket(msgspec.Struct, frozen=True):
    """
         0       1       2       3       4       5       6       7
       ┌───────────────────────────────┬───────┬───────┬───────────────┐
     0 │ magic "PSCK"                  │version│ kind  │ reserved      │
       ├───────────────────────────────┴───────┴───────┴───────────────┤
     8 │ cookie                                                        │
    16 │ t1                                                            │
    24 │ t2                                                            │
    32 │ t3                                                            │
       ├───────────────────────────────────────────────────────────────┤
    40 │ reserved, 20 bytes                                            │
       │                               ┌───────────────────────────────┤
    56 │                               │ checksum                      │
       └───────────────────────────────┴───────────────────────────────┘
    """

    kind: ClockPacketKind
    cookie: int
    t1: int
    t2: int = 0
    t3: int = 0


def encode_clock_packet(packet: ClockPacket) -> bytes:
    data = _CHECKED.pack(_MAGIC, _VERSION, packet.kind, 0, packet.cookie, packet.t1, packet.t2, packet.t3)
    return data + _CHECKSUM.pack(crc32c(data))


def decode_clock_packet(data: bytes) -> ClockPacket:
    """Raises PacketError with the cause that a driver counts."""
    if len(data) != CLOCK_PACKET_SIZE:
        raise PacketError(
            f"the packet has {len(data)} bytes, a clock packet has {CLOCK_PACKET_SIZE}", cause=Cause.LENGTH
        )
    magic, version, kind, _, cookie, t1, t2, t3 = _CHECKED.unpack_from(data)
    if magic != _MAGIC:
        raise PacketError("not a clock packet", cause=Cause.FOREIGN)
    if version != _VERSION:
        raise PacketError(f"the packet has version {version}, expected {_VERSION}", cause=Cause.VERSION)
    if _CHECKSUM.unpack_from(data, _CHECKED.size)[0] != crc32c(data[: _CHECKED.size]):
        raise PacketError("the checksum is wrong", cause=Cause.CHECKSUM)
    if kind not in (ClockPacketKind.REQUEST, ClockPacketKind.RESPONSE):
        raise PacketError(f"kind {kind}", cause=Cause.KIND)
    return ClockPacket(ClockPacketKind(kind), cookie, t1, t2, t3)
