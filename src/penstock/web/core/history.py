"""Rates, latencies and losses of nodes over the last polls, in memory that does not grow. No I/O."""

import math
from array import array
from collections.abc import Sequence

import msgspec

from penstock.base.errors import NotFoundError
from penstock.top.core.picture import NodeRow
from penstock.web.core.picture import PictureDocument

SAMPLES_MAX = 3_600
"""Number of polls that are kept: an hour at the default interval of a second."""

NODES_MAX = 256
POINTS_MAX = 240
"""Maximum number of points of an answer; more samples are summarised."""

SECONDS_MAX = 86_400

Column = list[float | None]


class HistoryDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Points of equal length in time, the oldest first; None where nothing is known."""

    node: str
    from_ms: float
    to_ms: float
    time_ms: list[float]
    """Time of the last sample of each point."""

    in_per_s: Column
    out_per_s: Column
    p50_us: Column
    """Latencies since the start of the node; of several samples, the highest."""

    p99_us: Column
    lost: Column
    """Messages lost within the point."""


class _Series:
    """The samples of one node; positions are those of the ring."""

    def __init__(self) -> None:
        self.in_per_s, self.out_per_s, self.p50_us, self.p99_us, self.lost = (
            array("d", [math.nan]) * SAMPLES_MAX for _ in range(5)
        )

    def put(self, at: int, row: NodeRow | None) -> None:
        """Store a sample; None, or an old row, for an unknown one."""
        columns = (self.in_per_s, self.out_per_s, self.p50_us, self.p99_us, self.lost)
        for column, value in zip(columns, _values(row), strict=True):
            column[at] = math.nan if value is None or not math.isfinite(value) else value


def _values(row: NodeRow | None) -> tuple[float | None, ...]:
    if row is None or row.age_s is not None:
        return (None,) * 5
    return row.in_per_s, row.out_per_s, row.latency_us.get("p50"), row.latency_us.get("p99"), row.lost


class History:
    """take() each picture, then read()."""

    def __init__(self) -> None:
        self._times = array("d", [0.0]) * SAMPLES_MAX
        self._count = 0
        self._series: dict[str, _Series] = {}

    def take(self, picture: PictureDocument) -> None:
        at = self._count % SAMPLES_MAX
        self._times[at] = picture.time_ms
        rows = {row.node: row for row in picture.nodes[:NODES_MAX]}
        for name in rows.keys() - self._series.keys():
            if len(self._series) < NODES_MAX:
                self._series[name] = _Series()
        for name, series in self._series.items():
            series.put(at, rows.get(name))
        self._count += 1

    def read(self, node: str, seconds: float) -> HistoryDocument:
        """The newest samples of a node, within these seconds before the newest one."""
        series = self._series.get(node)
        if series is None:
            raise NotFoundError(
                f"unknown node {node[:64]!r}", hint="the console keeps the history of its plant's nodes"
            )
        newest = self._times[(self._count - 1) % SAMPLES_MAX]
        oldest = newest - 1_000 * seconds
        kept = range(max(0, self._count - SAMPLES_MAX), self._count)
        positions = [number % SAMPLES_MAX for number in kept if self._times[number % SAMPLES_MAX] > oldest]
        points = _points(positions, [self._times[at] for at in positions], oldest, newest)
        losses = _differences(series.lost, positions)
        return HistoryDocument(
            node=node,
            from_ms=oldest,
            to_ms=newest,
            time_ms=[self._times[point[-1]] for point in points],
            in_per_s=[_mean([series.in_per_s[at] for at in point]) for point in points],
            out_per_s=[_mean([series.out_per_s[at] for at in point]) for point in points],
            p50_us=[_highest([series.p50_us[at] for at in point]) for point in points],
            p99_us=[_highest([series.p99_us[at] for at in point]) for point in points],
            lost=[_sum([losses[at] for at in point]) for point in points],
        )


def _points(positions: Sequence[int], times: Sequence[float], oldest: float, newest: float) -> list[list[int]]:
    """Samples in at most POINTS_MAX groups, each of the same length in time."""
    if len(positions) <= POINTS_MAX:
        return [[at] for at in positions]
    width = (newest - max(oldest, times[0])) / POINTS_MAX or 1.0
    groups: dict[int, list[int]] = {}
    for at, time_ms in zip(positions, times, strict=True):
        groups.setdefault(min(POINTS_MAX - 1, max(0, int((time_ms - times[0]) / width))), []).append(at)
    return [groups[number] for number in sorted(groups)]


def _differences(totals: Sequence[float], positions: Sequence[int]) -> dict[int, float]:
    """Growth of a total since the sample before; a node that was restarted counts from zero again."""
    grown: dict[int, float] = {}
    before = math.nan
    for at in positions:
        now = totals[at]
        grown[at] = now - before if now >= before else (now if now < before else math.nan)
        before = before if math.isnan(now) else now
    return grown


def _known(values: Sequence[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def _mean(values: Sequence[float]) -> float | None:
    known = _known(values)
    return sum(known) / len(known) if known else None


def _highest(values: Sequence[float]) -> float | None:
    return max(_known(values), default=None)


def _sum(values: Sequence[float]) -> float | None:
    known = _known(values)
    return sum(known) if known else None
