"""The data thread of an adapter: the only thread that uses the adapter's core, its converters and its publisher.

Other threads post calls to its mailbox. The thread makes these calls between two batches, so no call sees a part of a
batch. The compiled lane does the ordinary work; the core handles everything else, with the same results.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

from penstock.base.clock import NS_PER_MS
from penstock.base.core import Tick
from penstock.base.histogram import LatencyHistogram
from penstock.base.log import logger
from penstock.feed.core.adapter import FeedAdapter
from penstock.feed.core.events import (
    AdapterEvent,
    AdapterInstruction,
    Announce,
    LaneAdvanced,
    PublishConverted,
    RequestSource,
    SourceDatagram,
    SourceDatagrams,
    TimeOfDay,
)
from penstock.feed.live._lane import Exit, Histogram, Lane, StreamLane, Why
from penstock.feed.live.outbound import Outbound
from penstock.feed.live.sources import DatagramSource, RepairSocket
from penstock.net.live.mailbox import Mailbox

WAKE_NS = 50 * NS_PER_MS
"""Maximum sleep of the thread."""

REPAIR_PAUSE = 4
"""Length of the pause after a round of repairs, as a multiple of the time that the round took."""

T = TypeVar("T")

log = logger("feed.data")


class DataPath:
    """Runs from start() to stop(). `on_instructions` gets the core's instructions that the data thread does not
    carry out; it and `on_failure` are called in the data thread."""

    def __init__(
        self,
        core: FeedAdapter,
        outbound: Outbound,
        sources: Sequence[DatagramSource],
        repairs: RepairSocket,
        on_instructions: Callable[[list[AdapterInstruction]], None],
        on_failure: Callable[[Exception], None],
        *,
        live_ids: Sequence[int],
        spin: bool,
        cpu: int,
    ) -> None:
        """The trading days of the source streams `live_ids` end by this host's clock."""
        self.core = core
        self._live_ids = live_ids
        self.outbound = outbound
        self._sources = list(sources)
        self._by_id: Mapping[int, DatagramSource] = {source.stream_id: source for source in sources}
        self._repairs = repairs
        self._on_instructions = on_instructions
        self._on_failure = on_failure
        self._spin = spin
        self._cpu = cpu
        self._latencies = Histogram()
        self._lanes: list[StreamLane] = []
        self._lane = self._make_lane()
        self._mailbox = Mailbox(self._lane.ring, "the adapter")
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="penstock-data", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Finish the current batch, send GOODBYE to receivers, and end. Before start() there is nothing to send."""
        self._is_stopped = True
        self._lane.ring()
        if self._thread.is_alive():
            self._thread.join()
        self._mailbox.close()
        self._lane.close()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def latencies(self) -> LatencyHistogram:
        """Time from a datagram's arrival in this process until its messages were sent, per source message."""
        return LatencyHistogram(self._latencies.state())

    @property
    def lag_ns(self) -> int:
        """The lag of the last published message."""
        return max((lane.latency_ns for lane in self._lanes), default=0)

    # Calls from any thread

    def submit(self, event: AdapterEvent) -> None:
        """Let the core handle an event in the data thread."""
        self.post(lambda: self.handle(event))

    def post(self, call: Callable[[], None]) -> None:
        self._mailbox.post(call)

    def ask(self, question: Callable[[], T]) -> "Future[T]":
        """The result of `question`, called in the data thread."""
        return self._mailbox.ask(question)

    # The data thread

    def handle(self, event: AdapterEvent) -> None:
        self._carry_out(self.core.handle(event, time.monotonic_ns()))

    def _run(self) -> None:
        try:
            if self._cpu >= 0:
                os.sched_setaffinity(threading.get_native_id(), {self._cpu})
            self.outbound.tick(time.monotonic_ns())  # models come before everything else
            while not self._is_stopped:
                self._turn()
            self.outbound.say_goodbye(time.monotonic_ns())
        except Exception as error:  # a process without its data thread must not look healthy
            log.error("data_thread_failed", error=repr(error))
            self._on_failure(error)
        finally:
            self._mailbox.close()

    def _turn(self) -> None:
        self._mailbox.deliver()
        now_ns = time.monotonic_ns()
        deadline_ns = self.core.next_deadline_ns()
        if deadline_ns is not None and deadline_ns <= now_ns:
            self._carry_out(self.core.handle(Tick(), now_ns))
        self._end_days()
        self.outbound.tick(now_ns)
        rolls_ns = self._rolls_ns()
        for source, lane, roll_ns in zip(self._sources, self._lanes, rolls_ns, strict=True):
            is_flowing = self.core.is_flowing(source.stream_id) and not self.outbound.is_sealed
            lane.is_flowing = is_flowing and (roll_ns is None or roll_ns > 0)
        if self._mailbox:
            return
        why, number = self._lane.run(self._wake_ns(now_ns, rolls_ns), self._spin)
        self._note_advances()
        if why == Why.WHY_REPAIR:
            self._repair()
        elif number >= 0:
            self._take_rest(why, self._sources[number], self._lanes[number])

    def _repair(self) -> None:
        """Answer repair requests, with a pause afterwards, so that many requests do not delay new messages."""
        started_ns = time.monotonic_ns()
        self.outbound.receive(self._repairs.receive(), started_ns)
        now_ns = time.monotonic_ns()
        self._lane.repairs_from_ns = now_ns + REPAIR_PAUSE * (now_ns - started_ns)

    def _note_advances(self) -> None:
        """Report the work of the lanes to the core, before any other event."""
        for source, lane in zip(self._sources, self._lanes, strict=True):
            if lane.has_worked:
                lane.has_worked = False
                self.handle(LaneAdvanced(source.stream_id))

    def _take_rest(self, why: int, source: DatagramSource, lane: StreamLane) -> None:
        """Handle the datagrams that the lane left to Python."""
        if why == Why.WHY_ERROR:
            raise OSError(lane.error, os.strerror(lane.error), f"source stream {source.stream_id}")
        batch = source.inlet.batch
        if why == Why.WHY_CHECKPOINT:
            return
        if lane.rest == 0:
            self.handle(SourceDatagrams(source.stream_id, batch))
            return
        for index in range(lane.rest, len(batch)):
            data, line = bytes(batch.datagram(index)), batch.socket(index)
            self.handle(SourceDatagram(source.stream_id, line, data, batch.arrival_ns(index)))

    def _end_days(self) -> None:
        """Pass the time to the core if the trading day of a source stream has ended."""
        wall_ns = time.time_ns()
        for stream_id in self._live_ids:
            end_ns = self.core.day_end_ns(stream_id)
            if end_ns is not None and wall_ns >= end_ns:
                self.handle(TimeOfDay(stream_id, wall_ns))

    def _rolls_ns(self) -> list[int | None]:
        """For each source stream with lines, the remaining time of its trading day by the calendar. The lane leaves
        later messages to the core, which compares receive times."""
        wall_ns = time.time_ns()
        ends_ns = [self.core.roll_ns(source.stream_id) for source in self._sources]
        return [None if end_ns is None else end_ns - wall_ns for end_ns in ends_ns]

    def _wake_ns(self, now_ns: int, rolls_ns: list[int | None]) -> int:
        deadlines = [self.core.next_deadline_ns(), self.outbound.next_deadline_ns(), now_ns + WAKE_NS]
        deadlines += [now_ns + left_ns for left_ns in rolls_ns if left_ns is not None and left_ns > 0]
        return min(each for each in deadlines if each is not None)

    def _carry_out(self, instructions: list[AdapterInstruction]) -> None:
        others: list[AdapterInstruction] = []
        for instruction in instructions:
            if isinstance(instruction, PublishConverted):
                self.outbound.publish(instruction.converted, time.monotonic_ns())
            elif isinstance(instruction, Announce):
                self.outbound.publish_message(instruction.message, time.monotonic_ns())
            elif isinstance(instruction, RequestSource):
                self._by_id[instruction.stream_id].request(instruction)
            else:
                others.append(instruction)
        if others:
            self._on_instructions(others)

    def _make_lane(self) -> Lane:
        outbound = self.outbound
        way_out = Exit(outbound.cursor, outbound.outlet, outbound.destination, outbound.taps)
        following: StreamLane | None = None
        for number in reversed(range(len(self._sources))):
            source = self._sources[number]
            following = StreamLane(
                number, source.inlet, source.arbiter.cursor, source.converter, way_out, self._latencies, following
            )
            self._lanes.insert(0, following)
        return Lane(following, [fd for source in self._sources for fd in source.fds], self._repairs.fd)
