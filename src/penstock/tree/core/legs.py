"""What is wanted of a stream: which wants take in which, and which few an agent has to ask its parent for.

All answers are on the safe side: "it does not cover" where that cannot be told.
"""

from collections.abc import Iterable, Sequence

import msgspec

from penstock.base.errors import FilterExpressionError, LimitError, TopicError
from penstock.filter.core.interests import KnownModels
from penstock.filter.core.kernel._condition import Condition
from penstock.model import MessageModel
from penstock.topics.interest import Interest
from penstock.tree.core.control import WANTS_MAX, WANTS_SIZE_MAX, Want, size_of
from penstock.tree.core.wants import Joined, covers

Compiled = list[tuple[Sequence[str], Condition | None]]


def since(joined: Joined, wants: Iterable[Want]) -> int | None:
    """After which sequence wants are covered by others, each of which is complete after its own; None if they are not
    all covered."""
    latest = 0
    for want in wants:
        found = joined.get(want)
        if found is None:
            found = min((joined[wide] for wide in joined.covering(want)), default=None)
        if found is None:
            return None
        latest = max(latest, found)
    return latest


def aggregated(wants: Iterable[Want], joined: Joined, whole: Want, wants_max: int) -> tuple[Want, ...]:
    """The fewest of these wants, all covered by the joined ones, that cover all of them. The whole stream if that are
    too many, or more than a message can say; it need not be joined then."""
    kept = Joined()
    size = 0
    for want in sorted(wants, key=_width):
        if next(kept.covering(want), None) is not None:
            continue
        size += size_of(want)
        if len(kept) >= min(wants_max, WANTS_MAX) or size > WANTS_SIZE_MAX:
            return (whole,)
        kept[want] = 0
    found = [want for want in kept if all(other == want for other in kept.covering(want))]
    return (whole,) if whole in joined and any(covers(want, whole) for want in found) else tuple(found)


def _width(want: Want) -> tuple[bool, int, tuple[str, ...], str]:
    """Wide ones first; otherwise only for an order that is always the same."""
    return (bool(want.where), min(len(each.split(".")) for each in want.topics), want.topics, want.where)


class Conditions:
    """Wants, ready for the fan-out."""

    def __init__(self, models: Iterable[MessageModel]) -> None:
        self._known = KnownModels({model.id: model for model in models})

    def compile(self, wants: Iterable[Want], *, is_agent: bool) -> Compiled:
        """TopicError or FilterExpressionError if they cannot be. An agent's condition that speaks of what is not known
        here is left to those below, who judge again."""
        compiled: Compiled = []
        for want in wants:
            for topic in want.topics:
                Interest.parse(topic)
            compiled.append((want.topics, self._condition(want.where, is_agent)))
        return compiled

    def _condition(self, where: str, is_agent: bool) -> Condition | None:
        if not where:
            return None
        try:
            return Condition(self._known.predicates(where))
        except FilterExpressionError:
            if is_agent:
                return None
            raise


REFUSALS: tuple[type[Exception], ...] = (TopicError, FilterExpressionError, LimitError)
"""What is wrong with wants, for whoever asked."""


class UpstreamLeg(msgspec.Struct):
    """A leg that this agent has at its parent, or at a peer."""

    link: int
    number: int
    stream: int
    wants: tuple[Want, ...]
    child: tuple[int, int] | None = None
    """The child's leg on whose behalf it is: what it brings of the past goes to that alone."""
    is_live: bool = False
    is_fetching: bool = False
    replaces: tuple[int, ...] = ()
    """Legs that are given up when this one is live."""


class Feed:
    """What an agent has of one stream from above, and how far.

    `joined` has the wants that the live flow is complete for, each with the sequence after which it is. Several links
    can bring the stream (a peer's, or two parents during a move); each is complete by itself for what is joined, so
    that whatever comes first counts.
    """

    def __init__(self) -> None:
        self.joined = Joined()
        self.legs: dict[tuple[int, int], UpstreamLeg] = {}
        """By link and number."""

    def own(self, link: int) -> list[UpstreamLeg]:
        """The legs on the link that are not on behalf of a child."""
        return [leg for leg in self.legs.values() if leg.link == link and leg.child is None]

    def is_live(self, link: int) -> bool:
        """Whether what is joined comes live on the link."""
        return all(leg.is_live or leg.replaces for leg in self.own(link))

    def relay(self, child: tuple[int, int]) -> UpstreamLeg | None:
        return next((leg for leg in self.legs.values() if leg.child == child), None)

    def drop_link(self, link: int) -> list[UpstreamLeg]:
        gone = [leg for leg in self.legs.values() if leg.link == link]
        for leg in gone:
            del self.legs[leg.link, leg.number]
        return gone
