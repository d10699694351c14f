from collections.abc import Iterable
from enum import IntEnum

from penstock.base.histogram import HistogramState
from penstock.convert.kernel._converter import ConverterKernel
from penstock.feed.core.lines._lines import LineCursor
from penstock.feed.live._tap import Tap
from penstock.middleware.core._outgoing import OutgoingCursor
from penstock.net.udp import Inlet, Outlet

class Why(IntEnum):
    WHY_NOTHING = 0
    WHY_RUNG = 1
    WHY_DEADLINE = 2
    WHY_DATAGRAMS = 3
    WHY_CHECKPOINT = 4
    WHY_REPAIR = 5
    WHY_ERROR = 6

class Histogram:
    @property
    def maximum(self) -> int: ...
    def state(self) -> HistogramState: ...

class Exit:
    def __init__(self, cursor: OutgoingCursor, outlet: Outlet | None, destination: int, taps: list[Tap]) -> None: ...
    @property
    def unsent(self) -> int: ...
    @property
    def last_error(self) -> int: ...

class StreamLane:
    is_flowing: bool
    has_worked: bool
    def __init__(
        self,
        number: int,
        inlet: Inlet,
        cursor: LineCursor,
        converter: ConverterKernel,
        way_out: Exit,
        latencies: Histogram,
        following: StreamLane | None,
    ) -> None: ...
    @property
    def number(self) -> int: ...
    @property
    def latency_ns(self) -> int: ...
    @property
    def error(self) -> int: ...
    @property
    def rest(self) -> int: ...

class Lane:
    repairs_from_ns: int
    def __init__(self, first: StreamLane | None, fds: Iterable[int], repair_fd: int) -> None: ...
    def close(self) -> None: ...
    def ring(self) -> None: ...
    def run(self, wake_ns: int, spin: bool) -> tuple[int, int]: ...
