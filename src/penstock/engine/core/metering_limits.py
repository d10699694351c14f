"""Rate limits of pairs of a consumer and an item: the strictest applicable limit counts.

    [metering]
    per_second_max = 20         # maximum for clients; 0: also unmetered updates
    node_per_second = 0         # of the node in total, and below of each consumer in total; 0: no limit
    consumer_per_second = 0
    models = { quote = 4, book_snapshot = 20 }
    items = [{ topics = "md.us.eq.IBM.>", per_second = 1 }]
    withheld = "conflate"       # or "drop": late updates then have only the newest record

Rates are updates per second, from 1 to 1000, or 0 for no limit. Models that are never conflated are never metered: each
of their updates is sent. Compiled code (_metering.pyx) enforces the rates.
"""

from functools import cached_property
from typing import Annotated, Literal

import msgspec

from penstock.base.config import Config
from penstock.base.errors import ConfigurationError, LimitError
from penstock.topics import Interest, InterestKind, InterestTable

PER_SECOND_MIN = 1.0
PER_SECOND_MAX = 1_000.0
NANOSECONDS = 1_000_000_000

Rate = Annotated[float, msgspec.Meta(ge=0, le=PER_SECOND_MAX)]
TotalRate = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
"""A rate for many items together."""


class ItemRate(Config, frozen=True):
    topics: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
    per_second: Rate


class MeteringLimits(Config, frozen=True, dict=True):
    """An operator's configuration; the module's docstring explains the keys."""

    per_second_max: Rate = 0.0
    node_per_second: TotalRate = 0.0
    consumer_per_second: TotalRate = 0.0
    models: dict[str, Rate] = msgspec.field(default_factory=dict)
    items: Annotated[tuple[ItemRate, ...], msgspec.Meta(max_length=10_000)] = ()
    withheld: Literal["conflate", "drop"] = "conflate"

    def __post_init__(self) -> None:
        super().__post_init__()
        rates = {"per_second_max": self.per_second_max}
        rates |= {f"models.{name}": rate for name, rate in self.models.items()}
        rates |= {f"items[{index}].per_second": item.per_second for index, item in enumerate(self.items)}
        for where, rate in rates.items():
            if 0 < rate < PER_SECOND_MIN:
                raise ConfigurationError(f"{rate} is not a rate", where=where, hint="from 1 to 1000, or 0 for none")
        for index, item in enumerate(self.items):
            interest = Interest.parse(item.topics)
            if interest.negative or interest.kind is InterestKind.TAG:
                raise ConfigurationError(f"{item.topics!r} is not a topic pattern", where=f"items[{index}].topics")

    def granted(self, per_second: float, *, is_explicit: bool) -> float:
        """Return the granted rate of a subscription. A rate of 0 requests unmetered updates if it is explicit,
        otherwise the maximum. Raise LimitError if the rate is not granted."""
        if per_second == 0:
            if self.per_second_max and is_explicit:
                raise LimitError(
                    "this node does not grant unmetered updates",
                    hint=f"ask for at most {self.per_second_max:g} per second",
                )
            return self.per_second_max
        if not PER_SECOND_MIN <= per_second <= PER_SECOND_MAX:
            raise LimitError(f"{per_second:g} per second is not a rate", hint="ask for 1 to 1000 per second")
        return strictest(per_second, self.per_second_max)

    def of_item(self, topic: str, model: str) -> float:
        """The item's own limit, for all consumers."""
        return strictest(
            self.models.get(model, 0.0), *(self.items[index].per_second for index in self._matching(topic))
        )

    def _matching(self, topic: str) -> list[int]:
        return self._table.match(topic) if self.items else []

    @cached_property
    def _table(self) -> InterestTable:
        table = InterestTable(seed=bytes(16))
        for index, item in enumerate(self.items):
            table.add(item.topics, index)
        return table


def strictest(*per_second: float) -> float:
    """The lowest of the rates; 0 means no limit."""
    return min((rate for rate in per_second if rate), default=0.0)


def interval_ns(per_second: float) -> int:
    """The interval between two updates; 0 for a rate of 0."""
    return round(NANOSECONDS / per_second) if per_second else 0
