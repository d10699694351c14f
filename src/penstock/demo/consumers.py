"""The demo's consumers of distribution nodes: an algorithm that must have every trade, pricing that wants the newest
quotes, and a slow screen that shows a few quotes per second. One plant feeds them all, and none can hurt another."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from penstock.demo.layout import CONSUMERS, Layout
from penstock.demo.reports import ConsumerReport, ConsumerTask, Subscribed, Tally
from penstock.node.member import Member
from penstock.node.supervisor import Supervisor


class Published(msgspec.Struct, frozen=True):
    """What there was to be had, by model."""

    counts: dict[str, int]
    newest: dict[str, int]
    """The source numbers of the last records of all items together."""

    is_whole: bool
    """Whether whoever counted it got everything."""


class Consumer:
    """One consuming process, as the plant sees it."""

    def __init__(self, name: str, layout: Layout) -> None:
        self.name = name
        self.cls, self.node, self.model = CONSUMERS[name]
        self.per_second = layout.per_second if self.cls == "metered" else 0.0
        self.is_ready = False
        self.report: ConsumerReport | None = None
        self.member: Member | None = None
        self._layout = layout

    def start(self, supervisor: Supervisor) -> None:
        credentials: Path = self._layout.plant.parent / f"{self.name}.toml"
        task = ConsumerTask(
            self._layout.url,
            str(credentials),
            self._layout.nodes[self.node],
            [f"md.us.eq.*.{self.model}"],
            self.cls,
            self.per_second,
        )
        arguments = [msgspec.json.encode(task).decode()]
        self.member = supervisor.add(Member(self.name, "penstock.demo.consumer:main", arguments, self.take))

    def take(self, line: bytes) -> None:
        told = msgspec.json.decode(line, type=Subscribed | ConsumerReport)
        if isinstance(told, Subscribed):
            self.is_ready = True
        else:
            self.report = told

    @property
    def fault(self) -> str:
        return self.member.fault if self.member is not None else ""

    def has_all(self, published: Published) -> bool:
        """Whether its last records are the newest there are; who must have every message has them all besides."""
        if self.report is None:
            return False
        count = published.counts.get(self.model, 0)
        if self.cls == "adaptive":
            return self.report.newest == published.newest.get(self.model)
        return self.report.versions == count and (self.cls != "critical" or self.report.messages == count)

    def line(self, published: Published, seconds: float) -> str:
        """What it got, for the summary."""
        if self.fault:
            return f"{self.name} ({self.cls}): [red]until {self.fault}[/red]"
        report = self.report
        count = published.counts.get(self.model, 0)
        if report is None:
            return f"{self.name} ({self.cls}): [red]nothing[/red]"
        lost = f"[red]{report.lost} losses told[/red]" if report.lost else "0 lost"
        is_known = published.is_whole or self.cls == "adaptive"
        match self.cls:
            case "critical":
                what = "every one, once"
                if not is_known:
                    what = "nobody got everything to compare with"
                elif report.messages != count:
                    what = f"[red]{difference(count, report.messages)}[/red]"
                return f"{self.name} (critical, by {self.node}): {report.messages:,} {self.model}s, {what}; {lost}"
            case "metered":
                last = (
                    "the last of each came" if self.has_all(published) else "[red]the last of some did not come[/red]"
                )
                if not is_known:
                    last = "nobody got everything to compare the last ones with"
                rate = report.messages / max(report.items, 1) / max(seconds, 1e-9)
                return (
                    f"{self.name} (metered at {self.per_second:g}/s, by {self.node}): {report.messages:,} of "
                    f"{count:,} {self.model}s of {report.items:,} items, {rate:.1f}/s each; the others went into "
                    f"later ones, and {last}; {lost}"
                )
            case _:
                newest = "always the newest" if self.has_all(published) else "[red]but not the last ones[/red]"
                return (
                    f"{self.name} (adaptive, by {self.node}): {report.messages:,} reads at its own pace for "
                    f"{count:,} {self.model}s of {report.items:,} items, {newest}"
                )


def difference(wanted: int, got: int) -> str:
    """What is wrong with a count."""
    return f"{wanted - got:,} missing" if got < wanted else f"{got - wanted:,} more than there were"


def published_of(tallies: Mapping[str, Tally], consumers: Sequence[Consumer], *, is_whole: bool) -> Published:
    """As a subscriber saw it who gets everything; the newest records are those of whoever is ahead."""
    newest: dict[str, int] = {}
    for each in consumers:
        if each.report is not None:
            newest[each.model] = max(newest.get(each.model, 0), each.report.newest)
    return Published({model: tally.count for model, tally in tallies.items()}, newest, is_whole)


def make_consumers(layout: Layout) -> Sequence[Consumer]:
    return [Consumer(name, layout) for name in CONSUMERS]
