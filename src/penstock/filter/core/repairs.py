"""Repairs for applications: kept packets are sent again, filtered for the application; others are reported gone."""

from collections.abc import Iterator

from penstock.base.clock import NS_PER_MS
from penstock.base.counters import Counters
from penstock.filter.config import FilterConfig
from penstock.filter.core.consumers import Application
from penstock.filter.core.forwarded_stream import ForwardedStream
from penstock.filter.core.kernel._account import StreamAccount
from penstock.filter.core.kernel._forward import Forwarder
from penstock.middleware import Unicast
from penstock.middleware.core.gaps import merged
from penstock.middleware.core.repair_limits import RepairLimits
from penstock.wire import (
    RANGES_MAX,
    Outbox,
    PacketFlag,
    encode_gone,
)

REPAIR = int(PacketFlag.REPAIR)
HELD_MAX = 65_536
"""Maximum number of recent repairs per stream that are remembered, so that they are not repeated at once."""


class Repairs:
    """Answers the requests of applications for packets of one stream each."""

    def __init__(self, config: FilterConfig, forwarder: Forwarder, counters: Counters) -> None:
        self._config = config
        self._forwarder = forwarder
        self._counters = counters
        self._outbox = Outbox.for_consumers(1)
        self._limits = RepairLimits(config.repair_source_rate_max, config.repair_rate_max, config.repair_packets_max)

    def answer(
        self, stream: ForwardedStream, application: Application, ranges: list[tuple[int, int]], now_ns: int
    ) -> list[Unicast]:
        """Return repair packets. Within the requested range, a packet without matching messages is left out and
        accounted for by the next packet's gap; the last packet is always sent."""
        kept = stream.kept
        assert kept is not None
        self._counters.add("nacks_received")
        stream.nacks_from[application.consumer.number] += 1
        answers: list[Unicast] = []
        gone: list[tuple[int, int]] = []
        budget = min(self._config.repair_packets_max, self._limits.available(application.address, now_ns))
        if budget <= 0:
            self._counters.add("nacks_limited")
        allowed = budget
        for first, last in merged(ranges[:RANGES_MAX]):
            forgotten, present = kept.split(first, last)
            if forgotten is not None:
                gone.append(forgotten)
            lost = stream.lost_within(present)
            gone += lost
            for numbers in _without(present, lost):
                chosen = numbers[: max(budget, 0)]
                budget -= len(chosen)
                for run in self._runs(stream, application, chosen, now_ns):
                    answers += [application.unicast(data) for data in self._repair(stream, application, run)]
        self._limits.spend(application.address, allowed - budget)
        if gone:
            self._counters.add("repairs_unavailable", sum(last - first + 1 for first, last in gone))
            answer = encode_gone(stream.key.publisher_id, stream.key.group, stream.epoch, merged(gone)[:RANGES_MAX])
            answers.append(application.unicast(answer))
        return answers

    def _runs(self, stream: ForwardedStream, application: Application, numbers: range, now_ns: int) -> Iterator[range]:
        """The range without packets that were recently sent to the application."""
        hold_ns = self._config.repair_hold_ms * NS_PER_MS
        held = stream.repaired_ns
        if len(held) > HELD_MAX:
            stream.repaired_ns = held = {key: at_ns for key, at_ns in held.items() if now_ns - at_ns < hold_ns}
        start = numbers.start
        for sequence in numbers:
            repaired_ns = held.get((application.number, sequence))
            if repaired_ns is None or now_ns - repaired_ns >= hold_ns:
                held[application.number, sequence] = now_ns
                continue
            self._counters.add("repairs_suppressed")
            if start < sequence:
                yield range(start, sequence)
            start = sequence + 1
        if start < numbers.stop:
            yield range(start, numbers.stop)

    def _repair(self, stream: ForwardedStream, application: Application, run: range) -> list[bytes]:
        """The packets of the run as the application's consumer gets them."""
        kept, consumer = stream.kept, application.consumer.number
        assert kept is not None
        key = stream.key
        account = StreamAccount(key.publisher_id, key.group, stream.epoch, self._forwarder.consumers_max)
        with_packets = [sequence for sequence in run if kept.get(sequence)]
        if not with_packets:
            return []  # an upstream filter has removed them
        before = self._forwarder.use(self._outbox)
        try:
            begun = stream.message_starts.of(with_packets[0])
            if begun is not None:
                account.listen(consumer, begun)
                # the first fragment decides which consumers take the message
                self._forwarder.forward_packet(kept.get(begun), account)
                self._outbox.clear()
            account.listen(consumer, run.start)
            answers: list[bytes] = []
            for sequence in with_packets:
                is_last = sequence == with_packets[-1]
                self._forwarder.forward_packet(kept.get(sequence), account, to_all=is_last, flags=REPAIR)
                answers += [data for _, data in self._outbox.packets()]
                self._outbox.clear()
        finally:
            self._outbox.clear()
            self._forwarder.use(before)
        self._counters.add("repairs_sent", len(answers))
        stream.repairs_to[consumer] += len(answers)
        return answers


def _without(numbers: range, lost: list[tuple[int, int]]) -> Iterator[range]:
    start = numbers.start
    for first, last in lost:
        if start < first:
            yield range(start, first)
        start = last + 1
    if start < numbers.stop:
        yield range(start, numbers.stop)
