"""Which consumer gets which item, and in which class: items and subscriptions brought together."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy
from numpy.typing import NDArray

from penstock.base.counters import Cause, Counters
from penstock.base.errors import LimitError, PenstockError
from penstock.engine.config import EngineConfig
from penstock.engine.core.class_selection import Choice, Chooser, Kind, Party
from penstock.engine.core.kernel._distribute import Distributor
from penstock.engine.core.subscriptions import Subscription, SubscriptionBook
from penstock.topics import check_topic

Numbers: TypeAlias = NDArray[numpy.uint32]

CHOSEN_MAX = 512
"""Pairs that may get another class in one go."""


class Interests:
    """`parties` are the consumers that are attached; `now_ns` is the time of what is being done."""

    def __init__(
        self, config: EngineConfig, kernel: Distributor, book: SubscriptionBook, chooser: Chooser, counters: Counters
    ) -> None:
        self.parties: dict[int, Party] = {}
        self.now_ns = 0
        self._config = config
        self._kernel = kernel
        self._book = book
        self._chooser = chooser
        self._counters = counters
        self._kinds = [Kind(0, frozenset(), 0.0)]
        """By number; the first stands for those that were not found out yet."""

        self._kind_numbers: dict[Kind, int] = {}
        self._unchosen: deque[tuple[Subscription, int, Sequence[int]]] = deque()
        """Subscriptions with items whose class may be another now, and how many of these are done."""

    def want(self, subscription: Subscription, items: Sequence[int], after: int | None = None) -> None:
        """The subscription has the items from now on; with `after`, its consumer has their updates up to there."""
        consumer = subscription.consumer
        for numbers, choice in self._choices(subscription, numpy.asarray(items, numpy.uint32)):
            had = self._kernel.subscribe(consumer, numbers, *choice, self.now_ns, after)
            subscription.add(numbers.tolist())
            for item in had:
                self._choose_among(consumer, item)

    def _choices(self, subscription: Subscription, items: Numbers) -> Iterator[tuple[Numbers, Choice]]:
        """The items in groups that have the same choice."""
        party = self.parties[subscription.consumer]
        kinds, versions = self._kernel.items.kinds(items)
        for row in numpy.flatnonzero(kinds == 0):
            kinds[row] = self._kind_of(int(items[row]))
        if party.overrides is not None:
            groups = [numpy.array([row]) for row in range(len(items))]
        elif (kinds == kinds[:1]).all() and (versions == versions[:1]).all():
            groups = [numpy.arange(len(items))] if len(items) else []
        else:
            keys = kinds.astype(numpy.uint64) << 32 | versions
            groups = [numpy.flatnonzero(keys == key) for key in sorted(set(keys.tolist()))]
        for rows in groups:
            kind, version = int(kinds[rows[0]]), int(versions[rows[0]])
            if kind < len(self._kinds):
                own = () if party.overrides is None else (party.overrides.concerning(self._topic(int(items[rows[0]]))),)
                wish, per_second = subscription.wish, subscription.per_second
                yield items[rows], self._chooser.choice(party, wish, per_second, self._kinds[kind], version, own)

    def _kind_of(self, item: int) -> int:
        kind = self._chooser.kind(self._topic(item), self._kernel.items.model(item)[0])
        number = self._kind_numbers.setdefault(kind, len(self._kinds))
        if number == len(self._kinds):
            self._kinds.append(kind)
        self._kernel.items.set_kind(item, number)
        return number

    def _topic(self, item: int) -> str:
        return self._kernel.items.topic(item).decode()

    def choose(self, subscription: Subscription, items: Sequence[int]) -> None:
        """The subscription's items are to have what now holds for it."""
        consumer = subscription.consumer
        for numbers, choice in self._choices(subscription, numpy.asarray(items, numpy.uint32)):
            for item in self._kernel.change_class(consumer, numbers, *choice, self.now_ns, is_sole=True):
                self._choose_among(consumer, item)

    def _choose_among(self, consumer: int, item: int) -> None:
        """Of several subscriptions that have the item, the one that asks for most decides."""
        numbers = numpy.array([item], numpy.uint32)
        having = [each for each in self._book.wanting(self._topic(item)) if each.consumer == consumer]
        choices = [choice for each in having for _, choice in self._choices(each, numbers)]
        best = min(choices, key=lambda each: (each.program is None, each.cls, each.interval_ns), default=None)
        if best is not None:
            self._kernel.change_class(consumer, numbers, *best, self.now_ns)

    def forget_kinds(self) -> None:
        """Items of one kind may be of several now."""
        self._kernel.items.forget_kinds()
        self._kinds[1:] = []
        self._kind_numbers.clear()

    def learned(self, model_id: int) -> None:
        """A model that was not known: items of it that are there already may be conflated now, if it says so."""
        is_nonconflatable = self._chooser.is_nonconflatable(model_id)
        self._kernel.items.redefine(model_id, is_nonconflatable, self._chooser.spans(model_id))
        self.forget_kinds()
        self.choose_all()

    def choose_all(self) -> None:
        """Rules or signals have changed. Some pairs have what holds now at once, the others with choose_some()."""
        self._unchosen = deque((subscription, 0, subscription.items[:]) for subscription in self._book)
        self.choose_some()

    @property
    def has_unchosen(self) -> bool:
        return bool(self._unchosen)

    def choose_some(self) -> None:
        """Go on with it, so that nobody waits long for the engine meanwhile."""
        left = CHOSEN_MAX
        while self._unchosen and left > 0:
            subscription, begin, items = self._unchosen.popleft()
            end = begin + left
            if subscription.is_open:
                self.choose(subscription, items[begin:end])
                self._kernel.serve_consumer(subscription.consumer, self.now_ns)
                left -= max(len(items[begin:end]), 1)
                if end < len(items):
                    self._unchosen.appendleft((subscription, end, items))

    def admit(self, topic: bytes, model_id: int, model_version: int) -> int | None:
        """A new item, with those that want it; None if it is not one for this node."""
        try:
            text = topic.decode()
            check_topic(text)
        except (UnicodeDecodeError, PenstockError):
            self._counters.add("messages_dropped", cause=Cause.TEXT)
            return None
        wanting = self._book.wanting(text)
        if not wanting and self._config.keeps == "wanted":
            self._counters.add("messages_unwanted")
            return None
        try:
            item = self._kernel.items.add(
                topic,
                model_id,
                model_version,
                is_nonconflatable=self._chooser.is_nonconflatable(model_id),
                is_logged=self._chooser.is_logged(text, model_id, model_version),
                spans=self._chooser.spans(model_id),
                is_first=self._config.keeps == "all",
            )
        except LimitError:
            self._counters.add("messages_dropped", cause=Cause.STATE_LIMIT)
            return None
        self._kind_of(item)
        for subscription in wanting:
            try:
                self.want(subscription, [item])
            except LimitError:
                self._counters.add("requests_refused", cause=Cause.STATE_LIMIT)
        return item

    def remove(self, topic: bytes, model_id: int) -> None:
        """The item is gone; those that have it are told."""
        items = self._kernel.items
        for item in items.lookup(topic):
            if items.model(item)[0] == model_id:
                for subscription in self._book.wanting(topic.decode()):
                    if subscription.remove(item):
                        self._kernel.unsubscribe(subscription.consumer, item)
                        self._kernel.serve_consumer(subscription.consumer, self.now_ns)
                items.remove(item)

    def drop(self, subscription: Subscription, *, is_told: bool = True) -> None:
        """The subscription is over: what only it wanted is no longer sent."""
        for item in subscription.items:
            if self._kernel.unsubscribe(subscription.consumer, item, is_told):
                self._choose_among(subscription.consumer, item)
        self.forget(subscription.items)

    def forget(self, numbers: Iterable[int]) -> None:
        """A node that keeps only what is wanted lets go of items that no longer are."""
        items = self._kernel.items
        if self._config.keeps == "wanted":
            for item in numbers:
                if items.is_known(item) and not items.interest_count(item):
                    items.remove(item)
