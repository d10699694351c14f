"""ChildTable: the children of an agent, and the legs (subscriptions to one stream) of each."""

from collections.abc import Iterator

import msgspec

from penstock.tree.core.control import Position, Role, Want
from penstock.tree.core.events import Party


class ChildLeg(msgspec.Struct):
    """A child's subscription to one stream. downstream.py sets its wants, catch_up.py its progress."""

    link: int
    number: int
    stream: int
    asked: tuple[Want, ...]
    wants: tuple[Want, ...]
    """The part of `asked` that is granted now."""
    begin: Position
    """The requested first message; `through` replaces it once the leg is held."""
    through: int = 0
    """If the leg is not live: the child has, or is being sent, everything up to this sequence."""
    is_held: bool = False
    """True once the sequence before the leg's first message is known."""
    is_live: bool = False
    has_left_live: bool = False
    """True if the child did not keep up, until the leg is live again."""
    fetch_bytes: int = 0
    """Size limit of the portion that the child has requested; 0: no request is open."""
    is_coming: bool = False
    """True while that portion is being read from the journal, or fetched from the parent."""


class Child(msgspec.Struct):
    """A party below this agent."""

    link: int
    party: Party
    legs: dict[int, ChildLeg] = {}
    denied: tuple[str, ...] = ()
    """Patterns that the child may not receive, each with a leading `!`."""
    conflated: int = 0
    """Conflated messages that the child has been notified of."""
    percent: int = 0
    """Load, if the child is an agent."""
    percent_announced: int = 0
    """The load that its siblings were last told."""
    bytes_in: int = 0
    heard_ns: int = 0
    is_dialled: bool = False
    """True for a peer to which this agent opened the link."""

    @property
    def is_agent(self) -> bool:
        return self.party.role in ("agent", "standby", "peer")


class ChildTable:
    """Children by link, in the order of their arrival."""

    def __init__(self) -> None:
        self._children: dict[int, Child] = {}

    def __iter__(self) -> Iterator[Child]:
        """Iterates over a snapshot: children may leave meanwhile."""
        return iter(list(self._children.values()))

    def __len__(self) -> int:
        return len(self._children)

    def __contains__(self, link: object) -> bool:
        return link in self._children

    def __getitem__(self, link: int) -> Child:
        return self._children[link]

    def get(self, link: int) -> Child | None:
        return self._children.get(link)

    def links(self) -> list[int]:
        return list(self._children)

    def of_role(self, role: Role) -> list[Child]:
        return [child for child in self._children.values() if child.party.role == role]

    def add(self, child: Child) -> None:
        self._children[child.link] = child

    def remove(self, link: int) -> Child | None:
        return self._children.pop(link, None)

    def leg(self, link: int, number: int) -> ChildLeg | None:
        child = self._children.get(link)
        return None if child is None else child.legs.get(number)

    def legs_of(self, stream: int) -> list[ChildLeg]:
        return [leg for child in self._children.values() for leg in child.legs.values() if leg.stream == stream]

    def links_with(self, stream: int) -> list[int]:
        """Links of children that have a leg of the stream."""
        return list(dict.fromkeys(leg.link for leg in self.legs_of(stream)))

    def rewind(self, stream: int, last: int) -> None:
        """Messages after `last` are no longer part of the stream."""
        for leg in self.legs_of(stream):
            leg.through = min(leg.through, last)
