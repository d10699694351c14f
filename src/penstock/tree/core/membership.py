"""Membership: an agent's role, its term, its path to the root, and where the root and its standby are.

Others read the attributes; only the methods change them, each of which is one transition:

    role      root | standby | agent | fenced     become_root(), become_fenced()
    path      ends with this agent                become_root(), set_path()
    parent    "" without one                      adopt(), lose_parent(), become_root()
    term      never decreases                     recover(), become_root(), set_path(), learn_root()
"""

from penstock.tree.core.events import Became


class Membership:
    def __init__(self, name: str, role: str) -> None:
        self._name = name
        self.role = role
        """The present role: root, standby, agent, or fenced (a root that was replaced)."""
        self.term = 0
        """The highest term that this agent has heard of."""
        self.parent = ""
        """The parent's name."""
        self.path: tuple[str, ...] = (name,)
        """From the root to this agent, as far as it is known."""
        self.is_rooted = False
        """True if `path` holds now."""
        self.place = ""
        """host:port where children connect to this agent."""
        self.root_place = ""
        self.standby_place = ""
        self.last_rejection = ""
        """Why the last candidate did not become the parent."""

    def set_place(self, place: str) -> None:
        self.place = place

    def recover(self, term: int) -> None:
        """The highest term on this agent's disk."""
        self.term = term

    def become_root(self, term: int, standby_place: str) -> None:
        self.role, self.term, self.is_rooted = "root", term, True
        self.path, self.parent, self.root_place = (self._name,), "", self.place
        self.standby_place = standby_place if standby_place != self.place else ""

    def become_fenced(self, successor_place: str) -> None:
        """Another root has a higher term."""
        self.role, self.is_rooted = "fenced", False
        self.standby_place = successor_place or self.standby_place

    def reject(self, place: str, why: str) -> None:
        """The candidate at `place` did not become the parent."""
        self.last_rejection = f"{place}: {why}"

    def adopt(self, parent: str) -> None:
        self.parent = parent
        self.last_rejection = ""

    def lose_parent(self) -> str:
        """The name of the parent that was lost."""
        lost, self.parent = self.parent, ""
        self.is_rooted = False
        return lost

    def set_path(self, above: tuple[str, ...], *, is_rooted: bool, term: int) -> bool:
        """`above` is the parent's path. True if something changed."""
        before = (self.path, self.is_rooted, self.term)
        self.path, self.is_rooted, self.term = (*above, self._name), is_rooted, max(term, self.term)
        return (self.path, self.is_rooted, self.term) != before

    def learn_root(self, term: int, root_place: str, standby_place: str) -> bool:
        """Set the addresses of the root and its standby. True if they have changed."""
        if term < self.term or (root_place, standby_place) == (self.root_place, self.standby_place):
            return False
        self.root_place, self.standby_place, self.term = root_place, standby_place, term
        return True

    def as_instruction(self) -> Became:
        role = self.role if self.role in ("root", "standby", "fenced") else "agent"
        return Became(role, self.is_rooted, self.parent, self.path, self.term)  # type: ignore[arg-type]
