"""Standbys: which messages each standby of a root has, and how long the root waits for them (TREE-11)."""

from collections.abc import Mapping, Sequence

from penstock.base.clock import NS_PER_MS
from penstock.tree.core.children import Child, ChildLeg, ChildTable
from penstock.tree.core.control import BEARERS_MAX, Bearers, Stored
from penstock.tree.core.environment import Environment
from penstock.tree.core.kernel._fanout import Fanout
from penstock.tree.core.kernel._frame import encode_block, split_packets
from penstock.tree.core.outbox import Outbox
from penstock.tree.core.streams import StreamTable
from penstock.wire import decode


class Standbys:
    def __init__(
        self,
        environment: Environment,
        fanout: Fanout,
        streams: StreamTable,
        children: ChildTable,
        outbox: Outbox,
    ) -> None:
        self._environment = environment
        self._fanout = fanout
        self._streams = streams
        self._children = children
        self._outbox = outbox
        self._stored: dict[int, dict[int, int]] = {}
        """By link, then by stream that the root replicates to it: the last sequence that the standby keeps."""
        self._waiting_since_ns: int | None = None
        """Since when a standby has delayed the oldest block."""

    @property
    def come_first(self) -> bool:
        """True if messages are sent to a standby before they are distributed."""
        return bool(self._stored) and self._environment.config.replicate != "none"

    def add(self, link: int) -> None:
        self._stored[link] = {}

    def remove(self, link: int) -> bool:
        """True if the link was a standby's."""
        return self._stored.pop(link, None) is not None

    def end_streams(self) -> bool:
        """Stop waiting for streams whose legs have ended. True if there were any."""
        has_ended = False
        for child, stored in self._present():
            for stream in stored.keys() - {leg.stream for leg in child.legs.values()}:
                del stored[stream]
                has_ended = True
        return has_ended

    def begin_streams(self, undistributed: list[bytes]) -> None:
        """From now on, legs that have everything distributed get messages before these are distributed."""
        for child, stored in self._present():
            for leg in child.legs.values():
                if leg.is_live and leg.stream not in stored:
                    self._begin_stream(leg, stored, undistributed)

    def _present(self) -> list[tuple[Child, dict[int, int]]]:
        return [(self._children[link], stored) for link, stored in self._stored.items() if link in self._children]

    def _begin_stream(self, leg: ChildLeg, stored: dict[int, int], blocks: list[bytes]) -> None:
        self._fanout.change_leg(leg.link, leg.number, [])
        stored[leg.stream] = self._streams.last(leg.stream)
        for block in blocks:
            packets = [each for each in split_packets(block) if decode(each).group == leg.stream]
            if packets:
                self._outbox.send_frames(leg.link, encode_block(b"".join(packets), leg=leg.number))

    def replicate(self, stream: int, packets: bytes) -> None:
        for link, stored in list(self._stored.items()):
            child = self._children.get(link)
            legs = () if child is None or stream not in stored else child.legs.values()
            leg = next((leg for leg in legs if leg.stream == stream), None)
            if leg is not None:
                self._outbox.send_frames(link, encode_block(packets, leg=leg.number))

    def note_stored(self, link: int, message: Stored) -> bool:
        """False if the link is not a standby's, or the stream is not replicated to it."""
        stored = self._stored.get(link)
        if stored is None or message.stream not in stored:
            return False
        stored[message.stream] = max(stored[message.stream], message.through)
        return True

    def have(self, needs: Mapping[int, int]) -> bool:
        """True if all standbys have the streams up to these sequences; otherwise the root begins to wait."""
        has_all = not any(_is_behind(stored, needs) for stored in self._stored.values())
        if not has_all and self._waiting_since_ns is None:
            self._waiting_since_ns = self._environment.now_ns
        return has_all

    def cover(self, needs: Mapping[int, int]) -> bool:
        """True if one standby has the streams up to these sequences."""
        return any(
            all(stored.get(stream, -1) >= last for stream, last in needs.items()) for stored in self._stored.values()
        )

    @property
    def is_following(self) -> bool:
        """True if all streams are replicated to one standby."""
        return any(stored.keys() >= self._streams.numbers() for stored in self._stored.values())

    def send_bearers(self, bearers: Sequence[tuple[int, str]]) -> None:
        """Tell the standbys the clients of publisher ids."""
        for link in self._stored:
            for at in range(0, len(bearers), BEARERS_MAX):
                self._outbox.send(link, Bearers(tuple(bearers[at : at + BEARERS_MAX])))

    def stop_waiting(self) -> None:
        """The standbys delay nothing, or another block than before."""
        self._waiting_since_ns = None

    def deadline_ns(self) -> int | None:
        """When the root stops waiting for a standby that does not answer."""
        if self._waiting_since_ns is None:
            return None
        return self._waiting_since_ns + self._environment.config.replicate_wait_ms * NS_PER_MS

    def drop_late(self, needs: Mapping[int, int]) -> list[int]:
        """After the deadline: forget the standbys that do not have these sequences; their links."""
        self._waiting_since_ns = None
        late = [link for link, stored in self._stored.items() if _is_behind(stored, needs)]
        for link in late:
            del self._stored[link]
        return late


def _is_behind(stored: Mapping[int, int], needs: Mapping[int, int]) -> bool:
    return any(stored.get(stream, last) < last for stream, last in needs.items())
