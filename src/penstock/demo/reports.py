"""What the processes of a plant tell each other: options on the way in, reports on the way out, a line of JSON each."""

from typing import Annotated, Literal, TypeAlias

import msgspec

from penstock.base.config import Config
from penstock.base.histogram import HistogramState
from penstock.net.udp import Channel

REPORT_SECONDS = 0.25


class DemoOptions(Config, frozen=True):
    channel: Channel
    rate: Annotated[float, msgspec.Meta(gt=0, le=50_000_000)] = 20_000.0
    """Messages per second."""

    subscribers: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    symbols: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 500
    seed: int = 1
    loss: Annotated[float, msgspec.Meta(ge=0, le=0.9)] = 0.0
    """Share of the datagrams that every subscriber throws away as they arrive."""

    spin: bool = False
    """Whether the processes wait by looking again and again: quicker, and a whole core each."""


class Task(msgspec.Struct, frozen=True):
    """What a process is started with."""

    role: Literal["publisher", "subscriber"]
    options: DemoOptions
    publisher_id: int
    """Of the plant's own publisher: others on the channel are none of its business."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The process can begin: a subscriber listens, a publisher waits for GO."""


class PublisherReport(msgspec.Struct, frozen=True, tag=True):
    at_ns: int
    """By the monotonic clock, which all processes of a machine share."""

    counts: list[tuple[str, str, int]]
    """What base.counters.Counters yields."""


class SubscriberReport(msgspec.Struct, frozen=True, tag=True):
    at_ns: int
    counts: list[tuple[str, str, int]]
    latency: HistogramState
    end: str = ""
    """Why the stream ended, once it has: `goodbye` when everything that was published is accounted for."""


Report: TypeAlias = PublisherReport | SubscriberReport
Line: TypeAlias = Ready | PublisherReport | SubscriberReport

GO = b"go\n"
"""To the publisher: everybody listens."""

STOP = b"stop\n"
"""To the publisher: say goodbye. To a subscriber: do not wait for a goodbye."""

LEAVE = b"leave\n"
"""To the publisher: nobody needs repairs any more."""
