"""How well an adapter is, as one number, so that adapters can be put in order (FEED-5, SYNC-6)."""

from typing import Annotated

import msgspec

from penstock.base.clock import NS_PER_SECOND

SCORE_MAX = 1_000
PART_MAX = SCORE_MAX // 5
"""Each of the five measurements counts the same."""

ERRORS_HALF = 10
"""Errors a second at which that part is half of its best."""

LAG_HALF_NS = NS_PER_SECOND // 100
"""Lag at which that part is half of its best."""

Count = Annotated[int, msgspec.Meta(ge=0)]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured over the last interval."""

    memory_free: float = 1.0
    """Share of the machine's memory that can still be had."""

    cpu_free: float = 1.0
    """Share of the adapter's processors that is idle."""

    errors_per_s: float = 0.0
    messages_per_s: float = 0.0
    """Application messages sent."""

    transmission: float = 1.0
    """Messages sent as a share of those that were there to be sent."""

    lag_ns: Count = 0
    """From a source message's arrival to its conversion."""

    def score(self) -> int:
        """0 for the worst, 1,000 for the best."""
        parts = (
            _share(self.memory_free),
            _share(self.cpu_free),
            ERRORS_HALF / (ERRORS_HALF + max(0.0, self.errors_per_s)),
            _share(self.transmission),
            LAG_HALF_NS / (LAG_HALF_NS + max(0, self.lag_ns)),
        )
        return sum(round(part * PART_MAX) for part in parts)


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))
