"""Channels between the adapters of a feed: messages arrive in order, unless the channel breaks."""

from collections.abc import Callable

from penstock.base.clock import NS_PER_MS
from penstock.feed.core.events import PeerConnected, PeerDisconnected, PeerMessageReceived
from penstock.feed.core.sync.messages import PROTOCOL, SyncMessage
from penstock.sim.node import Node
from penstock.sim.world import World

MESSAGE_SIZE_MAX = 1024 * 1024
DELAY_NS_MAX = 400_000
NOTICE_NS_MAX = 150 * NS_PER_MS
"""Maximum time until one side detects that the other is gone without a notice."""
RETRY_NS_MAX = 40 * NS_PER_MS

Ends = tuple[int, int]


class _Channel:
    def __init__(self) -> None:
        self.is_broken = False
        self.open_ends: set[int] = set()
        self.arrival_ns: dict[int, int] = {}


class PeerLinks:
    """A channel between every two adapters that are up and can reach each other; `heard` is called with every arriving
    message.
    """

    def __init__(self, world: World, nodes: list[Node], heard: Callable[[int, SyncMessage], None]) -> None:
        self._world = world
        self._nodes = nodes
        self._heard = heard
        self._randomness = world.randomness.fork("peers")
        self._channels: dict[Ends, _Channel] = {}
        self._cut: set[Ends] = set()

    def send(self, source: int, destination: int, message: SyncMessage) -> None:
        channel = self._channels.get(_ends(source, destination))
        if channel is None or channel.is_broken or source not in channel.open_ends:
            return
        data = PROTOCOL.encode(message, MESSAGE_SIZE_MAX)
        delay_ns = 1 + self._randomness.below(DELAY_NS_MAX)
        arrival_ns = max(self._world.now_ns() + delay_ns, channel.arrival_ns.get(destination, 0) + 1)
        channel.arrival_ns[destination] = arrival_ns
        self._world.at(arrival_ns, lambda: self._arrive(channel, source, destination, data))

    def _arrive(self, channel: _Channel, source: int, destination: int, data: bytes) -> None:
        if channel.is_broken or destination not in channel.open_ends:
            return
        message = PROTOCOL.decode(data)
        self._heard(destination, message)  # type: ignore[arg-type]
        self._nodes[destination].handle(PeerMessageReceived(source, message))  # type: ignore[arg-type]

    # Breaking and mending

    def cut(self, one: int, other: int) -> None:
        self._cut.add(_ends(one, other))
        self._break(_ends(one, other), NOTICE_NS_MAX)

    def mend(self, one: int, other: int) -> None:
        self._cut.discard(_ends(one, other))
        self._try_later(_ends(one, other))

    def heal(self) -> None:
        for one, other in sorted(self._cut):
            self.mend(one, other)

    def started(self, index: int) -> None:
        for other in range(len(self._nodes)):
            if other != index:
                self._try_later(_ends(index, other))

    def crashed(self, index: int) -> None:
        """An adapter has crashed: the others learn it from a reset of its host, or only by a timeout."""
        notice_ns = self._randomness.choose([NS_PER_MS, NOTICE_NS_MAX])
        for other in range(len(self._nodes)):
            if other != index:
                self._break(_ends(index, other), notice_ns, gone=index)

    def _break(self, ends: Ends, notice_ns: int, gone: int | None = None) -> None:
        channel = self._channels.get(ends)
        if channel is None:
            return
        channel.is_broken = True
        channel.open_ends.discard(-1 if gone is None else gone)
        for end in sorted(channel.open_ends):
            self._notice_later(ends, channel, end, self._randomness.below(notice_ns))
        if not channel.open_ends:
            self._close(ends, channel)

    def _notice_later(self, ends: Ends, channel: _Channel, end: int, delay_ns: int) -> None:
        self._world.after(delay_ns, lambda: self._notice(ends, channel, end))

    def _notice(self, ends: Ends, channel: _Channel, end: int) -> None:
        if end not in channel.open_ends:
            return
        channel.open_ends.discard(end)
        self._nodes[end].handle(PeerDisconnected(ends[0] + ends[1] - end))
        if not channel.open_ends:
            self._close(ends, channel)

    def _close(self, ends: Ends, channel: _Channel) -> None:
        if self._channels.get(ends) is channel:
            del self._channels[ends]
        self._try_later(ends)

    def _try_later(self, ends: Ends) -> None:
        self._world.after(1 + self._randomness.below(RETRY_NS_MAX), lambda: self._try(ends))

    def _try(self, ends: Ends) -> None:
        is_possible = ends not in self._cut and all(self._nodes[end].core is not None for end in ends)
        old = self._channels.get(ends)
        if not is_possible or (old is not None and not old.is_broken):
            return
        if old is not None:  # a side that has not noticed the break does so now
            for end in sorted(old.open_ends):
                self._notice(ends, old, end)
        channel = self._channels[ends] = _Channel()
        channel.open_ends.update(ends)
        for end in ends:
            self._nodes[end].handle(PeerConnected(ends[0] + ends[1] - end))


def _ends(one: int, other: int) -> Ends:
    return (one, other) if one < other else (other, one)
