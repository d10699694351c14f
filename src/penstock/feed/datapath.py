"""The data thread of an adapter: it alone touches the adapter's core, its converters and its publisher.

Other threads send mail: a call that is made here between two batches, so that nothing ever sees half of one. The
compiled lane does the ordinary work; what it leaves goes through the core, with the same results.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from penstock.base.clock import NS_PER_MS
from penstock.base.core import Tick
from penstock.base.errors import LocalProtocolError
from penstock.base.histogram import LatencyHistogram
from penstock.base.log import logger
from penstock.feed._lane import Exit, Histogram, Lane, StreamLane, Why
from penstock.feed.core import FeedAdapter
from penstock.feed.events import (
    AdapterEvent,
    AdapterInstruction,
    Announce,
    LaneAdvanced,
    PublishConverted,
    RequestSource,
    SourceDatagram,
)
from penstock.feed.outbound import Outbound
from penstock.feed.sockets import SourceSockets
from penstock.net.udp import Inlet

WAKE_NS = 50 * NS_PER_MS
"""How long the thread sleeps at most."""

T = TypeVar("T")

log = logger("feed.data")


class DataPath:
    """Runs from start() to stop(). `tell` gets the core's instructions that are not the data thread's to carry out;
    it and `on_failure` are called in the data thread."""

    def __init__(
        self,
        core: FeedAdapter,
        outbound: Outbound,
        sources: Sequence[SourceSockets],
        repairs: Inlet | None,
        tell: Callable[[list[AdapterInstruction]], None],
        on_failure: Callable[[Exception], None],
        *,
        spin: bool,
        cpu: int,
    ) -> None:
        self.core = core
        self.outbound = outbound
        self._sources = list(sources)
        self._repairs = repairs
        self._tell = tell
        self._on_failure = on_failure
        self._spin = spin
        self._cpu = cpu
        self._mail: deque[Callable[[], None]] = deque()
        self._latencies = Histogram()
        self._lanes: list[StreamLane] = []
        self._lane = self._make_lane()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="penstock-data", daemon=True)

    def _make_lane(self) -> Lane:
        outbound = self.outbound
        way_out = Exit(outbound.cursor, outbound.outlet, outbound.destination, outbound.taps)
        following: StreamLane | None = None
        for number in reversed(range(len(self._sources))):
            source = self._sources[number]
            converter = source.converter
            following = StreamLane(
                number, source.inlet, source.arbiter.cursor, converter, way_out, self._latencies, following
            )
            self._lanes.insert(0, following)
        fds = [fd for source in self._sources for fd in source.fds]
        return Lane(following, fds, -1 if self._repairs is None else self.outbound_fd)

    @property
    def outbound_fd(self) -> int:
        raise NotImplementedError
