"""The demo's consumers of distribution nodes: an algorithm that needs every trade, a pricing engine that needs the
newest quotes, and a slow screen that shows a few quotes per second. One plant feeds all, and none affects another.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from penstock.demo.layout import CONSUMERS, Layout
from penstock.demo.reports import ConsumerReport, ConsumerTask, Subscribed, Tally
from penstock.node.member import Member
from penstock.node.supervisor import Supervisor


class Published(msgspec.Struct, frozen=True):
    """Published messages, by model."""

    counts: dict[str, int]
    newest: dict[str, int]
    """Sum of the source numbers of the last records of all items."""

    is_whole: bool
    """True if the counting subscriber received everything."""


class Consumer:
    """The demo plant's handle to one consuming process."""

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
        self.member = supervisor.start(self.name, "penstock.demo.consumer:main", arguments, self.take)

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
        """True if its last records are the newest; a critical consumer must also have every message."""
        if self.report is None:
            return False
        count = published.counts.get(self.model, 0)
        if self.cls == "adaptive":
            return self.report.newest == published.newest.get(self.model)
        return self.report.versions == count and (self.cls != "critical" or self.report.messages == count)

    def line(self, published: Published, seconds: float) -> str:
        """Return the line for the summary."""
        if self.fault:
            return f"{self.name} ({self.cls}): [red]until {self.fault}[/red]"
        report = self.report
        count = published.counts.get(self.model, 0)
        if report is None:
            return f"{self.name} ({self.cls}): [red]nothing[/red]"
        lost = f"[red]{report.lost} losses reported[/red]" if report.lost else "0 lost"
        is_known = published.is_whole or self.cls == "adaptive"
        match self.cls:
            case "critical":
                what = "every one, once"
                if not is_known:
                    what = "no subscriber received everything for comparison"
                elif report.messages != count:
                    what = f"[red]{difference(count, report.messages)}[/red]"
                return f"{self.name} (critical, by {self.node}): {report.messages:,} {self.model}s, {what}; {lost}"
            case "metered":
                last = (
                    "the last update of each item arrived"
                    if self.has_all(published)
                    else "[red]the last updates of some items are missing[/red]"
                )
                if not is_known:
                    last = "no subscriber received everything for comparison"
                rate = report.messages / max(report.items, 1) / max(seconds, 1e-9)
                return (
                    f"{self.name} (metered at {self.per_second:g}/s, by {self.node}): {report.messages:,} of "
                    f"{count:,} {self.model}s of {report.items:,} items, {rate:.1f}/s each; others conflated into "
                    f"later ones, and {last}; {lost}"
                )
            case _:
                newest = "always the newest" if self.has_all(published) else "[red]but not the last ones[/red]"
                return (
                    f"{self.name} (adaptive, by {self.node}): {report.messages:,} reads at its own pace for "
                    f"{count:,} {self.model}s of {report.items:,} items, {newest}"
                )


def difference(wanted: int, got: int) -> str:
    """Describe the difference between two counts."""
    return f"{wanted - got:,} missing" if got < wanted else f"{got - wanted:,} more than published"


def published_of(tallies: Mapping[str, Tally], consumers: Sequence[Consumer], *, is_whole: bool) -> Published:
    """Return the messages seen by a subscriber that receives everything; the newest records come from the most advanced
    one.
    """
    newest: dict[str, int] = {}
    for each in consumers:
        if each.report is not None:
            newest[each.model] = max(newest.get(each.model, 0), each.report.newest)
    return Published({model: tally.count for model, tally in tallies.items()}, newest, is_whole)


def make_consumers(layout: Layout) -> Sequence[Consumer]:
    return [Consumer(name, layout) for name in CONSUMERS]
