"""The standbys of a root: what each has, and how long it is waited for (TREE-11)."""

from collections.abc import Mapping, Sequence

from penstock.base.clock import NS_PER_MS
from penstock.base.counters import Cause
from penstock.tree.core.board import Board, Child, ChildLeg
from penstock.tree.core.children import Children
from penstock.tree.core.control import BEARERS_MAX, Bearers, Refused, Stored
from penstock.tree.core.kernel._frame import encode_block, split_packets
from penstock.wire import decode


class Standbys:
    def __init__(self, board: Board, children: Children) -> None:
        self._board = board
        self._children = children
        self._stored: dict[int, dict[int, int]] = {}
        """By link and stream: the last sequence that it keeps."""
        self._waits_since_ns: int | None = None
        """Since when one has held up the oldest block."""

    @property
    def come_first(self) -> bool:
        """Whether there are such as have messages before they are distributed."""
        return bool(self._stored) and self._board.config.replicate != "none"

    def came(self, link: int) -> None:
        self._stored[link] = {}

    def gone(self, link: int) -> bool:
        """Whether it was one."""
        return self._stored.pop(link, None) is not None

    def leave(self) -> bool:
        """Streams whose legs have ended are not waited for; whether there were such."""
        has_ended = False
        for child, marks in self._present():
            for stream in marks.keys() - {leg.stream for leg in child.legs.values()}:
                del marks[stream]
                has_ended = True
        return has_ended

    def feed(self, undistributed: list[bytes]) -> None:
        """Legs that have everything which was distributed are sent messages before they are, from here on."""
        for child, marks in self._present():
            for leg in child.legs.values():
                if leg.is_live and leg.stream not in marks:
                    self._feed(leg, marks, undistributed)

    def _present(self) -> list[tuple[Child, dict[int, int]]]:
        children = self._board.children
        return [(children[link], marks) for link, marks in self._stored.items() if link in children]

    def _feed(self, leg: ChildLeg, marks: dict[int, int], blocks: list[bytes]) -> None:
        board = self._board
        board.fanout.change_leg(leg.link, leg.number, [])
        marks[leg.stream] = board.last(leg.stream)
        for block in blocks:
            packets = [each for each in split_packets(block) if decode(each).group == leg.stream]
            if packets:
                board.send(leg.link, encode_block(b"".join(packets), leg=leg.number))

    def replicate(self, stream: int, packets: bytes) -> None:
        for link, marks in list(self._stored.items()):
            child = self._board.children.get(link)
            legs = () if child is None or stream not in marks else child.legs.values()
            leg = next((leg for leg in legs if leg.stream == stream), None)
            if leg is not None:
                self._board.send(link, encode_block(packets, leg=leg.number))

    def stored(self, link: int, message: Stored) -> bool:
        """Whether that is one's to say."""
        marks = self._stored.get(link)
        if marks is None or message.stream not in marks:
            return False
        marks[message.stream] = max(marks[message.stream], message.through)
        return True

    def have(self, needs: Mapping[int, int]) -> bool:
        """Whether all of them have the streams up to these sequences; if not, they are waited for."""
        has_all = not any(_is_behind(marks, needs) for marks in self._stored.values())
        if not has_all and self._waits_since_ns is None:
            self._waits_since_ns = self._board.now_ns
        return has_all

    def cover(self, needs: Mapping[int, int]) -> bool:
        """Whether one of them has the streams up to these sequences."""
        return any(
            all(marks.get(stream, -1) >= last for stream, last in needs.items()) for marks in self._stored.values()
        )

    @property
    def is_following(self) -> bool:
        """Whether one of them is sent all streams before they are distributed."""
        return any(marks.keys() >= self._board.streams.keys() for marks in self._stored.values())

    def tell(self, bearers: Sequence[tuple[int, str]]) -> None:
        """Whose publisher ids are."""
        for link in self._stored:
            for at in range(0, len(bearers), BEARERS_MAX):
                self._board.say(link, Bearers(tuple(bearers[at : at + BEARERS_MAX])))

    def went_on(self) -> None:
        """They do not hold up anything, or something else than before."""
        self._waits_since_ns = None

    def deadline_ns(self) -> int | None:
        """When one that does not answer is no longer waited for."""
        if self._waits_since_ns is None:
            return None
        return self._waits_since_ns + self._board.config.replicate_wait_ms * NS_PER_MS

    def end_late(self, needs: Mapping[int, int]) -> bool:
        """Whether it is time not to wait for those any longer that have not got so far."""
        until_ns = self.deadline_ns()
        if until_ns is None or self._board.now_ns < until_ns:
            return False
        self._waits_since_ns = None
        for link in [link for link, marks in self._stored.items() if _is_behind(marks, needs)]:
            self._board.counters.add("consumers_refused", cause=Cause.SILENT)
            self._stored.pop(link)
            self._children.end(link, Refused("silent", "the standby did not answer in time"))
        return True


def _is_behind(marks: Mapping[int, int], needs: Mapping[int, int]) -> bool:
    return any(marks.get(stream, last) < last for stream, last in needs.items())
