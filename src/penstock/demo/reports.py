"""What the demo is told, and what its subscribers tell."""

from typing import Annotated

import msgspec

from penstock.base.config import Config
from penstock.base.histogram import HistogramState
from penstock.engine.control import ClassName


class DemoOptions(Config, frozen=True):
    rate: Annotated[float, msgspec.Meta(gt=0, le=5_000_000)] = 10_000.0
    """Source messages per second."""

    subscribers: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    symbols: Annotated[int, msgspec.Meta(ge=1, le=20_000)] = 500
    seed: int = 1
    loss: Annotated[float, msgspec.Meta(ge=0, le=0.9)] = 0.0
    """Share of the datagrams that are lost on the exchange's first line."""

    journals: bool = False
    """Whether adapters keep what they publish, for delayed subscribers and for the archive."""

    pipeline: bool = False
    """Whether what is published is archived and audited; adapters keep journals for it."""

    tree: bool = True
    """Whether there are a distribution tree and a console."""

    router: bool = True
    """Whether there is a message router, with trades going through it."""

    spin: bool = False
    """Whether adapters wait by looking again and again: quicker, and a whole core each."""


class SubscriberTask(msgspec.Struct, frozen=True):
    url: str
    credentials: str
    topics: list[str]
    filter: str
    """The address of the filter module by whose way it gets them, or \"none\"."""


class Gap(msgspec.Struct, frozen=True):
    """The longest time between two deliveries within one second."""

    second: int
    """By the monotonic clock, which all processes of a machine share."""

    ns: int


class Subscribed(msgspec.Struct, frozen=True, tag=True):
    """The subscriber listens."""


class Tally(msgspec.Struct):
    """Messages of one model."""

    count: int = 0
    digest: int = 0
    """Of their contents, but for when an adapter received them; in whatever order they came."""


class SubscriberReport(msgspec.Struct, frozen=True, tag=True):
    at_ns: int
    """By the monotonic clock."""

    messages: int
    duplicates: int
    """Copies that came from the other adapter as well."""

    lost: int
    discontinuities: int
    repairs: int
    latency: HistogramState
    gaps: list[Gap]
    """Of the seconds since the last report."""

    tallies: dict[str, Tally]
    """By the model's name."""


class ConsumerTask(msgspec.Struct, frozen=True):
    url: str
    credentials: str
    node: str
    """The distribution node that it consumes from, as host:port."""

    topics: list[str]
    cls: ClassName
    per_second: float
    """Of the metered class."""


class ConsumerReport(msgspec.Struct, frozen=True, tag=True):
    at_ns: int
    """By the monotonic clock."""

    messages: int
    merged: int
    """Updates that went into others."""

    lost: int
    """Receipts of what it did not get."""

    items: int
    versions: int
    """The last versions of all items together: how many updates there were. Records of a region have none."""

    newest: int
    """The source numbers of the last records of all items together: the same for whoever has the newest."""


class BookingTask(msgspec.Struct, frozen=True):
    url: str
    credentials: str
    node: str
    """The distribution node that the trades come from, as host:port."""

    topics: list[str]
    router: str
    prefix: str
    """What the topics of assured messages begin with; the topic of the trade follows."""


class BookingReport(msgspec.Struct, frozen=True, tag=True):
    published: int = 0
    acknowledged: int = 0
    """Of these: those that the router has on its disk."""

    refused: int = 0


class ClearingTask(msgspec.Struct, frozen=True):
    url: str
    credentials: str
    router: str
    endpoint: str


class ClearingReport(msgspec.Struct, frozen=True, tag=True):
    latest_ns: int = 0
    """When the last one came, by the monotonic clock."""

    delivered: int = 0
    redelivered: int = 0
    """Of these: those that may have been delivered before."""

    distinct: int = 0
    """Trades, each counted once."""


class ArchiveTask(msgspec.Struct, frozen=True):
    journals: list[str]
    accounts: list[str]
    """Journals in which nodes give account; they are archived at the end."""

    archive: str
    report: str
    """Where the audit's page goes."""

    audit_log: str
    """The administration server's database, which is read when the server has ended."""


class ArchiveReport(msgspec.Struct, frozen=True, tag=True):
    """The archiving process is at work."""

    messages: int
    """Archived so far, each once."""

    deriving: str = ""


class BarLine(msgspec.Struct, frozen=True):
    symbol: str
    start_ns: int
    prices: list[str]
    """Open, high, low, close, and the average weighted by volume."""

    volume: int
    trades: int


class ArchiveResult(msgspec.Struct, frozen=True, tag=True):
    """What has come of it, once the plant is at rest."""

    messages: int
    balance: list[str]
    delays_s: list[float]
    tables: dict[str, int]
    bars: list[BarLine]
    verdict: str
    findings: list[str]
