"""Which consumer gets which item, and in which class: items and subscriptions brought together."""

from collections.abc import Iterable

from penstock.base.counters import Cause, Counters
from penstock.base.errors import LimitError, PenstockError
from penstock.engine._distribute import Distributor
from penstock.engine.choices import Choice, Chooser, Party
from penstock.engine.config import EngineConfig
from penstock.engine.subscriptions import Subscription, SubscriptionBook
from penstock.topics import check_topic


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

    def want(self, subscription: Subscription, item: int, after: int | None = None) -> None:
        """The subscription has the item from now on; with `after`, its consumer has its updates up to there."""
        choice = self._choice(subscription, item)
        is_first = self._kernel.want(subscription.consumer, item, *choice, self.now_ns, after)
        subscription.items.append(item)
        if not is_first:
            self.choose(subscription.consumer, item)

    def _choice(self, subscription: Subscription, item: int) -> Choice:
        items = self._kernel.items
        return self._chooser.choice(
            self.parties[subscription.consumer],
            subscription.wish,
            subscription.per_second,
            items.topic(item).decode(),
            *items.model(item),
        )

    def choose(self, consumer: int, item: int) -> None:
        """Of several subscriptions that have the item, the one that asks for most decides."""
        topic = self._kernel.items.topic(item).decode()
        having = [each for each in self._book.wanting(topic) if each.consumer == consumer]
        choices = [self._choice(each, item) for each in having]
        best = min(choices, key=lambda each: (each.program is None, each.cls, each.interval_ns), default=None)
        if best is not None:
            self._kernel.choose(consumer, item, *best, self.now_ns)

    def choose_all(self) -> None:
        """Rules or signals have changed."""
        for consumer in self.parties:
            for item in self._kernel.items_of(consumer):
                self.choose(consumer, item)
            self._kernel.attend_to(consumer, self.now_ns)

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
                born=self._kernel.number,
                is_first=self._config.keeps == "all",
            )
        except LimitError:
            self._counters.add("messages_dropped", cause=Cause.STATE_LIMIT)
            return None
        for subscription in wanting:
            try:
                self.want(subscription, item)
            except LimitError:
                self._counters.add("requests_refused", cause=Cause.STATE_LIMIT)
        return item

    def remove(self, topic: bytes, model_id: int) -> None:
        """The item is gone; those that have it are told."""
        items = self._kernel.items
        for item in items.lookup(topic):
            if items.model(item)[0] == model_id:
                for subscription in self._book.wanting(topic.decode()):
                    if item in subscription.items:
                        subscription.items.remove(item)
                        self._kernel.unwant(subscription.consumer, item)
                        self._kernel.attend_to(subscription.consumer, self.now_ns)
                items.remove(item)

    def drop(self, subscription: Subscription, *, is_told: bool = True) -> None:
        """The subscription is over: what only it wanted is no longer sent."""
        for item in subscription.items:
            if self._kernel.unwant(subscription.consumer, item, is_told):
                self.choose(subscription.consumer, item)
        self.forget(subscription.items)

    def forget(self, numbers: Iterable[int]) -> None:
        """A node that keeps only what is wanted lets go of items that no longer are."""
        items = self._kernel.items
        if self._config.keeps == "wanted":
            for item in numbers:
                if items.is_known(item) and not items.interest_count(item):
                    items.remove(item)
