"""Links between neighbours that are not each other's parents: redundant ways for the same streams (TREE-8).

Each side is the other's child and has whole streams from it. Whatever is new goes to all others; what came on another
way before is dropped by its sequence, so nothing goes round.
"""

from penstock.base.clock import NS_PER_MS
from penstock.tree.board import Board, Child
from penstock.tree.control import Welcome
from penstock.tree.events import Party
from penstock.tree.upstream import Upstream


class Peering:
    def __init__(self, board: Board, upstream: Upstream) -> None:
        self._board = board
        self._upstream = upstream
        self._due_ns: dict[str, int] = {}
        """When a peer is tried, by place."""

    def start(self) -> None:
        self._due_ns = dict.fromkeys(self._board.config.peers, self._board.now_ns)

    def due(self) -> list[str]:
        """Places to connect to now."""
        found = [place for place, due_ns in self._due_ns.items() if self._board.now_ns >= due_ns]
        for place in found:
            del self._due_ns[place]
        return found

    def deadlines(self) -> list[int]:
        return list(self._due_ns.values())

    def failed(self, place: str) -> None:
        self._due_ns[place] = self._board.now_ns + self._board.config.backoff.max_ms * NS_PER_MS // 4

    def welcome(self, link: int, name: str, place: str, message: Welcome) -> None:
        """A link that this agent opened: the other side is a child of it, too."""
        self._board.children[link] = Child(link, Party(name, "peer", message.tree, place), heard_ns=self._board.now_ns)
        self._board.ledger.begin(link, name, "peer")
        for info in message.streams:
            self._upstream.learn(info, is_from_peer=True)
        self.came(link)

    def came(self, link: int) -> None:
        self._upstream.peers.add(link)
        for stream in self._board.streams.values():
            self._upstream.ask_peers(stream)

    def gone(self, link: int, place: str) -> None:
        self._upstream.peers.discard(link)
        self._upstream.drop_link(link)
        if place in self._board.config.peers:
            self._due_ns[place] = self._board.now_ns + self._board.config.backoff.base_ms * NS_PER_MS
