"""Redundant streams on real sockets, merged: messages that several adapters send are delivered once.

with MergingReceiver.on([channel_a, channel_b]) as receiver:
    for message in receiver: ...
"""

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
"""Time to wait for one of several sources before reading the others."""


class StreamSource(Protocol):
    """A source of streams, such as a MulticastReceiver."""

    def receive(self, timeout: float | None = None) -> list[Received]: ...

    def close(self) -> None: ...


class MergingReceiver:
    """Works in the caller's thread. Sources may come and go while it is used: one that takes another's place is added
    first, so that nothing is missed between the two. The replaced source is read before the others: if a stream went on
    in its successor first, everything that the replaced source still has would be taken for lost."""

    def __init__(
        self, sources: Sequence[StreamSource], *, config: MergerConfig | None = None, counters: Counters | None = None
    ) -> None:
        self.counters = counters or Counters("merger")
        self.merger = Merger(config, self.counters, SystemRandomness())
        self._sources = list(sources)
        self._retired: dict[StreamSource, int] = {}  # replaced sources, and when each is closed

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
        """Another source has replaced this one: read this one first for a short time, then close it."""
        self._retired[source] = time.monotonic_ns() + RETIREMENT_NS
        self._sources.remove(source)
        self._sources.insert(0, source)

    def handle(self, event: MergerEvent) -> list[MergerInstruction]:
        """Pass an event of another origin to the merger."""
        return self.merger.handle(event, time.monotonic_ns())

    def receive(self, timeout: float | None = None) -> list[MergerInstruction]:
        """What came, waiting at most `timeout` seconds, or for ever: possibly nothing, when time was up.

        A MergedBatch and its messages are good until the next call.
        """
        deadline_ns = None if timeout is None else time.monotonic_ns() + round(timeout * NS_PER_SECOND)
        while True:
            if self._retired:
                self._close_retired()
            for index, source in enumerate(self._sources):
                wait = self._wait_seconds(deadline_ns) if index == 0 else 0.0
                out = [told for each in source.receive(wait) for told in self.handle(each)]
                if out:
                    if source not in self._retired:
                        self._sources.append(self._sources.pop(index))  # the others have their turn first
                    return out
            now_ns = time.monotonic_ns()
            due_ns = self.merger.next_deadline_ns()
            if due_ns is not None and due_ns <= now_ns and (out := self.merger.handle(Tick(), now_ns)):
                return out
            if deadline_ns is not None and now_ns >= deadline_ns:
                return []

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
        """Seconds until the next timer, if nothing arrives."""
        now_ns = time.monotonic_ns()
        due_ns = [each for each in (deadline_ns, self.merger.next_deadline_ns()) if each is not None]
        wait = max(min(due_ns, default=now_ns + NS_PER_SECOND) - now_ns, 0) / NS_PER_SECOND
        return min(wait, TURN_SECONDS) if len(self._sources) > 1 else wait
