"""Links between neighbours that are not each other's parents: redundant ways for the same streams (TREE-8).

Each side is the other's child and has whole streams from it. Whatever is new goes to all others; what came on another
way before is dropped by its sequence, so nothing goes round.
"""

from penstock.base.clock import NS_PER_MS
from penstock.tree.core.board import Board, Child
from penstock.tree.core.control import Welcome
from penstock.tree.core.events import Party
from penstock.tree.core.upstream import Upstream


class Peering:
    def __init__(self, board: Board, upstream: Upstream) -> None:
        self._board = board
        self._upstream = upstream
        self._due_ns: dict[str, int] = {}
        """When a peer is tried, by place."""

    def start(self) -> None:
        self._due_ns = dict.fromkeys(self._board.config.peers, self._board.now_ns)

    def due(self) -> list[str]:
        """Places to connect to now. One whose agent has come by itself is looked at again later."""
        found = [place for place, due_ns in self._due_ns.items() if self._board.now_ns >= due_ns]
        linked = {child.party.place for child in self._peers()}
        for place in found:
            del self._due_ns[place]
            if place in linked:
                self.failed(place)
        return [place for place in found if place not in linked]

    def _peers(self) -> list[Child]:
        return [child for child in self._board.children.values() if child.party.role == "peer"]

    def dialled(self) -> list[int]:
        """Links that this agent opened."""
        return [child.link for child in self._peers() if child.is_dialled]

    def deadlines(self) -> list[int]:
        return list(self._due_ns.values())

    def failed(self, place: str) -> None:
        self._due_ns[place] = self._board.now_ns + self._board.config.backoff.max_ms * NS_PER_MS // 4

    def welcome(self, link: int, name: str, place: str, message: Welcome) -> None:
        """A link that this agent opened: the other side is a child of it, too. If each opened one to the other, that of
        the agent whose name comes first stays."""
        if name < self._board.config.name and any(child.party.name == name for child in self._peers()):
            self._board.close(link, "peered")
            self._upstream.drop_link(link)
            self.failed(place)
            return
        party = Party(name, "peer", message.tree, place)
        self._board.children[link] = Child(link, party, heard_ns=self._board.now_ns, is_dialled=True)
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
