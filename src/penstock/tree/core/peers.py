"""Peers: links between neighbours that are not each other's parents: redundant paths of the same streams (TREE-8).

Each side is the other's child and receives whole streams from it. A new packet goes to all other links; a packet that
came on another path before is dropped by its sequence, so nothing circulates.
"""

from penstock.base.clock import NS_PER_MS
from penstock.tree.core.children import ChildTable
from penstock.tree.core.environment import Environment


class Peers:
    """Owns when each configured peer is dialled."""

    def __init__(self, environment: Environment, children: ChildTable) -> None:
        self._environment = environment
        self._children = children
        self._due_ns: dict[str, int] = {}
        """By place."""

    def start(self) -> None:
        self._due_ns = dict.fromkeys(self._environment.config.peers, self._environment.now_ns)

    def due(self) -> list[str]:
        """Places to connect to now. A peer that has connected by itself is checked again later."""
        found = [place for place, due_ns in self._due_ns.items() if self._environment.now_ns >= due_ns]
        linked = {child.party.place for child in self._children.of_role("peer")}
        for place in found:
            del self._due_ns[place]
            if place in linked:
                self.failed(place)
        return [place for place in found if place not in linked]

    def dialled_links(self) -> list[int]:
        """Links that this agent opened."""
        return [child.link for child in self._children.of_role("peer") if child.is_dialled]

    def is_redundant(self, name: str) -> bool:
        """True for a link to this peer while one from it exists: of two, the link that the agent with the lesser name
        opened stays."""
        is_linked = any(child.party.name == name for child in self._children.of_role("peer"))
        return name < self._environment.config.name and is_linked

    def failed(self, place: str) -> None:
        self._due_ns[place] = self._environment.now_ns + self._environment.config.backoff.max_ms * NS_PER_MS // 4

    def left(self, place: str) -> None:
        """The link to the peer at this place is closed."""
        config = self._environment.config
        if place in config.peers:
            self._due_ns[place] = self._environment.now_ns + config.backoff.base_ms * NS_PER_MS

    def deadlines_ns(self) -> list[int]:
        return list(self._due_ns.values())
