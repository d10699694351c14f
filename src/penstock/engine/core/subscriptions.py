"""Subscriptions, the items that they match, and the topics that they need from the upstream node."""

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from penstock.base.errors import LimitError, LocalProtocolError, TopicError
from penstock.engine.config import EngineConfig
from penstock.engine.control import ClassWish
from penstock.engine.core.kernel._distribute import Distributor
from penstock.topics import Interest, InterestKind, InterestTable, TableLimits
from penstock.topics.table import SEED_SIZE


@dataclass(slots=True, eq=False)
class Subscription:
    consumer: int
    number: int
    slot: int
    """In the interest table."""

    interests: tuple[Interest, ...]
    requested: ClassWish
    per_second: float
    items: "array[int]" = field(default_factory=lambda: array("I"))
    """In ascending order."""

    is_open: bool = True
    awaits: set[str] = field(default_factory=set)
    """Topics that the upstream node has not reported as live yet."""

    def add(self, items: Sequence[int]) -> None:
        """Add items that the subscription does not have."""
        if len(items) == 1:
            insort(self.items, items[0])
        else:
            self.items = array("I", sorted([*self.items, *items]))

    def remove(self, item: int) -> bool:
        """Remove an item. True if the subscription had it."""
        at = bisect_left(self.items, item)
        if at == len(self.items) or self.items[at] != item:
            return False
        del self.items[at]
        return True


class Subscriptions:
    """All subscriptions. Each is one subscriber of the interest table, which finds the subscriptions of a new item."""

    def __init__(self, config: EngineConfig, kernel: Distributor, seed: bytes) -> None:
        self._config = config
        self._kernel = kernel
        self._table = InterestTable(TableLimits(interests_max=2**32), seed=seed)
        self._by_slot: dict[int, Subscription] = {}
        self._by_consumer: dict[int, dict[int, Subscription]] = {}
        self._free_slots: list[int] = []
        self._uses: dict[str, int] = {}
        self._live_above: set[str] = set()

    def attach(self, consumer: int) -> None:
        self._by_consumer[consumer] = {}

    def of(self, consumer: int) -> dict[int, Subscription]:
        return self._by_consumer[consumer]

    def get(self, consumer: int, number: int) -> Subscription:
        found = self._by_consumer.get(consumer, {}).get(number)
        if found is None:
            raise LocalProtocolError(f"consumer {consumer} has no subscription {number}")
        return found

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._by_slot.values())

    def open(
        self, consumer: int, number: int, topics: Sequence[str], requested: ClassWish, per_second: float
    ) -> Subscription:
        """A new subscription without items. After an error nothing has changed."""
        known = self._by_consumer.get(consumer)
        if known is None:
            raise LocalProtocolError(f"unknown consumer {consumer}")
        if number in known:
            raise LocalProtocolError(f"consumer {consumer} has a subscription {number} already")
        if len(known) >= self._config.subscriptions_per_consumer_max:
            raise LimitError(f"consumer {consumer} has {len(known)} subscriptions already")
        held = sum(len(each.interests) for each in known.values())
        if held + len(topics) > self._config.topics_per_consumer_max:
            raise LimitError(f"consumer {consumer} requests {held + len(topics)} topics", hint="use patterns")
        interests = parse_interests(topics)
        if not any(not interest.negative for interest in interests):
            raise TopicError("the subscription has no topics", hint="give at least one topic")
        slot = self._free_slots.pop() if self._free_slots else len(self._by_slot)
        try:
            self._table.add_many(interests, [slot] * len(interests))
        except BaseException:
            self._table.remove_subscriber(slot)
            self._free_slots.append(slot)
            raise
        subscription = Subscription(consumer, number, slot, interests, requested, per_second)
        self._by_slot[slot] = known[number] = subscription
        return subscription

    def close(self, subscription: Subscription) -> None:
        """Remove the subscription."""
        self._table.remove_subscriber(subscription.slot)
        subscription.is_open = False
        del self._by_slot[subscription.slot]
        del self._by_consumer[subscription.consumer][subscription.number]
        self._free_slots.append(subscription.slot)

    def detach(self, consumer: int) -> list[Subscription]:
        """Remove the consumer and close its subscriptions, which are returned."""
        gone = list(self._by_consumer.get(consumer, {}).values())
        for subscription in gone:
            self.close(subscription)
        self._by_consumer.pop(consumer, None)
        return gone

    # Items

    def matching(self, interests: Sequence[Interest]) -> list[int]:
        """Existing items that match."""
        items = self._kernel.items
        if all(each.kind is InterestKind.TOPIC and not each.negative for each in interests):
            return sorted({item for each in interests for item in items.lookup(each.subject.encode())})
        data, offsets, sizes, numbers = items.topics()
        table = InterestTable(seed=bytes(SEED_SIZE))
        table.add_many(interests, [0] * len(interests))
        result_offsets, _ = table.match_batch(data, offsets, sizes)
        wanted: list[int] = numbers[result_offsets[1:] > result_offsets[:-1]].tolist()
        return wanted

    def matching_topic(self, topic: str) -> list[Subscription]:
        """The subscriptions that match this topic."""
        return [self._by_slot[slot] for slot in self._table.match(topic)]

    # Topics of the upstream node

    def add_topics(self, subscription: Subscription) -> tuple[str, ...]:
        """Count the subscription's topics; returns those that no other subscription has."""
        texts = {each.text for each in subscription.interests if not each.negative}
        new = tuple(sorted(text for text in texts if text not in self._uses))
        for text in texts:
            self._uses[text] = self._uses.get(text, 0) + 1
        if self._config.has_upstream:
            subscription.awaits = texts - self._live_above
        return new

    def remove_topics(self, subscriptions: Iterable[Subscription]) -> tuple[str, ...]:
        """Undo add_topics(). Return the topics that no subscription has any more."""
        gone = []
        for subscription in subscriptions:
            for text in {each.text for each in subscription.interests if not each.negative}:
                self._uses[text] -= 1
                if self._uses[text] == 0:
                    del self._uses[text]
                    self._live_above.discard(text)
                    gone.append(text)
        return tuple(sorted(gone))

    def live_above(self, topics: Iterable[str]) -> list[Subscription]:
        """The upstream node has sent the images of these topics; returns the subscriptions that awaited only them."""
        known = {topic for topic in topics if topic in self._uses} - self._live_above
        self._live_above |= known
        complete = []
        for subscription in self._by_slot.values():
            if subscription.awaits and not known.isdisjoint(subscription.awaits):
                subscription.awaits -= known
                if not subscription.awaits:
                    complete.append(subscription)
        return complete


def parse_interests(topics: Sequence[str]) -> tuple[Interest, ...]:
    interests = tuple(Interest.parse(text) for text in topics)
    for interest in interests:
        if interest.kind is InterestKind.TAG:
            raise TopicError("interests in items cannot use tags", where=f"interest {interest.text!r}")
    return interests
