"""Latency: percentiles from hop to hop, from the times in messages and captures."""

import math
from typing import Any

from penstock.base.histogram import VALUE_BITS, HistogramState, LatencyHistogram, highest_of
from penstock.spark.pipeline.audit.section import AuditTables, Measure, Plot, SectionResult, TextTable
from penstock.spark.pipeline.audit.svg import Line, curves

PERCENTILES = (50.0, 90.0, 99.0, 99.9, 99.99)
CURVE = (1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99)
LINES_MAX = 4
VALUE_MAX = 2**VALUE_BITS
"""Larger values are not measured, because they come from the times of another day or a wrong clock."""


class LatencySection:
    name = "latency"
    title = "Latency from hop to hop"
    needs: tuple[str, ...] = ("latency",)

    def compute(self, tables: AuditTables) -> SectionResult:
        rows = tables.sql("SELECT hop, stream, bucket, sum(count) AS count FROM latency GROUP BY hop, stream, bucket")
        histograms = _histograms(rows)
        measures, lines = [], []
        for (hop, stream), histogram in histograms.items():
            subject = f"{hop}, stream {stream}"
            found = [(f"p{q:g}", histogram.percentile(q)) for q in PERCENTILES]
            measures += [Measure(self.name, subject, name, value, "ns") for name, value in found]
            measures.append(Measure(self.name, subject, "negative", histogram.negative_count, "messages"))
            shown = [duration_text(value) for _, value in found]
            lines.append((subject, f"{histogram.count:,}", *shown, f"{histogram.negative_count:,}"))
        names = [f"p{q:g}" for q in PERCENTILES]
        table = TextTable("Percentiles", ("hop", "messages", *names, "below zero"), lines)
        if not histograms:
            return SectionResult("unknown", "no message has the required times")
        by_hop = _by_hop(histograms)
        middle = "; ".join(_sentence(hop, each) for hop, each in by_hop.items() if each.count)
        negative = sum(each.negative_count for each in histograms.values())
        clocks = f". {negative:,} came before they were sent: the clocks of two hosts differ" if negative else ""
        return SectionResult("good", middle + clocks, measures, [_plot(by_hop), table])


def _sentence(hop: str, histogram: LatencyHistogram) -> str:
    if histogram.percentile(50) >= VALUE_MAX:
        return f"{hop}: the times are of another day"
    half, most = (duration_text(histogram.percentile(q)) for q in (50, 99))
    return f"{hop}: half within {half}, 99 % within {most}"


def _histograms(rows: list[dict[str, Any]]) -> dict[tuple[str, int], LatencyHistogram]:
    found: dict[tuple[str, int], LatencyHistogram] = {}
    for row in sorted(rows, key=lambda row: (row["hop"], row["stream"], row["bucket"])):
        histogram = found.setdefault((row["hop"], row["stream"]), LatencyHistogram())
        if row["bucket"] < 0:
            histogram.merge(HistogramState([], [], negative_count=row["count"]))
        else:
            histogram.merge(HistogramState([row["bucket"]], [row["count"]], highest_of(row["bucket"])))
    return found


def _by_hop(histograms: dict[tuple[str, int], LatencyHistogram]) -> dict[str, LatencyHistogram]:
    found: dict[str, LatencyHistogram] = {}
    for (hop, _), histogram in histograms.items():
        found.setdefault(hop, LatencyHistogram()).merge(histogram)
    return found


def _plot(by_hop: dict[str, LatencyHistogram]) -> Plot:
    """Plot latency on a logarithmic scale over the share of messages, stretched towards the slowest."""
    lines = [
        Line(hop, [(_stretched(q), math.log10(min(max(histogram.percentile(q), 1), VALUE_MAX))) for q in CURVE])
        for hop, histogram in list(by_hop.items())[:LINES_MAX]
    ]
    heights = [y for line in lines for _, y in line.points]
    low, high = math.floor(min(heights)), max(math.ceil(max(heights)), math.floor(min(heights)) + 1)
    ticks_y = [(float(power), duration_text(10**power)) for power in range(low, high + 1)]
    ticks_x = [(_stretched(q), f"{q:g} %") for q in (1.0, 50.0, 90.0, 99.0, 99.9, 99.99)]
    return Plot("Maximum latency of the given share of messages", curves(lines, ticks_x=ticks_x, ticks_y=ticks_y))


def _stretched(q: float) -> float:
    return -math.log10(1 - q / 100)


def duration_text(ns: float) -> str:
    if ns >= VALUE_MAX:
        return "> 1 h"
    for limit, factor, unit in ((1e3, 1.0, "ns"), (1e6, 1e3, "µs"), (1e9, 1e6, "ms")):
        if ns < limit:
            return f"{ns / factor:,.3g} {unit}"
    return f"{ns / 1e9:,.4g} s"
