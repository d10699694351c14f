"""The state of a stream that a filter module forwards to its applications."""

from bisect import bisect_left
from collections import Counter

from penstock.base.counters import Cause
from penstock.filter.config import FilterConfig
from penstock.filter.core.events import StreamPosition
from penstock.filter.core.kernel._forward import Forwarder
from penstock.filter.core.message_starts import MessageStarts
from penstock.middleware import Address
from penstock.middleware.core.incoming_stream import IncomingStream
from penstock.wire import PacketFlag, PacketStore

LOST_RANGES_MAX = 4_096


class ForwardedStream:
    """One stream in one epoch, kept for some time after its end."""

    def __init__(
        self,
        incoming: IncomingStream,
        first: int,
        is_replay: bool,
        forwarder: Forwarder,
        config: FilterConfig,
    ) -> None:
        self.key = key = incoming.key
        self.epoch = incoming.epoch
        self.first = first
        self.is_replay = is_replay
        self.account = forwarder.open(key.publisher_id, key.group, incoming.epoch)
        self.account.is_passing = config.repair == "receivers"
        self.kept: PacketStore | None = None
        if config.repair == "filter":
            self.kept = PacketStore(config.kept_packets_max, config.kept_bytes_max, first_sequence=first)
            self.account.kept = self.kept
            self.message_starts = MessageStarts(self.kept)
        self.lost: list[tuple[int, int]] = []
        """Ranges of lost packets, in order; ranges too old for requests are dropped."""

        self.lost_last: list[tuple[int, int]] = []
        """Ranges lost since the last forwarded packet."""

        self.repaired_ns: dict[tuple[int, int], int] = {}
        """Time of the last repair of a packet, by application and sequence number."""

        self.lost_by_cause: Counter[Cause] = Counter()
        self.repaired = 0
        """Number of packets received after a repair request."""

        self.nacks_from: Counter[int] = Counter()
        """Repair requests from applications of each consumer."""

        self.repairs_to: Counter[int] = Counter()
        """Packets sent again for these requests."""

        self.told: dict[int, int] = {}
        """By application: the first sequence number in its last Position message."""

        self._incoming = incoming
        self._nacks_before = 0
        self._floor = first

    @property
    def source(self) -> Address:
        return self._incoming.source

    @property
    def nacks(self) -> int:
        """Number of repair requests to publishers."""
        return self._nacks_before + self._incoming.nacks

    def go_on(self, incoming: IncomingStream) -> None:
        """The stream resumes after its end."""
        self._nacks_before += self._incoming.nacks
        self._incoming = incoming

    @property
    def next_sequence(self) -> int:
        """All packets before this one were forwarded or are lost."""
        return max(self._floor, self.account.position)

    @property
    def flags(self) -> int:
        """Flags of every packet of the stream."""
        return int(PacketFlag.REPLAY) if self.is_replay else 0

    def position(self, application: int, next_sequence: int) -> StreamPosition:
        """Return the Position for an application that gets the stream from this number on."""
        self.told[application] = next_sequence
        return StreamPosition(self.key, self.epoch, next_sequence, self.source, self.is_replay)

    def leave(self, consumer: int) -> None:
        """Stop forwarding the stream to the consumer."""
        self.account.leave(consumer)
        del self.nacks_from[consumer], self.repairs_to[consumer]

    def lost_within(self, numbers: range) -> list[tuple[int, int]]:
        """Return the known ranges of lost packets within these numbers."""
        start = bisect_left(self.lost, numbers.start, key=lambda each: each[1])
        stop = bisect_left(self.lost, numbers.stop, lo=start, key=lambda each: each[0])
        return [(max(a, numbers.start), min(b, numbers.stop - 1)) for a, b in self.lost[start:stop]]

    def lose(self, first: int, last: int, cause: Cause) -> None:
        """Record lost packets. Consumers notice them from the number of the next packet, which all of them get."""
        self._floor = last + 1
        self.lost_by_cause[cause] += last - first + 1
        self.account.forget_fragments()
        self.lost_last.append((first, last))
        for consumer in self.account.listeners():
            self.account.listen(consumer, last + 1)
        if self.kept is None:
            return
        self.lost = [each for each in self.lost if each[1] >= self.kept.oldest][1 - LOST_RANGES_MAX :]
        self.lost.append((first, last))
