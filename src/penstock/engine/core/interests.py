"""Creates and removes the kernel's pairs, each of which is an item of a consumer in a class."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy
from numpy.typing import NDArray

from penstock.base.counters import Cause, Counters
from penstock.base.errors import LimitError, PenstockError
from penstock.engine.config import EngineConfig
from penstock.engine.core.class_selection import ClassSelection, ClassSelector, ConsumerClasses, ItemKind
from penstock.engine.core.kernel._distribute import Distributor
from penstock.engine.core.subscriptions import Subscription, Subscriptions
from penstock.topics import check_topic

Numbers: TypeAlias = NDArray[numpy.uint32]

RESELECTED_MAX = 512
"""The maximum number of pairs that are reselected in one call."""


class Interests:
    """`consumer_classes` has all attached consumers; `now_ns` is the time of the current call."""

    def __init__(
        self,
        config: EngineConfig,
        kernel: Distributor,
        subscriptions: Subscriptions,
        selector: ClassSelector,
        counters: Counters,
    ) -> None:
        self.consumer_classes: dict[int, ConsumerClasses] = {}
        self.now_ns = 0
        self._config = config
        self._kernel = kernel
        self._subscriptions = subscriptions
        self._selector = selector
        self._counters = counters
        self._kinds = [ItemKind(0, frozenset(), 0.0)]
        """By number; the first one represents items of unknown kind."""

        self._kind_numbers: dict[ItemKind, int] = {}
        self._unselected: deque[tuple[Subscription, int, Sequence[int]]] = deque()
        """Subscriptions with items to be reselected, with the number of items already done."""

    def subscribe(self, subscription: Subscription, items: Sequence[int], after: int | None = None) -> None:
        """Add the items to the subscription. With `after`, its consumer has their updates up to that number."""
        consumer = subscription.consumer
        for numbers, selection in self._selections(subscription, numpy.asarray(items, numpy.uint32)):
            had = self._kernel.subscribe(consumer, numbers, *selection, self.now_ns, after)
            subscription.add(numbers.tolist())
            for item in had:
                self._select_among(consumer, item)

    def _selections(self, subscription: Subscription, items: Numbers) -> Iterator[tuple[Numbers, ClassSelection]]:
        """Groups of items with the same selection."""
        classes = self.consumer_classes[subscription.consumer]
        kinds, versions = self._kernel.items.kinds(items)
        for row in numpy.flatnonzero(kinds == 0):
            kinds[row] = self._kind_of(int(items[row]))
        if classes.overrides is not None:
            groups = [numpy.array([row]) for row in range(len(items))]
        elif (kinds == kinds[:1]).all() and (versions == versions[:1]).all():
            groups = [numpy.arange(len(items))] if len(items) else []
        else:
            keys = kinds.astype(numpy.uint64) << 32 | versions
            groups = [numpy.flatnonzero(keys == key) for key in sorted(set(keys.tolist()))]
        for rows in groups:
            kind, version = int(kinds[rows[0]]), int(versions[rows[0]])
            if kind < len(self._kinds):
                own = (
                    ()
                    if classes.overrides is None
                    else (classes.overrides.concerning(self._topic(int(items[rows[0]]))),)
                )
                requested, per_second = subscription.requested, subscription.per_second
                yield (
                    items[rows],
                    self._selector.select(classes, requested, per_second, self._kinds[kind], version, own),
                )

    def _kind_of(self, item: int) -> int:
        kind = self._selector.kind(self._topic(item), self._kernel.items.model(item)[0])
        number = self._kind_numbers.setdefault(kind, len(self._kinds))
        if number == len(self._kinds):
            self._kinds.append(kind)
        self._kernel.items.set_kind(item, number)
        return number

    def _topic(self, item: int) -> str:
        return self._kernel.items.topic(item).decode()

    def select(self, subscription: Subscription, items: Sequence[int]) -> None:
        """Select the class of the subscription's items again."""
        consumer = subscription.consumer
        for numbers, selection in self._selections(subscription, numpy.asarray(items, numpy.uint32)):
            for item in self._kernel.change_class(consumer, numbers, *selection, self.now_ns, is_sole=True):
                self._select_among(consumer, item)

    def _select_among(self, consumer: int, item: int) -> None:
        """If several subscriptions of the consumer have the item, the most demanding one decides."""
        numbers = numpy.array([item], numpy.uint32)
        having = [each for each in self._subscriptions.matching_topic(self._topic(item)) if each.consumer == consumer]
        selections = [selection for each in having for _, selection in self._selections(each, numbers)]
        best = min(selections, key=lambda each: (each.program is None, each.cls, each.interval_ns), default=None)
        if best is not None:
            self._kernel.change_class(consumer, numbers, *best, self.now_ns)

    def forget_kinds(self) -> None:
        """Reset the kinds of all items, because rules or models have changed."""
        self._kernel.items.forget_kinds()
        self._kinds[1:] = []
        self._kind_numbers.clear()

    def learned(self, model_id: int) -> None:
        """Items of a model that was unknown may be conflated now, if the model allows it."""
        is_nonconflatable = self._selector.is_nonconflatable(model_id)
        self._kernel.items.redefine(model_id, is_nonconflatable, self._selector.spans(model_id))
        self.forget_kinds()
        self.reselect_all()

    def reselect_all(self) -> None:
        """Rules or signals have changed: reselect all pairs, some at once and the others in reselect_some()."""
        self._unselected = deque((subscription, 0, subscription.items[:]) for subscription in self._subscriptions)
        self.reselect_some()

    @property
    def has_unselected(self) -> bool:
        return bool(self._unselected)

    def reselect_some(self) -> None:
        """Continue, with a bound on the pairs of one call, so that updates do not wait long."""
        left = RESELECTED_MAX
        while self._unselected and left > 0:
            subscription, begin, items = self._unselected.popleft()
            end = begin + left
            if subscription.is_open:
                self.select(subscription, items[begin:end])
                self._kernel.serve_consumer(subscription.consumer, self.now_ns)
                left -= max(len(items[begin:end]), 1)
                if end < len(items):
                    self._unselected.appendleft((subscription, end, items))

    def admit(self, topic: bytes, model_id: int, model_version: int) -> int | None:
        """Add an item, and subscribe the consumers whose interests match. None if the node does not keep the item."""
        try:
            text = topic.decode()
            check_topic(text)
        except (UnicodeDecodeError, PenstockError):
            self._counters.add("messages_dropped", cause=Cause.TEXT)
            return None
        wanting = self._subscriptions.matching_topic(text)
        if not wanting and self._config.keeps == "wanted":
            self._counters.add("messages_unwanted")
            return None
        try:
            item = self._kernel.items.add(
                topic,
                model_id,
                model_version,
                is_nonconflatable=self._selector.is_nonconflatable(model_id),
                is_logged=self._selector.is_logged(text, model_id, model_version),
                spans=self._selector.spans(model_id),
                is_first=self._config.keeps == "all",
            )
        except LimitError:
            self._counters.add("messages_dropped", cause=Cause.STATE_LIMIT)
            return None
        self._kind_of(item)
        for subscription in wanting:
            try:
                self.subscribe(subscription, [item])
            except LimitError:
                self._counters.add("requests_refused", cause=Cause.STATE_LIMIT)
        return item

    def remove(self, topic: bytes, model_id: int) -> None:
        """Remove the item, and tell the consumers that have it."""
        items = self._kernel.items
        for item in items.lookup(topic):
            if items.model(item)[0] == model_id:
                for subscription in self._subscriptions.matching_topic(topic.decode()):
                    if subscription.remove(item):
                        self._kernel.unsubscribe(subscription.consumer, item)
                        self._kernel.serve_consumer(subscription.consumer, self.now_ns)
                items.remove(item)

    def unsubscribe(self, subscription: Subscription, *, is_told: bool = True) -> None:
        """End the subscription. Items that no other subscription has are no longer sent."""
        for item in subscription.items:
            if self._kernel.unsubscribe(subscription.consumer, item, is_told):
                self._select_among(subscription.consumer, item)
        self.forget_unused(subscription.items)

    def forget_unused(self, numbers: Iterable[int]) -> None:
        """Remove items without consumers, if the node keeps only items that consumers want."""
        items = self._kernel.items
        if self._config.keeps == "wanted":
            for item in numbers:
                if items.is_known(item) and not items.interest_count(item):
                    items.remove(item)
