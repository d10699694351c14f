"""Planning: from what was recorded and what hosts want, the map of topics to multicast groups that wastes least.

    traffic = recorded_traffic(spark, archive)
    planned = plan(traffic, hosts, groups_max=64)
    planned.groups.save(Path("groups.toml"))            # what publishers and subscribers load

What is wasted is what hosts receive and do not want. It is counted with the map itself, by what a subscriber with these
interests would join, for one group, for a hash, and for the plan.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.base.errors import ConfigurationError, NotFoundError
from penstock.base.ids import format_group, parse_group
from penstock.spark.pipeline.partition import partition
from penstock.topics import GroupMap, InterestTable
from penstock.topics.groups import GROUPS_MAX, MapDocument, MapHash, map_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.pipeline.archive.archive import Archive

TOPICS_MAX = 1_000_000
DISPLAY_RATE = 4
"""Updates per second that a person's screen shows of one topic."""

MESSAGE_COLUMNS = {"topic", "seq", "publisher", "packet"}
"""Tables that have these hold messages; others hold facts, or what was derived."""

NS_PER_SECOND = 10**9

By = Literal["messages", "bytes"]


class TopicTraffic(NamedTuple):
    """What flowed on one topic."""

    topic: str
    messages: int
    bytes: int
    seconds: int
    """In which something came."""
    peak: int
    """Most messages in one of them."""
    beyond: int
    """Messages that a display which shows so many per second would not need."""


class Waste(msgspec.Struct, frozen=True):
    """What all hosts together get by a map."""

    name: str
    groups: int
    delivered: int
    wanted: int

    @property
    def wasted(self) -> int:
        return self.delivered - self.wanted

    @property
    def share(self) -> float:
        """Of what is delivered."""
        return self.wasted / self.delivered if self.delivered else 0.0


class Plan(msgspec.Struct, frozen=True):
    groups: GroupMap
    waste: list[Waste]
    """With one group, with a hash over as many groups as the plan may use, and with the plan."""
    metering: list[TopicTraffic]
    """The topics of which a display needs least, by messages that could be left out."""
    unwanted: int
    """Topics that nobody wants."""


def plan(
    traffic: Sequence[TopicTraffic],
    hosts: Mapping[str, Sequence[str]],
    *,
    groups_max: int,
    first_group: str = "239.255.80.0",
    port: int = 7401,
    by: By = "messages",
) -> Plan:
    """The map for this traffic. Its first group is for topics that were not recorded; one of `groups_max` is that."""
    if not 1 <= groups_max <= GROUPS_MAX:
        raise ConfigurationError(f"{groups_max} groups cannot be planned", hint=f"choose 1 to {GROUPS_MAX}")
    if not traffic:
        raise NotFoundError("no messages were recorded", hint="penstock pipeline tables lists what is there")
    ordered = sorted(traffic)
    weights = np.array([each.bytes if by == "bytes" else each.messages for each in ordered], np.int64)
    topics = [each.topic for each in ordered]
    wanted_by = _wanted_by(topics, hosts)
    first = parse_group(first_group)
    rules: dict[str, list[str]] = {}
    if groups_max > 1:
        group_of = partition(wanted_by, weights, groups_max - 1)
        for topic, number in zip(topics, group_of.tolist(), strict=True):
            rules.setdefault(format_group(first + 1 + number), []).append(topic)
    planned = map_of(rules, default=first_group, port=port, groups_max=groups_max)
    single = GroupMap(MapDocument(version=1, default=first_group))
    spread = MapHash(first=first_group, count=groups_max)
    hashed = GroupMap(MapDocument(version=1, groups_max=groups_max, hash=spread))
    return Plan(
        groups=planned,
        waste=[
            _waste(name, groups, topics, weights, wanted_by, hosts)
            for name, groups in (("one group", single), ("hash", hashed), ("plan", planned))
        ],
        metering=sorted((each for each in ordered if each.beyond), key=lambda each: (-each.beyond, each.topic)),
        unwanted=int(np.count_nonzero(~wanted_by.any(axis=1))),
    )


def recorded_traffic(
    spark: SparkSession, archive: Archive, *, dates: Collection[str] | None = None, display_rate: int = DISPLAY_RATE
) -> list[TopicTraffic]:
    """What flowed on each topic, from all tables of messages."""
    from pyspark.sql import functions as f

    seconds: DataFrame | None = None
    for info in archive.tables():
        columns = set(spark.createDataFrame([], archive.catalogue.schemas[info.name]).columns)
        if columns >= MESSAGE_COLUMNS:
            counted = _by_second(archive.frame(spark, info.name, dates=dates), info.name, columns)
            seconds = counted if seconds is None else seconds.unionByName(counted)
    if seconds is None:
        raise NotFoundError("the archive has no messages", where=str(archive.path))
    sums = [f.sum(name).alias(name) for name in ("messages", "size")]
    per_second = seconds.groupBy("topic", "second").agg(*sums)
    topics = per_second.groupBy("topic").agg(
        f.sum("messages"),
        f.sum("size"),
        f.count("*"),
        f.max("messages"),
        f.sum(f.greatest(f.col("messages") - display_rate, f.lit(0))),
    )
    rows = topics.limit(TOPICS_MAX + 1).toArrow()
    if len(rows) > TOPICS_MAX:
        raise ConfigurationError(f"there are more than {TOPICS_MAX:,} topics", hint="plan for fewer dates")
    return [TopicTraffic(*row) for row in zip(*(column.to_pylist() for column in rows.columns), strict=True)]


def _by_second(frame: DataFrame, table: str, columns: set[str]) -> DataFrame:
    from pyspark.sql import functions as f

    times = [f.col(name) for name in ("captured", "event_time") if name in columns]
    size = f.length("payload") if "payload" in columns else f.lit(_record_size(table))
    second = f.floor(f.coalesce(*times, f.lit(0)) / NS_PER_SECOND).alias("second")
    return (
        frame.select("topic", second, size.cast("bigint").alias("size"))
        .groupBy("topic", "second")
        .agg(f.count("*").alias("messages"), f.sum("size").alias("size"))
    )


def _record_size(table: str) -> int:
    from penstock.model import shipped, shipped_names

    return shipped(table).record_size if table in shipped_names() else 0


def _wanted_by(topics: Sequence[str], hosts: Mapping[str, Sequence[str]]) -> NDArray[np.uint64]:
    """A row of bits for every topic: which hosts want it."""
    table = InterestTable()
    for number, interests in enumerate(hosts.values()):
        for interest in interests:
            table.add(interest, number)
    encoded = [topic.encode() for topic in topics]
    sizes = np.array([len(each) for each in encoded], np.uint16)
    starts = np.cumsum([0, *sizes[:-1].tolist()], dtype=np.uint32)
    offsets, subscribers = table.match_batch(b"".join(encoded), starts, sizes)
    rows = np.repeat(np.arange(len(topics)), (offsets[1:] - offsets[:-1]).astype(np.int64))
    bits = np.zeros((len(topics), -(-max(len(hosts), 1) // 64)), np.uint64)
    np.bitwise_or.at(bits, (rows, subscribers // 64), np.uint64(1) << (subscribers % 64).astype(np.uint64))
    return bits


def _waste(
    name: str,
    groups: GroupMap,
    topics: Sequence[str],
    weights: NDArray[np.int64],
    wanted_by: NDArray[np.uint64],
    hosts: Mapping[str, Sequence[str]],
) -> Waste:
    load: dict[int, int] = {}
    for topic, weight in zip(topics, weights.tolist(), strict=True):
        group = groups.group_of(topic)
        load[group] = load.get(group, 0) + weight
    delivered = sum(load.get(group, 0) for interests in hosts.values() for group in groups.groups_for(interests))
    wanted = int((np.bitwise_count(wanted_by).sum(axis=1, dtype=np.int64) * weights).sum())
    return Waste(name, len(groups.groups), delivered, wanted)
