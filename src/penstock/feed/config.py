"""Every bound of the feeds that can be configured."""

from typing import Annotated, Literal

import msgspec

from penstock.base.config import Config

Count = Annotated[int, msgspec.Meta(ge=1, le=2**24)]
Micros = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
Millis = Annotated[int, msgspec.Meta(ge=1, le=3_600_000)]


class LineConfig(Config, frozen=True):
    """How the copies of one source stream that come over several lines are made into one."""

    join: Literal["live", "start"] = "live"
    """Begin with the first message that comes, or ask for everything since the session's first."""

    gap_wait_us: Micros = 2_000
    """How long the other line may take to bring what one has lost, before it is asked for."""

    request_retry_ms: Millis = 20
    """Ask again after this, then after twice as long, and so on."""

    request_attempts_max: Annotated[int, msgspec.Meta(ge=0, le=100)] = 5
    """How often to ask; what does not come then is lost. 0 where there is nobody to ask."""

    window_messages_max: Annotated[int, msgspec.Meta(ge=16, le=2**22)] = 65_536
    """Messages that may wait for those before them. What is farther ahead is dropped, and asked for later."""

    jump_wait_ms: Annotated[int, msgspec.Meta(ge=0, le=3_600_000)] = 1_000
    """When all that comes for so long is too far ahead to wait for, what is between is lost and it goes on there."""

    reset_wait_ms: Millis = 5_000
    """When all that comes for so long has been there before, the source has begun to count anew: a new session."""

    silent_ms: Millis = 3_000
    """A line that brings nothing for so long, not even heartbeats, is reported."""
