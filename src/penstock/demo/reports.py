"""Options of the demo, and reports of its processes."""

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
    """Share of datagrams lost on the exchange's first line."""

    journals: bool = False
    """Whether adapters keep journals, for delayed subscribers and for the archive."""

    pipeline: bool = False
    """Whether published messages are archived and audited; enables the adapters' journals."""

    nodes: bool = True
    """Whether to run a filter module, a ticker plant, a multiplexer and an edge cache."""

    tree: bool = True
    """Whether to run a distribution tree and a console."""

    router: bool = True
    """Whether to run message routers, with trades passing them; the trades come from the multiplexer."""

    spin: bool = False
    """Whether adapters poll instead of sleeping: faster, and a whole core each."""


FIRST_PLANT = DemoOptions(rate=1_000, subscribers=1, symbols=100, journals=True)
"""The plant that `penstock init` writes."""

MINIMAL_PLANT = DemoOptions(rate=1_000, subscribers=1, symbols=100, nodes=False, tree=False, router=False)
"""The plant that `penstock init --minimal` writes: four nodes."""


class SubscriberTask(msgspec.Struct, frozen=True):
    url: str
    credentials: str
    topics: list[str]
    filter: str
    """The address of the filter module to receive through, or \"none\"."""


class Gap(msgspec.Struct, frozen=True):
    """The longest time between two deliveries within one second."""

    second: int
    """On the monotonic clock, which all processes of a machine share."""

    ns: int


class Subscribed(msgspec.Struct, frozen=True, tag=True):
    """The subscriber is ready."""


class Tally(msgspec.Struct):
    """Messages of one model."""

    count: int = 0
    digest: int = 0
    """Digest of the messages' contents without the adapter's receive time, independent of their order."""


class SubscriberReport(msgspec.Struct, frozen=True, tag=True):
    at_ns: int
    """On the monotonic clock."""

    messages: int
    duplicates: int
    """Copies from the other adapter."""

    lost: int
    discontinuities: int
    repairs: int
    latency: HistogramState
    gaps: list[Gap]
    """Gaps in the seconds since the last report."""

    tallies: dict[str, Tally]
    """By model name."""


class ConsumerTask(msgspec.Struct, frozen=True):
    url: str
    credentials: str
    node: str
    """The distribution node, as host:port."""

    topics: list[str]
    cls: ClassName
    per_second: float
    """Rate of the metered class."""


class ConsumerReport(msgspec.Struct, frozen=True, tag=True):
    at_ns: int
    """On the monotonic clock."""

    messages: int
    merged: int
    """Updates conflated into others."""

    lost: int
    """Loss receipts."""

    items: int
    versions: int
    """Sum of the last versions of all items: the number of updates. Records of a region have no versions."""

    newest: int
    """Sum of the source numbers of the last records of all items: equal for all consumers with the newest records."""


class BookingTask(msgspec.Struct, frozen=True):
    url: str
    credentials: str
    node: str
    """The distribution node that delivers the trades, as host:port."""

    topics: list[str]
    router: str
    prefix: str
    """Prefix of the topics of assured messages, followed by the topic of the trade."""


class BookingReport(msgspec.Struct, frozen=True, tag=True):
    published: int = 0
    acknowledged: int = 0
    """Published messages that the router has stored."""

    refused: int = 0


class ClearingTask(msgspec.Struct, frozen=True):
    url: str
    credentials: str
    router: str
    endpoint: str


class ClearingReport(msgspec.Struct, frozen=True, tag=True):
    latest_ns: int = 0
    """Time of the last message, on the monotonic clock."""

    delivered: int = 0
    redelivered: int = 0
    """Deliveries marked as redelivered."""

    distinct: int = 0
    """Distinct trades."""


class ArchiveTask(msgspec.Struct, frozen=True):
    journals: list[str]
    accounts: list[str]
    """Journals with the nodes' accounts; archived at the end."""

    archive: str
    report: str
    """Path of the audit report."""

    audit_log: str
    """The administration server's database, which is read after the server has ended."""


class ArchiveReport(msgspec.Struct, frozen=True, tag=True):
    """The archiving process is running."""

    messages: int
    """Messages archived so far, each counted once."""

    deriving: str = ""


class BarLine(msgspec.Struct, frozen=True):
    symbol: str
    start_ns: int
    prices: list[str]
    """Open, high, low, close, and the volume-weighted average price."""

    volume: int
    trades: int


class ArchiveResult(msgspec.Struct, frozen=True, tag=True):
    """The result of the archiving process, when the plant is idle."""

    messages: int
    balance: list[str]
    delays_s: list[float]
    tables: dict[str, int]
    bars: list[BarLine]
    verdict: str
    findings: list[str]
