"""The demo's plant: exchange, lines A and B, an active and a backup adapter, an administration server, subscribers.

Subscribers receive through a filter module. With several subscribers, the last one receives directly from the adapters
and takes everything, as a reference for the others.

    with DemoPlant(DemoOptions()) as plant:
        plant.start()
        while ...: plant.poll(0.25)
        plant.finish()

At the end, all processes are stopped and the directory is removed, also after errors.
"""

import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from penstock.base.clock import NS_PER_SECOND
from penstock.base.files import make_directory
from penstock.base.histogram import LatencyHistogram
from penstock.demo.archiving import Archiving
from penstock.demo.bookings import Bookings
from penstock.demo.consumers import Consumer, Published, make_consumers, published_of
from penstock.demo.layout import (
    CONSOLE,
    FILTER,
    FILTERED_TOPICS,
    PLAYER,
    TOPICS,
    UNWANTED_MODEL,
    Layout,
    write_layout,
)
from penstock.demo.reports import DemoOptions, Subscribed, SubscriberReport, SubscriberTask, Tally
from penstock.demo.routing import ROUTERS
from penstock.filter.client.discovery import NONE
from penstock.filter.core.status import FilterStatus
from penstock.node.member import Member
from penstock.node.plant import Plant
from penstock.node.process import TELL_SECONDS
from penstock.node.running import NodeProcess, RunningPlant
from penstock.tree.core.status import AgentStatus

START_SECONDS = 180.0
DRAIN_SECONDS = 20.0
"""Maximum time for subscribers to receive everything after the exchange has stopped sending."""

SETTLE_SECONDS = 3 * TELL_SECONDS
RATE_REPORTS = 5
"""Number of reports over which a rate is computed: about one second."""


class Rate:
    """The recent rate of a counter."""

    def __init__(self) -> None:
        self._counts: deque[tuple[int, int]] = deque(maxlen=RATE_REPORTS)

    def note(self, at_ns: int, count: int) -> None:
        if not self._counts or count != self._counts[-1][1] or at_ns - self._counts[-1][0] > NS_PER_SECOND:
            self._counts.append((at_ns, count))

    @property
    def per_second(self) -> float:
        if len(self._counts) < 2:
            return 0.0
        (first_ns, first), (last_ns, last) = self._counts[0], self._counts[-1]
        return (last - first) * NS_PER_SECOND / max(last_ns - first_ns, 1)


class Subscriber:
    """The demo plant's handle to one subscribing process."""

    def __init__(self, name: str, topics: list[str], *, is_filtered: bool) -> None:
        self.name = name
        self.topics = topics
        self.is_filtered = is_filtered
        self.is_ready = False
        self.report: SubscriberReport | None = None
        self.latency = LatencyHistogram()
        self.gaps: dict[int, int] = {}
        self.rate = Rate()
        self.fault = ""
        self.member: Member | None = None

    @property
    def messages(self) -> int:
        return self.report.messages if self.report else 0

    @property
    def tallies(self) -> dict[str, Tally]:
        return self.report.tallies if self.report else {}

    def take(self, line: bytes) -> None:
        told = msgspec.json.decode(line, type=Subscribed | SubscriberReport)
        if isinstance(told, Subscribed):
            self.is_ready = True
            return
        self.report = told
        self.latency = LatencyHistogram(told.latency)
        self.rate.note(told.at_ns, told.messages)
        self.gaps |= {gap.second: gap.ns for gap in told.gaps}


class Kill(msgspec.Struct, frozen=True):
    """A kill: the target and the time."""

    node: str
    second: int


class Passed(msgspec.Struct):
    """Totals of the filter modules' message counts."""

    messages: int = 0
    unwanted: int = 0
    passed: int = 0

    def add(self, status: FilterStatus) -> None:
        self.messages += status.messages
        self.unwanted += status.unwanted
        self.passed += status.passed


class DemoPlant:
    def __init__(self, options: DemoOptions, keep: Path | None = None) -> None:
        """The archive is stored in the directory `keep`; without one, it is removed at the end."""
        self.options = options
        self._open = ExitStack()
        directory = Path(self._open.enter_context(tempfile.TemporaryDirectory(prefix="penstock-demo-")))
        self._keep = keep or directory
        self.logs = self._keep / "logs"
        """One file for each process."""
        make_directory(self.logs)
        self.archiving: Archiving | None = None
        self._layout: Layout = write_layout(directory, options)
        self.running = self._open.enter_context(RunningPlant(Plant.load(self._layout.plant), logs=self.logs))
        self.subscribers = self._make_subscribers()
        self.consumers = make_consumers(self._layout) if options.nodes else []
        self.bookings = (
            Bookings(self._layout, [self.running.nodes[name] for name in ROUTERS]) if options.router else None
        )
        self.exchange_rate = Rate()
        self.kills: list[Kill] = []
        self._filtered_before: list[FilterStatus] = []  # last status of killed filters
        self.made = 0
        """Application messages that an adapter made from the exchange's messages; known at the end."""
        self._faults: list[str] = []

    def _make_subscribers(self) -> list[Subscriber]:
        names = [path.stem for path in self._layout.credentials]
        if not self.options.nodes:
            return [Subscriber(name, TOPICS, is_filtered=False) for name in names]
        if len(names) == 1:
            return [Subscriber(names[0], TOPICS, is_filtered=True)]
        filtered = [Subscriber(name, FILTERED_TOPICS, is_filtered=True) for name in names[:-1]]
        return [*filtered, Subscriber(names[-1], TOPICS, is_filtered=False)]

    @property
    def exchange(self) -> NodeProcess:
        return self.running.nodes[PLAYER]

    @property
    def url(self) -> str:
        return self._layout.url

    @property
    def console(self) -> str:
        """Address of the console; empty without one."""
        return self.running.nodes[CONSOLE].where if CONSOLE in self.running.nodes else ""

    @property
    def agents(self) -> dict[str, AgentStatus]:
        """The tree as last reported by its agents."""
        return {node.name: node.agent for node in self.running.nodes.values() if node.agent is not None}

    def start(self, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Start everything; return whether the plant is running. The exchange starts when all subscribers are ready."""
        return (
            self.running.start(is_over, players=False)
            and self._wait(lambda: self.running.active() is not None, is_over, "no adapter became the active one")
            and self._start_subscribers(is_over)
            and self._start_consumers(is_over)
            and self._start_bookings(is_over)
            and self._start_archiving(is_over)
            and self.running.start_players(is_over)
        )

    def poll(self, timeout: float) -> None:
        self.running.poll(timeout)
        self.exchange_rate.note(time.monotonic_ns(), self.exchange.sent)
        if self.bookings is not None:
            self.bookings.look()
        for each in self.subscribers:
            if each.member is not None and each.member.fault and not each.fault:
                each.fault = each.member.fault

    def kill_active(self) -> str:
        """Kill the active adapter with kill -9 while messages flow; return its name, or "" if none is active, or if no
        backup is synchronised yet."""
        is_ready = any(each.member and each.status and each.status.is_synchronised for each in self.running.adapters())
        return self._kill(self.running.active()) if is_ready else ""

    def kill_filter(self) -> str:
        """Kill the filter module, which the supervisor restarts."""
        module = self.filter
        if module is None or (status := module.filtering) is None or not (name := self._kill(module)):
            return ""
        self._filtered_before.append(status)
        return name

    def kill_router(self) -> str:
        """Kill the active message router; the other one takes over."""
        if self.bookings is None or (router := self.bookings.active) is None or not (name := self._kill(router)):
            return ""
        self.bookings.note_kill(router)
        return name

    def _kill(self, node: NodeProcess | None) -> str:
        if node is None or node.member is None:
            return ""
        self.kills.append(Kill(node.name, time.monotonic_ns() // NS_PER_SECOND))
        self.running.kill(node.name)
        return node.name

    @property
    def filter(self) -> NodeProcess | None:
        """The filter module; None if the plant has none."""
        return self.running.nodes.get(FILTER)

    @property
    def filtered(self) -> Passed:
        """Return the totals of the filter modules."""
        passed = Passed()
        for status in (*self._filtered_before, self.filter.filtering if self.filter else None):
            if status is not None:
                passed.add(status)
        return passed

    @property
    def reference(self) -> Subscriber | None:
        """Return the subscriber that receives everything without the filter module, if it is healthy."""
        return next((each for each in self.subscribers if not each.is_filtered and not each.fault), None)

    @property
    def published(self) -> Published:
        """Return the messages seen by the reference subscriber, or by the only subscriber."""
        witness = self.reference or self.subscribers[0]
        return published_of(witness.tallies, self.consumers, is_whole=self._is_whole(witness))

    def expected(self, subscriber: Subscriber) -> int | None:
        """Return how many messages the subscriber must have by now; None if unknown."""
        if subscriber.topics == TOPICS:
            return self.made
        if self.reference is None or not self._is_whole(self.reference):
            return None
        return sum(tally.count for tally in _wanted(self.reference).values())

    def _is_whole(self, witness: Subscriber) -> bool:
        """True if the subscriber has every message made, so that others can be compared with it."""
        return witness.topics == TOPICS and 0 < self.made <= witness.messages

    def agrees(self, subscriber: Subscriber) -> bool:
        """True if the subscriber received the same messages through the filter module as the reference on the same
        topics.
        """
        return self.reference is not None and _wanted(subscriber) == _wanted(self.reference)

    @property
    def is_working(self) -> bool:
        """True if at least one sender and one subscriber are running."""
        return self.exchange.member is not None and any(not each.fault for each in self.subscribers)

    @property
    def is_recovering(self) -> bool:
        """True if the filter module or a message router was killed and has not delivered anything since."""
        is_filtering = not self._filtered_before
        if (module := self.filter) is not None and module.starts > len(self._filtered_before):
            is_filtering |= module.filtering is not None and module.filtering.passed > 0
        return not is_filtering or (self.bookings is not None and self.bookings.is_recovering)

    def finish(self) -> None:
        """Stop the exchange, let the subscribers receive everything, then end all processes."""
        self.running.stop_node(PLAYER)
        sent = self.exchange.sent
        deadline = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < deadline and not self._is_drained(sent):
            self.poll(0.05)
        self.running.supervisor.wait(lambda: False, SETTLE_SECONDS)  # for the last reports of all processes
        self._count_made(sent)
        everybody: list[Subscriber | Consumer] = [*self.subscribers, *self.consumers]
        members = [each.member for each in everybody if each.member and not each.fault]
        if self.bookings is not None:
            members += [each for each in self.bookings.members if not each.fault]
        self.running.supervisor.stop(members)
        self.running.stop()
        if self.archiving is not None:
            self.archiving.finish()

    @property
    def faults(self) -> list[str]:
        """Return a sentence for each process that failed, except those killed on purpose."""
        expected = {kill.node for kill in self.kills} | self.running.ordered
        nodes = [node.fault for node in self.running.nodes.values() if node.fault and node.name not in expected]
        archiving = [self.archiving.fault] if self.archiving is not None and self.archiving.fault else []
        subscribing = [each.fault for each in self.subscribers if each.fault]
        consuming = [each.fault for each in self.consumers if each.fault]
        booking = self.bookings.faults if self.bookings is not None else []
        return [*self._faults, *nodes, *subscribing, *consuming, *booking, *archiving]

    def gap_at_kill_ns(self, subscriber: Subscriber, kill: Kill) -> int:
        """Return the longest time between two deliveries in the seconds around the kill."""
        around = range(kill.second, kill.second + 3)
        return max((subscriber.gaps.get(second, 0) for second in around), default=0)

    def gap_otherwise_ns(self, subscriber: Subscriber) -> int:
        """Return the longest time between two deliveries in an ordinary second (the median)."""
        around = {second for kill in self.kills for second in range(kill.second - 1, kill.second + 4)}
        others = [ns for second, ns in subscriber.gaps.items() if second not in around]
        return int(statistics.median(others)) if others else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.close()

    def _start_subscribers(self, is_over: Callable[[], bool]) -> bool:
        for each, credentials in zip(self.subscribers, self._layout.credentials, strict=True):
            place = self._layout.filter if each.is_filtered else NONE
            task = SubscriberTask(self._layout.url, str(credentials), each.topics, place)
            arguments = [msgspec.json.encode(task).decode()]
            each.member = self.running.supervisor.start(
                each.name, "penstock.demo.subscriber:main", arguments, each.take
            )
        return self._wait(
            lambda: all(each.is_ready for each in self.subscribers), is_over, "a subscriber did not start"
        )

    def _start_consumers(self, is_over: Callable[[], bool]) -> bool:
        for each in self.consumers:
            each.start(self.running.supervisor)
        return self._wait(lambda: all(each.is_ready for each in self.consumers), is_over, "a consumer did not start")

    def _start_bookings(self, is_over: Callable[[], bool]) -> bool:
        bookings = self.bookings
        if bookings is None:
            return True
        bookings.start(self.running.supervisor)
        return self._wait(lambda: bookings.is_ready, is_over, "a booking or clearing process did not start")

    def _start_archiving(self, is_over: Callable[[], bool]) -> bool:
        """Start Spark, which takes some seconds; the exchange waits, so that the archive is never far behind."""
        if not self.options.pipeline:
            return True
        archiving = Archiving(self.running.supervisor, self._layout, self._keep)
        self.archiving = archiving
        return self._wait(lambda: archiving.report is not None, is_over, "the pipeline did not start")

    def _wait(self, condition: Callable[[], bool], is_over: Callable[[], bool], what: str) -> bool:
        is_met = self.running.supervisor.wait(condition, START_SECONDS, lambda: is_over() or bool(self.faults))
        if not is_met and not is_over() and not self.faults:
            self._faults.append(what)
        return is_met

    def _is_drained(self, sent: int) -> bool:
        """True if some adapter has converted everything, and every subscriber has received it."""
        return (
            self._count_made(sent)
            and all(each.fault or self._has_all(each) for each in self.subscribers)
            and all(each.fault or each.has_all(self.published) for each in self.consumers)
            and (self.bookings is None or bool(self.bookings.faults) or self.bookings.has_all)
        )

    def _count_made(self, sent: int) -> bool:
        """True if some adapter has converted everything; otherwise the most advanced adapter counts."""
        nodes = [node for node in self.running.adapters() if node.member and node.status]
        streams = [stream for node in nodes if node.status for stream in node.status.streams]
        done = [stream for stream in streams if stream.next_source_sequence == sent + 1]
        self.made = max((stream.next_message_sequence - 1 for stream in done or streams), default=0)
        return bool(done)

    def _has_all(self, subscriber: Subscriber) -> bool:
        expected = self.expected(subscriber)
        lost = subscriber.report.lost if subscriber.report else 0
        return expected is None or subscriber.messages + lost >= expected


def _wanted(subscriber: Subscriber) -> dict[str, Tally]:
    """Return the subscriber's messages on the topics of those behind the filter module."""
    return {model: tally for model, tally in subscriber.tallies.items() if model != UNWANTED_MODEL}
