"""How a distribution engine behaves, and every bound it keeps."""

from typing import Annotated, Literal

import msgspec

from penstock.base.config import Config
from penstock.base.errors import ConfigurationError

ClassName = Literal["critical", "adaptive", "metered"]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**32 - 2)]
Bytes = Annotated[int, msgspec.Meta(ge=65_536, le=2**40)]


class EngineConfig(Config, frozen=True):
    """Of the core. Memory is at most items_max records, pairs_max times some 100 bytes, and the history."""

    classes: tuple[ClassName, ...] = ("critical",)
    """Those that this node serves."""

    default_class: ClassName = "critical"
    """Of subscriptions that leave it to the node, where no rule says otherwise."""

    keeps: Literal["all", "wanted"] = "all"
    """Items: all that updates were ever taken of, as a plant does, or only those that a consumer wants."""

    has_upstream: bool = False
    """Whether subscriptions are live only when the node above has said so (UpstreamLive)."""

    items_max: Count = 1_000_000
    consumers_max: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 8_192
    subscriptions_per_consumer_max: Count = 1_024
    topics_per_consumer_max: Count = 1_000_000
    """Interests of all its subscriptions."""

    pairs_max: Count = 20_000_000
    """Consumers' items, counted once for each consumer."""

    history_bytes: Bytes = 64 * 1024 * 1024
    """Critical events that are kept for consumers that are overrun or slow."""

    budget_bytes: Annotated[int, msgspec.Meta(ge=-1)] = -1
    """What publish() and distribute() write at once; the rest waits for serve(). -1: they write everything."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.default_class not in self.classes:
            raise ConfigurationError(
                f"default_class {self.default_class!r} is not among the classes", hint="name it in classes"
            )
