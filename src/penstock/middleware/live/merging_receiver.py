"""Redundant streams on real sockets, merged: messages that several adapters send are delivered once.

with MergingReceiver.on([channel_a, channel_b]) as receiver:
    for message in receiver: ...
"""

import select
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Protocol, Self

from penstock.base.clock import NS_PER_SECOND, SystemRandomness
from penstock.base.core import Tick
from penstock.base.counters import Counters
from penstock.base.errors import ConfigurationError
from penstock.middleware.config import MergerConfig, ReceiverConfig
from penstock.middleware.core.events import Merged, MergedBatch, MergerEvent, MergerInstruction
from penstock.middleware.core.merger import Merger
from penstock.middleware.live.receiver import MulticastReceiver, Received
from penstock.net.udp import Channel
from penstock.wire import PacketMessage

RETIREMENT_NS = NS_PER_SECOND
TURN_SECONDS = 0.002
"""Interval at which sources without descriptors are read, if there are several."""


class StreamSource(Protocol):
    """A source of streams, such as a MulticastReceiver."""

    def receive(self, timeout: float | None = None) -> list[Received]: ...

    def descriptors(self) -> list[int] | None:
        """Descriptors that become readable when something arrives; None if the source must be read to know."""

    def next_due_ns(self) -> int | None:
        """The deadline of receive() without arriving data."""

    def close(self) -> None: ...


class MergingReceiver:
    """Works in the caller's thread. Sources may be added and removed in use: a replacement is added before its
    predecessor is removed, so that no packet is missed. The replaced source is read first: if a stream continued in the
    replacement first, all unread data of the replaced source would count as lost."""

    def __init__(
        self, sources: Sequence[StreamSource], *, config: MergerConfig | None = None, counters: Counters | None = None
    ) -> None:
        self.counters = counters or Counters("merger")
        self.merger = Merger(config, self.counters, SystemRandomness())
        self._sources = list(sources)
        self._retired: dict[StreamSource, int] = {}  # replaced sources, and the closing time of each

    @staticmethod
    def on(
        channels: Sequence[Channel],
        *,
        config: ReceiverConfig | None = None,
        merging: MergerConfig | None = None,
        spin: bool = False,
        loss: float = 0.0,
    ) -> "MergingReceiver":
        """Make a receiver of these channels, all on one interface; see MulticastReceiver."""
        if config is not None and config.accept == "both":
            raise ConfigurationError(
                "live and replayed streams have the same numbers and cannot be merged", hint="accept one of them"
            )
        counters = Counters("receiver")
        receiver = MulticastReceiver(channels, config=config, counters=counters, spin=spin, loss=loss)
        return MergingReceiver([receiver], config=merging, counters=counters)

    def add(self, source: StreamSource) -> None:
        self._sources.append(source)

    def retire(self, source: StreamSource) -> None:
        """Another source replaces this one: read this one first for a short time, then close it."""
        self._retired[source] = time.monotonic_ns() + RETIREMENT_NS
        self._sources.remove(source)
        self._sources.insert(0, source)

    @property
    def only_source(self) -> StreamSource | None:
        """The single source, if there is only one and no other work is due."""
        is_alone = len(self._sources) == 1 and not self._retired and not self.merger.is_stalled
        return self._sources[0] if is_alone else None

    def handle(self, event: MergerEvent) -> list[MergerInstruction]:
        """Pass an event of another origin to the merger."""
        return self.merger.handle(event, time.monotonic_ns())

    def receive(self, timeout: float | None = None) -> list[MergerInstruction]:
        """Return the received messages and events; wait at most `timeout` seconds, or without a limit. The result is
        empty after a timeout.

        A MergedBatch and its messages are valid until the next call.
        """
        deadline_ns = None if timeout is None else time.monotonic_ns() + round(timeout * NS_PER_SECOND)
        while True:
            if self._retired:
                self._close_retired()
            is_alone = len(self._sources) == 1
            for index, source in enumerate(self._sources):
                wait = self._wait_seconds(deadline_ns) if is_alone else 0.0
                out = [told for each in source.receive(wait) for told in self.handle(each)]
                if out:
                    if source not in self._retired:
                        self._sources.append(self._sources.pop(index))  # the other sources have their turn first
                    return out
            now_ns = time.monotonic_ns()
            due_ns = self.merger.next_deadline_ns()
            if due_ns is not None and due_ns <= now_ns and (out := self.merger.handle(Tick(), now_ns)):
                return out
            if deadline_ns is not None and now_ns >= deadline_ns:
                return []
            if not is_alone:
                wait_readable(self.descriptors(), self._wait_seconds(min_of(deadline_ns, self._sources_due_ns())))

    def descriptors(self) -> list[int] | None:
        """Return the descriptors of all sources; None if one of them has none."""
        found: list[int] = []
        for source in self._sources:
            if (descriptors := source.descriptors()) is None:
                return None
            found += descriptors
        return found

    def idle_seconds(self) -> float:
        """Return the time until receive() is due even if nothing arrives."""
        return self._wait_seconds(self._sources_due_ns())

    def __iter__(self) -> Iterator[PacketMessage]:
        """Iterate over messages without end; gaps are only counted. receive() reports everything."""
        while True:
            for each in self.receive():
                if isinstance(each, Merged | MergedBatch):
                    yield from each.messages

    def close(self) -> None:
        for source in self._sources:
            source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _close_retired(self) -> None:
        now_ns = time.monotonic_ns()
        for source in [source for source, until_ns in self._retired.items() if until_ns <= now_ns]:
            del self._retired[source]
            self._sources.remove(source)
            source.close()

    def _wait_seconds(self, deadline_ns: int | None) -> float:
        """Return the seconds until the next timer, if nothing arrives."""
        now_ns = time.monotonic_ns()
        due_ns = min_of(deadline_ns, self.merger.next_deadline_ns())
        return max((now_ns + NS_PER_SECOND if due_ns is None else due_ns) - now_ns, 0) / NS_PER_SECOND

    def _sources_due_ns(self) -> int | None:
        return min_of(*(source.next_due_ns() for source in self._sources))


def min_of(*times_ns: int | None) -> int | None:
    """Return the earliest of the known times."""
    return min((each for each in times_ns if each is not None), default=None)


def wait_readable(descriptors: Sequence[int] | None, seconds: float) -> None:
    """Wait until one of the descriptors is readable, or for the given time; without descriptors, for a short
    interval."""
    poll = select.poll()
    for each in descriptors or ():
        poll.register(each, select.POLLIN)
    poll.poll(1_000 * (min(seconds, TURN_SECONDS) if descriptors is None else seconds))
