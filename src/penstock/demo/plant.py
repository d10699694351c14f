"""The process that watches the others: starts them, gathers what they report, ends them, and notices when one dies.

    with DemoPlant(DemoOptions(channel=free_channel())) as plant:
        plant.start()
        while ...: plant.poll(0.25)
        plant.finish()

However it ends, no process is left: the others end by themselves when this one is gone.
"""

import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

import msgspec

from penstock.base.clock import NS_PER_SECOND, SystemRandomness
from penstock.base.counters import Counters
from penstock.base.histogram import LatencyHistogram
from penstock.base.ids import random_publisher_id
from penstock.demo.reports import GO, LEAVE, STOP, DemoOptions, Line, Ready, SubscriberReport, Task

START_SECONDS = 60.0
"""How long the processes may take to come up."""

DRAIN_SECONDS = 20.0
"""How long subscribers may take to account for everything after the goodbye."""

LINE_SIZE_MAX = 1 << 20
RATE_REPORTS = 5
"""Reports over which a rate is taken: about a second."""

COMMAND = [sys.executable, "-c", "from penstock.demo.process import main; main()"]


class Member:
    """One of the plant's processes, as the supervisor sees it."""

    def __init__(self, name: str, task: Task) -> None:
        self.name = name
        self.role = task.role
        self.counters = Counters(task.role, node=name)
        self.latency = LatencyHistogram()
        self.is_ready = False
        self.is_running = True
        self.end = ""
        """Why a subscriber's stream ended."""
        self.fault = ""
        """What went wrong with the process."""
        self._counts: deque[tuple[int, int]] = deque(maxlen=RATE_REPORTS)
        self._pending = b""
        # a process group of its own: Ctrl-C in a terminal is for the supervisor
        self.process = subprocess.Popen(
            [*COMMAND, msgspec.json.encode(task).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
        )

    @property
    def messages(self) -> int:
        """Messages published or delivered."""
        return self.counters["messages_published" if self.role == "publisher" else "messages_delivered"]

    @property
    def rate(self) -> float:
        """Messages per second lately."""
        if len(self._counts) < 2:
            return 0.0
        (first_ns, first), (last_ns, last) = self._counts[0], self._counts[-1]
        return (last - first) * NS_PER_SECOND / max(last_ns - first_ns, 1)

    def fileno(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def order(self, order: bytes) -> None:
        assert self.process.stdin is not None
        try:
            os.write(self.process.stdin.fileno(), order)
        except BrokenPipeError:
            self.process.poll()  # it is dead or dying: the end of its output will tell

    def read(self) -> bool:
        """Take in what the process has written; whether it may write more."""
        data = os.read(self.fileno(), 65_536)
        if not data:
            return False
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            self._take(msgspec.json.decode(line, type=Line))
        return len(self._pending) < LINE_SIZE_MAX

    def reap(self) -> None:
        """The process has closed its output: wait for it, and find out whether all is well."""
        self.close()
        status = self.process.returncode
        is_complete = self.role == "publisher" or self.end
        if status < 0:
            self.fault = f"{self.name} was killed by {signal.Signals(-status).name}"
        elif status > 0 or not is_complete:
            self.fault = f"{self.name} ended with status {status}"
        elif self.end not in ("goodbye", "stopped", ""):
            self.fault = f"{self.name} lost its publisher ({self.end})"

    def close(self) -> None:
        """End the process, if it has not ended."""
        self.is_running = False
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()  # a process that still waits for orders ends by this
        self.process.stdout.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _take(self, line: Line) -> None:
        match line:
            case Ready():
                self.is_ready = True
                return
            case SubscriberReport():
                self.latency = LatencyHistogram(line.latency)
                self.end = line.end
        for name, cause, value in line.counts:
            self.counters.add(name, value - self.counters.by_cause(name).get(cause, 0), cause)
        self._counts.append((line.at_ns, self.messages))


class DemoPlant:
    """A publisher and its subscribers."""

    def __init__(self, options: DemoOptions) -> None:
        self.options = options
        self.members: list[Member] = []
        self._selector = selectors.DefaultSelector()

    @property
    def publisher(self) -> Member:
        return self.members[-1]

    @property
    def subscribers(self) -> list[Member]:
        return self.members[:-1]

    @property
    def faults(self) -> list[str]:
        """What went wrong, a sentence for each process that did not end well."""
        return [member.fault for member in self.members if member.fault]

    def start(self, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Start everything; whether the plant is at work. Nothing is published before all subscribers listen."""
        publisher_id = random_publisher_id(SystemRandomness())
        for number in range(self.options.subscribers):
            self._add(Member(f"subscriber-{number + 1}", Task("subscriber", self.options, publisher_id)))
        self._add(Member("publisher", Task("publisher", self.options, publisher_id)))
        deadline = time.monotonic() + START_SECONDS
        while not all(member.is_ready for member in self.members):
            self.poll(0.1)
            if self.faults or is_over():
                return False
            if time.monotonic() >= deadline:
                self._give_up("did not come up")
                return False
        self.publisher.order(GO)
        return True

    def poll(self, timeout: float) -> None:
        """Take in what the processes have to say, waiting at most so many seconds for the first of them."""
        for key, _ in self._selector.select(timeout):
            member: Member = key.data
            if not member.read():
                self._selector.unregister(key.fileobj)
                member.reap()

    @property
    def is_working(self) -> bool:
        """Whether there is still somebody to publish, and somebody to listen."""
        return self.publisher.is_running and any(member.is_running for member in self.subscribers)

    def finish(self) -> None:
        """Let the publisher say goodbye and the subscribers account for everything; then all processes end."""
        self._order(self.publisher, STOP)
        if not self.publisher.is_running:
            for member in self.subscribers:
                self._order(member, STOP)
        self._wait_for(self.subscribers)
        self._order(self.publisher, LEAVE)
        self._wait_for([self.publisher])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for member in self.members:
            if member.is_running:
                member.process.kill()
                member.close()
        self._selector.close()

    def _add(self, member: Member) -> None:
        self.members.append(member)
        self._selector.register(member, selectors.EVENT_READ, member)

    def _order(self, member: Member, order: bytes) -> None:
        if member.is_running:
            member.order(order)

    def _wait_for(self, members: list[Member]) -> None:
        deadline = time.monotonic() + DRAIN_SECONDS
        while any(member.is_running for member in members):
            if time.monotonic() >= deadline:
                return self._give_up("did not end")
            self.poll(0.1)
        return None

    def _give_up(self, why: str) -> None:
        for member in self.members:
            if member.is_running:
                member.process.kill()
                self._selector.unregister(member)
                member.close()
                member.fault = f"{member.name} {why} and was killed"
