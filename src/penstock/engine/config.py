"""How a distribution engine behaves, and every bound it keeps."""

from typing import Annotated, Literal

import msgspec

from penstock.base.config import Config
from penstock.engine.control import ClassName

Count = Annotated[int, msgspec.Meta(ge=1, le=2**32 - 2)]
Bytes = Annotated[int, msgspec.Meta(ge=65_536, le=2**40)]


class Weights(Config, frozen=True):
    """Shares of the output, in bytes."""

    critical: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 8
    adaptive: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 4
    metered: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 2


class EngineConfig(Config, frozen=True):
    """Of the core. Memory is at most items_max records, pairs_max times some 100 bytes, and the history."""

    classes: tuple[ClassName, ...] = ("critical", "adaptive")
    """Those that this node serves."""

    weights: Weights = Weights()
    """How the classes share the output where it is limited (budget_bytes, or that of serve())."""

    offsets: Literal["common", "own"] = "common"
    """Where an item's record is in the regions of consumers: at one place in all of them, or by a table for each
    consumer, sized to what it subscribed to."""

    serves_all_pending: bool = False
    """Whether an adaptive record that is read once is written for everybody who waits for it: less work, but the order
    between items is not kept."""

    keeps: Literal["all", "wanted"] = "all"
    """Items: all that updates were ever taken of, as a plant does, or only those that a consumer wants."""

    has_upstream: bool = False
    """Whether subscriptions are live only when the node above has said so (UpstreamLive)."""

    items_max: Count = 1_000_000
    consumers_max: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 8_192
    subscriptions_per_consumer_max: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 1_024
    topics_per_consumer_max: Count = 1_000_000
    """Interests of all its subscriptions."""

    pairs_max: Annotated[int, msgspec.Meta(ge=1, le=2**31)] = 2_000_000
    """Consumers' items, counted once for each consumer."""

    region_records_max: Annotated[int, msgspec.Meta(ge=64, le=2**24)] = 1_048_576
    """Records of one model in a consumer's region."""

    history_bytes: Bytes = 64 * 1024 * 1024
    """Critical events that are kept for consumers that are overrun or slow."""

    budget_bytes: Annotated[int, msgspec.Meta(ge=-1)] = -1
    """What publish() and distribute() write at once; the rest waits for serve(). -1: they write everything."""
