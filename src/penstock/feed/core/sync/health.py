"""The health of an adapter as one number, by which adapters are ranked (FEED-5, SYNC-6)."""

from typing import Annotated

import msgspec

from penstock.base.clock import NS_PER_SECOND

SCORE_MAX = 1_000
PART_MAX = SCORE_MAX // 5
"""Maximum of each of the five measurements."""

ERRORS_HALF = 10
"""Errors per second that halve this part of the score."""

LAG_HALF_NS = NS_PER_SECOND // 100
"""Lag that halves this part of the score."""

Count = Annotated[int, msgspec.Meta(ge=0)]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of the last interval."""

    memory_free: float = 1.0
    """Available share of the machine's memory."""

    cpu_free: float = 1.0
    """Idle share of the adapter's processors."""

    errors_per_s: float = 0.0
    messages_per_s: float = 0.0
    """Application messages sent."""

    transmission: float = 1.0
    """Sent share of the messages that were due."""

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
