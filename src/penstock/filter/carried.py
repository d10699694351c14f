"""What the module keeps of a stream that it carries to its applications."""

from penstock.filter._forward import Forwarder
from penstock.filter.config import FilterConfig
from penstock.filter.events import StreamPosition
from penstock.middleware import Address, StreamKey
from penstock.wire import PacketFlag, PacketStore

LOST_RANGES_MAX = 4_096


class CarriedStream:
    """One stream in one epoch, until some time after its end."""

    def __init__(
        self,
        key: StreamKey,
        epoch: int,
        first: int,
        source: Address,
        is_replay: bool,
        forwarder: Forwarder,
        config: FilterConfig,
    ) -> None:
        self.key = key
        self.epoch = epoch
        self.source = source
        self.is_replay = is_replay
        self.account = forwarder.open(key.publisher_id, key.group, epoch)
        self.account.is_passing = config.repair == "receivers"
        self.kept: PacketStore | None = None
        if config.repair == "filter":
            self.kept = PacketStore(config.kept_packets_max, config.kept_bytes_max, first_sequence=first)
            self.account.kept = self.kept
        self.lost: list[tuple[int, int]] = []
        """Packets that never came, in order; those too old to be asked for are forgotten."""

        self.lost_last: list[tuple[int, int]] = []
        """Those since the last packet that was forwarded."""

        self.repaired_ns: dict[tuple[int, int], int] = {}
        """When a packet was last sent again, by application and number."""

        self._floor = first

    @property
    def next_sequence(self) -> int:
        """All packets before this one were forwarded, or are lost."""
        return max(self._floor, self.account.position)

    @property
    def flags(self) -> int:
        """What every packet of the stream has."""
        return int(PacketFlag.REPLAY) if self.is_replay else 0

    def position(self, next_sequence: int) -> StreamPosition:
        """For an application that gets it from this number on."""
        return StreamPosition(self.key, self.epoch, next_sequence, self.source, self.is_replay)

    def lose(self, first: int, last: int) -> None:
        """Consumers find out by the next packet's number, which they all get."""
        self._floor = last + 1
        self.account.forget_fragments()
        self.lost_last.append((first, last))
        for consumer in self.account.listeners():
            self.account.listen(consumer, last + 1)
        if self.kept is None:
            return
        self.lost = [each for each in self.lost if each[1] >= self.kept.oldest][1 - LOST_RANGES_MAX :]
        self.lost.append((first, last))
