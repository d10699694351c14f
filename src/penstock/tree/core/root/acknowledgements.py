"""Telling publishers how far their messages are kept: at once, but not each time when they publish much.

Who is told on every message spends more on that than on messages, and so does the root. So a publisher that was told
something only just now is told with what follows, or a little later.
"""

import msgspec

from penstock.base.clock import NS_PER_MS
from penstock.tree.core.board import Board
from penstock.tree.core.control import Published

INTERVAL_NS = NS_PER_MS
WAIT_NS = 2 * NS_PER_MS
"""How long it waits for what follows, if nothing does."""


class Pending(msgspec.Struct):
    """Packets of one block that are not distributed yet."""

    publisher_id: int
    before: int
    through: int
    """The publisher's own numbers: of the one before them, and of the last."""
    needs: dict[int, int]
    """By stream: the sequence that must be kept."""
    packets: bytes
    """b"": they are, and are only to be acknowledged."""


class Acknowledging:
    def __init__(self, board: Board) -> None:
        self._board = board
        self._links: dict[int, int] = {}
        """By publisher id: where it is told."""
        self._told_ns: dict[int, int] = {}
        """By link: when it was last told."""
        self._owed: dict[int, int] = {}
        """By link: the number that it has not been told yet."""
        self._degraded: set[int] = set()
        """Links to be told that some of these messages have no copy at the standby."""
        self._owed_ns = 0
        """When the oldest of them is due."""

    def came(self, publisher_id: int, link: int) -> None:
        self._links[publisher_id] = link

    def kept(self, publisher_id: int, through: int, *, is_degraded: bool = False) -> None:
        """The publisher's messages are kept, up to this number of its own; it is told where it is now."""
        link, now_ns = self._links.get(publisher_id), self._board.now_ns
        if link is None:
            return
        if is_degraded:
            self._degraded.add(link)
        told_ns = self._told_ns.get(link)
        if told_ns is None or now_ns - told_ns >= INTERVAL_NS:
            self._owed.pop(link, None)
            self._tell(link, through)
        else:
            self._owed_ns = self._owed_ns if self._owed else now_ns + WAIT_NS
            self._owed[link] = through

    def gone(self, link: int) -> None:
        self._told_ns.pop(link, None)
        self._owed.pop(link, None)
        self._degraded.discard(link)
        self._links = {publisher_id: each for publisher_id, each in self._links.items() if each != link}

    def deadline_ns(self) -> int | None:
        return self._owed_ns if self._owed else None

    def tick(self) -> None:
        if self._owed and self._board.now_ns >= self._owed_ns:
            owed, self._owed = self._owed, {}
            for link, through in owed.items():
                self._tell(link, through)

    def _tell(self, link: int, through: int) -> None:
        if link in self._board.children:
            self._told_ns[link] = self._board.now_ns
            self._board.say(link, Published(through, is_degraded=link in self._degraded))
            self._degraded.discard(link)
