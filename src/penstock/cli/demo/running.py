"""Shows a running demo plant: a table in a terminal, otherwise a line for each second."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.live import Live
from rich.table import Table

from penstock.base.clock import NS_PER_US
from penstock.cli.common.interrupt import Interrupt
from penstock.cli.demo.account import PERCENTILES
from penstock.demo.plant import DemoPlant
from penstock.node.running import NodeProcess

FRAME_SECONDS = 0.25
LINE_SECONDS = 1.0
RECOVERY_SECONDS = 15.0
"""Maximum extension of the run until a killed filter module serves again."""


class Kill(NamedTuple):
    """A kill to be done during the run."""

    what: str
    at_s: float
    kill: Callable[[], str]
    """Kills the node and returns its name; returns an empty string if there is nothing to kill now."""


def run(console: Console, plant: DemoPlant, seconds: float, kills: Sequence[Kill], interrupt: Interrupt) -> float:
    """Show the running plant until time is up; return the elapsed time."""
    started = time.monotonic()
    pending = list(kills)
    interval, shown = (FRAME_SECONDS if console.is_terminal else LINE_SECONDS), 0.0
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while plant.is_working and not interrupt.is_wanted:
            elapsed = time.monotonic() - started
            if elapsed >= seconds and not (plant.is_recovering and elapsed < seconds + RECOVERY_SECONDS):
                break
            plant.poll(FRAME_SECONDS if elapsed >= seconds else min(FRAME_SECONDS, seconds - elapsed))
            elapsed = time.monotonic() - started
            for each in list(pending):
                if elapsed >= each.at_s and (killed := each.kill()):
                    console.print(f"{elapsed:6.1f} s  kill -9 of {each.what}, {killed}")
                    pending.remove(each)
            if elapsed - shown < interval:
                continue
            shown = elapsed
            if console.is_terminal:
                title = f"{plant.url} after {elapsed:.1f} s (Ctrl-C ends it)"
                live.update(_table(plant, title), refresh=True)
            else:
                console.print(_line(plant, elapsed), soft_wrap=True)
    return time.monotonic() - started


def _table(plant: DemoPlant, title: str) -> Table:
    table = Table(title=title, box=None, padding=(0, 2, 0, 0), title_justify="left")
    for column in ("process", "role", "msgs/s", "messages", "p50 µs", "p99 µs", "p99.9 µs", "copies", "lost"):
        table.add_column(column, justify="left" if column in ("process", "role") else "right", no_wrap=True)
    table.add_row("exchange", "lines A, B", f"{plant.exchange_rate.per_second:,.0f}", f"{plant.exchange.sent:,}")
    for node in plant.running.adapters():
        status = node.status
        if node.member is None or status is None:
            table.add_row(f"[red]{node.name}[/red]", "[red]down[/red]")
            continue
        role = status.role if status.role == "active" or status.is_synchronised else f"{status.role}, not synchronised"
        count = sum(stream.next_message_sequence - 1 for stream in status.streams)
        latencies = [f"{status.latency_us.get(f'p{q:g}', 0.0):,.1f}" for q in PERCENTILES]
        table.add_row(node.name, role, f"{status.health.messages_per_s:,.0f}", f"{count:,}", *latencies)
    if plant.filter is not None:
        table.add_row(*_filter_row(plant.filter))
    for each in plant.subscribers:
        latencies = [f"{each.latency.percentile(q) / NS_PER_US:,.1f}" for q in PERCENTILES]
        copies, lost = (each.report.duplicates, each.report.lost) if each.report else (0, 0)
        name = f"[red]{each.name}[/red]" if each.fault else each.name
        table.add_row(
            name,
            "subscriber by filter" if each.is_filtered else "subscriber",
            f"{each.rate.per_second:,.0f}",
            f"{each.messages:,}",
            *latencies,
            f"{copies:,}",
            f"{lost:,}",
        )
    for consumer in plant.consumers:
        report = consumer.report
        table.add_row(
            f"[red]{consumer.name}[/red]" if consumer.fault else consumer.name,
            f"{consumer.cls} by {consumer.node}",
            "",
            f"{report.messages:,}" if report is not None else "",
        )
    if plant.bookings is not None:
        table.add_row(*plant.bookings.row())
    if plant.archiving is not None:
        archived = plant.archiving.report
        role = f"deriving {archived.deriving}" if archived is not None and archived.deriving else "archive"
        table.add_row("pipeline", role, "", f"{plant.archiving.messages:,}")
    return table


def _filter_row(module: NodeProcess) -> list[str]:
    status = module.filtering
    if module.member is None or status is None:
        return [f"[red]{module.name}[/red]", "[red]down[/red]"]
    return [module.name, f"passed {status.passed:,}", "", f"{status.messages:,}"]


def _line(plant: DemoPlant, elapsed: float) -> str:
    """One line of status, for outputs that cannot redraw a table."""
    active = plant.running.active()
    parts = [
        f"{elapsed:6.1f} s",
        f"exchange {plant.exchange.sent:,} sent at {plant.exchange_rate.per_second:,.0f}/s",
        f"active {active.name if active else 'nobody'}",
    ]
    for each in plant.subscribers:
        p50, p99 = (each.latency.percentile(q) / NS_PER_US for q in (50, 99))
        lost = each.report.lost if each.report else 0
        parts.append(f"{each.name} {each.rate.per_second:,.0f}/s p50 {p50:,.0f} µs p99 {p99:,.0f} µs lost {lost:,}")
    return "; ".join(parts)
