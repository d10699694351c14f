"""Configuration and limits of a distribution engine."""

from typing import Annotated, Literal

import msgspec

from penstock.base.config import Config
from penstock.engine.control import ClassName

Count = Annotated[int, msgspec.Meta(ge=1, le=2**32 - 2)]
Bytes = Annotated[int, msgspec.Meta(ge=65_536, le=2**40)]


class Weights(Config, frozen=True):
    """Shares of the classes in the output, in bytes."""

    critical: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 8
    adaptive: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 4
    metered: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 2


class EngineConfig(Config, frozen=True):
    """Configuration of the core. Memory is at most items_max records, about 100 bytes times pairs_max, and the
    history."""

    classes: tuple[ClassName, ...] = ("critical", "adaptive")
    """The classes that this node serves."""

    weights: Weights = Weights()
    """Shares of the classes when the output is limited (by budget_bytes or the argument of serve())."""

    offsets: Literal["common", "own"] = "common"
    """Slots of records in consumers' regions: equal in all of them, or assigned for each consumer by its
    subscriptions."""

    serves_all_pending: bool = False
    """True: an adaptive record that is read once is written for all consumers that wait for it, which is cheaper,
    but does not preserve the order between items."""

    keeps: Literal["all", "wanted"] = "all"
    """The items that the node keeps: all items with updates, as in a plant, or only those with consumers."""

    has_upstream: bool = False
    """True if subscriptions are live only after the upstream node's UpstreamLive."""

    items_max: Count = 1_000_000
    consumers_max: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 8_192
    subscriptions_per_consumer_max: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 1_024
    topics_per_consumer_max: Count = 1_000_000
    """Maximum number of interests in all subscriptions of a consumer."""

    pairs_max: Annotated[int, msgspec.Meta(ge=1, le=2**31)] = 2_000_000
    """Maximum number of items of all consumers, counted per consumer."""

    region_records_max: Annotated[int, msgspec.Meta(ge=64, le=2**24)] = 1_048_576
    """Maximum number of records of one model in a consumer's region."""

    history_bytes: Bytes = 64 * 1024 * 1024
    """Size of the history of critical events, for consumers that are overrun or slow."""

    budget_bytes: Annotated[int, msgspec.Meta(ge=-1)] = -1
    """Bytes that publish() and distribute() write at once; serve() writes the rest. -1: no limit."""
