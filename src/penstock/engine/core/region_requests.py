"""Regions that consumers need: asked for, and awaited by what cannot be said before they are there."""

from penstock.base.counters import Cause, Counters
from penstock.base.errors import LimitError
from penstock.engine.config import EngineConfig
from penstock.engine.core.class_selection import Chooser
from penstock.engine.core.events import EngineInstruction, OpenRegion, RegionTooLarge
from penstock.engine.core.kernel._distribute import Distributor

RECORDS_MIN = 64


class RegionRequests:
    def __init__(self, config: EngineConfig, kernel: Distributor, chooser: Chooser, counters: Counters) -> None:
        self._config = config
        self._kernel = kernel
        self._chooser = chooser
        self._counters = counters
        self._asked: dict[tuple[int, int], int] = {}
        """By consumer and model: the records of a region that is to be opened."""

        self._open: dict[tuple[int, int], int] = {}
        """And of one that is."""

        self._answers: list[EngineInstruction] = []
        self._lives: dict[int, list[int]] = {}
        """By consumer: subscriptions to be called live when their regions are open."""

    def of(self, consumer: int) -> list[str]:
        """The consumer's regions, for people."""
        found = []
        for (number, model_id), count in self._open.items():
            model = self._chooser.model(model_id)
            if number == consumer and model is not None:
                found.append(f"region {model.name} {count}")
        return found

    def check(self, consumer: int) -> None:
        """Ask for the regions that a subscription needs; a LimitError says that they would be too large."""
        refused = 0
        for number, model_id in self._kernel.regions.take_requests():
            needed = self._kernel.regions.slots_needed(number, model_id)
            if needed <= self._config.region_records_max:
                self._ask(number, model_id, needed)
            elif number == consumer:
                refused = needed
            else:
                self._counters.add("requests_refused", cause=Cause.STATE_LIMIT)
                self._answers.append(RegionTooLarge(number, needed))
        if refused:
            raise LimitError(
                f"consumer {consumer} would need a region of {refused} records", hint="raise region_records_max"
            )

    def take(self) -> list[EngineInstruction]:
        """Regions to be opened."""
        self.check(-1)
        answers, self._answers = self._answers, []
        return answers

    def postpones(self, consumer: int, subscription: int) -> bool:
        """Whether the subscription is live only when regions are open, and said so then."""
        if not any(number == consumer for number, _ in self._asked):
            return False
        self._lives.setdefault(consumer, []).append(subscription)
        return True

    def opened(self, consumer: int, model_id: int) -> None:
        """The region is there. It may have been filled while it was made: then a larger one is asked for."""
        self._open[consumer, model_id] = self._asked.pop((consumer, model_id), 0)
        self.check(-1)
        if not any(number == consumer for number, _ in self._asked):
            for subscription in self._lives.pop(consumer, []):
                self._kernel.live(consumer, subscription)

    def detach(self, consumer: int) -> None:
        self._asked = {each: count for each, count in self._asked.items() if each[0] != consumer}
        self._open = {each: count for each, count in self._open.items() if each[0] != consumer}
        self._lives.pop(consumer, None)

    def _ask(self, consumer: int, model_id: int, needed: int) -> None:
        model = self._chooser.model(model_id)
        if model is None or self._asked.get((consumer, model_id), 0) >= needed:
            return
        count = min(max(RECORDS_MIN, 1 << (needed - 1).bit_length()), self._config.region_records_max)
        self._asked[consumer, model_id] = count
        self._answers.append(OpenRegion(consumer, model, count))
