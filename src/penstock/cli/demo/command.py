"""`penstock demo`: a whole plant on this machine, from an exchange to its subscribers, in which parts can be killed."""

import time
import webbrowser
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND, NS_PER_US
from penstock.base.files import make_directory
from penstock.cli.common.interrupt import Interrupt, interruptible
from penstock.cli.common.options import takes_options
from penstock.cli.demo.account import PERCENTILES, account, filtered, overload
from penstock.cli.demo.options import DemoCommandOptions
from penstock.demo.plant import DemoPlant
from penstock.demo.reports import ArchiveResult
from penstock.demo.routing import ROUTERS
from penstock.demo.verdicts import is_complete

Kill: TypeAlias = Callable[[], str]
"""Kills a node and returns its name; empty if there is none to kill now."""

FRAME_SECONDS = 0.25
LINE_SECONDS = 1.0
KILL_AFTER = 0.5
"""Share of the run after which the active adapter is killed; in an endless run, the number of seconds."""

KILL_SECONDS = 5.0
RECOVERY_SECONDS = 15.0
"""Maximum extension of the run until a killed filter module serves again."""


@takes_options(DemoCommandOptions)
def demo(options: DemoCommandOptions) -> None:
    """Run an exchange with lines A and B, an active and a backup feed adapter, an administration server, a filter
    module and subscribers on this machine, and measure latency and losses. In addition, a ticker plant, a multiplexer
    and an edge cache deliver the same messages to an algorithm that needs every trade, to pricing that needs the newest
    quotes, and to a slow screen.

    Subscribers get all messages except order book changes through the filter module; the last one gets them without it,
    for comparison.

    A distribution tree delivers quotes and trades to the console, a page for the browser at the printed address: it
    shows all nodes and can kill them.

    Trades of a few symbols go through a pair of message routers as assured messages, from a booking process to a
    clearing process: acknowledged messages are not lost.

    Finally, Spark archives the adapters' messages: tables of quotes, trades and bars, and an audit.
    """
    console = Console(highlight=False)
    wanted, keep = options.of_plant(), options.keep
    if keep is not None:
        make_directory(keep)
    console.print("starting …")
    with interruptible() as interrupt, DemoPlant(wanted, keep) as plant:
        with console.status("starting the plant, and Spark behind it …" if wanted.pipeline else "starting the plant …"):
            is_started = plant.start(lambda: interrupt.is_wanted)
        ran_seconds = 0.0
        if is_started:
            _show_console(console, plant, opens=options.opens)
            kills = _kills(plant, options)
            ran_seconds = _run(console, plant, options.seconds, kills, interrupt)
            if interrupt.is_wanted:
                console.print("stopping: messages on their way are still delivered; Ctrl-C again stops at once")
            with console.status("delivering the rest, completing and auditing the archive …"):
                plant.finish()
            _conclude(console, plant, ran_seconds)
            if plant.archiving is not None and plant.archiving.result is not None:
                _show_archive(console, plant.archiving.result, keep)
        faults = plant.faults
    for fault in faults:
        Console(stderr=True, highlight=False).print(f"[red]{fault}[/red]")
    if faults or (is_started and not is_complete(plant)):
        raise typer.Exit(1)


def _show_console(console: Console, plant: DemoPlant, *, opens: bool) -> None:
    if not plant.console:
        return
    operations = plant.operations
    console.print(f"Console: {plant.console}", soft_wrap=True)
    console.print(f"  log in as {operations.client} with the secret {operations.secret}", soft_wrap=True)
    if opens:
        webbrowser.open(plant.console)


def _kills(plant: DemoPlant, options: DemoCommandOptions) -> dict[str, tuple[float, Kill]]:
    """The nodes to kill, with the times and functions."""
    at = min(KILL_AFTER * options.seconds, KILL_SECONDS)
    kills: dict[str, tuple[float, Kill]] = {}
    if options.kill_active:
        kills["the active adapter"] = at, plant.kill_active
    if options.kill_filter:
        kills["the filter module"] = at * (1 + KILL_AFTER * options.kill_active), plant.kill_filter
    if options.kill_router:
        kills["the active message router"] = at, plant.kill_router
    return kills


def _run(
    console: Console, plant: DemoPlant, seconds: float, kills: dict[str, tuple[float, Kill]], interrupt: Interrupt
) -> float:
    """Show the running plant until time is up; return the elapsed time."""
    started = time.monotonic()
    interval, shown = (FRAME_SECONDS if console.is_terminal else LINE_SECONDS), 0.0
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while plant.is_working and not interrupt.is_wanted:
            elapsed = time.monotonic() - started
            if elapsed >= seconds and not (plant.is_recovering and elapsed < seconds + RECOVERY_SECONDS):
                break
            plant.poll(FRAME_SECONDS if elapsed >= seconds else min(FRAME_SECONDS, seconds - elapsed))
            elapsed = time.monotonic() - started
            for what, (at, kill) in list(kills.items()):
                if elapsed >= at and (killed := kill()):
                    console.print(f"{elapsed:6.1f} s  kill -9 of {what}, {killed}")
                    del kills[what]
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
    table.add_row(*_filter_row(plant))
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


def _filter_row(plant: DemoPlant) -> list[str]:
    status = plant.filter.filtering
    if plant.filter.member is None or status is None:
        return [f"[red]{plant.filter.name}[/red]", "[red]down[/red]"]
    return [plant.filter.name, f"passed {status.passed:,}", "", f"{status.messages:,}"]


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


def _conclude(console: Console, plant: DemoPlant, ran_seconds: float) -> None:
    sent = plant.exchange.sent
    lines = [
        (
            f"In {ran_seconds:.1f} s the exchange sent {sent:,} messages on two lines; "
            f"the adapters made {plant.made:,} application messages of them."
        )
    ]
    lines += overload(plant, ran_seconds)
    for each in plant.subscribers:
        lines += account(plant, each)
    lines += filtered(plant)
    lines.append("Through the ticker plant, each at its own pace:")
    lines += [f"  {each.line(plant.published, ran_seconds)}" for each in plant.consumers]
    lines += _tree_lines(plant)
    if plant.bookings is not None:
        lines += plant.bookings.lines()
    for kill in plant.kills:
        lines.append(_aftermath(plant, kill.node))
        for each in plant.subscribers:
            at_kill, otherwise = plant.gap_at_kill_ns(each, kill) / NS_PER_MS, plant.gap_otherwise_ns(each) / NS_PER_MS
            lines.append(
                f"  {each.name}: longest gap between two deliveries {at_kill:,.1f} ms around the kill, "
                f"{otherwise:,.1f} ms in an ordinary second"
            )
    lines.append("Latencies are in µs from an adapter's receipt of the source message to the subscriber's Python code.")
    console.print("\n".join(lines), soft_wrap=True)


def _tree_lines(plant: DemoPlant) -> list[str]:
    agents = plant.agents
    root = next((each for each in agents.values() if each.state == "root"), None)
    if root is None:
        return []
    numbered = sum(stream.last for stream in root.streams)
    # from their paths, because at the end some agents have already lost their parents
    below = [f"{each.name} below {each.path[-2]}" for each in agents.values() if len(each.path) > 1]
    return [
        f"Through the tree, {numbered:,} quotes and trades, each numbered once by its root:",
        f"  {', '.join(below)}",
    ]


def _aftermath(plant: DemoPlant, name: str) -> str:
    if name in ROUTERS:
        bookings, starts = plant.bookings, plant.running.nodes[name].starts
        active = f"{bookings.active.name} is active, in epoch {bookings.epoch}" if bookings and bookings.active else ""
        return f"{name} was the active message router and was killed with -9: {starts} starts; {active}."
    if name == plant.filter.name:
        return f"{name} was killed with -9 and started again: {plant.running.nodes[name].starts} starts."
    new = next((node.name for node in plant.running.adapters() if node.name != name), "nobody")
    return f"{name} was the active adapter and was killed with -9; {new} took over."


def _show_archive(console: Console, result: ArchiveResult, keep: Path | None) -> None:
    """Show the tables, bars and audit of the archive."""
    console.print("\nBehind it, Spark archived what the adapters published:")
    for line in result.balance:
        console.print(f"  {line}", soft_wrap=True)
    tables = ", ".join(f"{name} {rows:,}" for name, rows in sorted(result.tables.items()))
    console.print(f"  tables and their rows: {tables}", soft_wrap=True)
    if result.delays_s:
        delays = sorted(result.delays_s)
        console.print(f"  archived {delays[len(delays) // 2]:.1f} s after it was published (median)")
    if result.bars:
        console.print(_bars(result))
    console.print(f"Audit: {'[green]good[/green]' if result.verdict == 'good' else f'[red]{result.verdict}[/red]'}")
    for finding in result.findings:
        console.print(f"  {finding}", soft_wrap=True)
    where = f"The archive and the audit's page are in {keep}." if keep is not None else "--keep DIR keeps all of it."
    console.print(where, soft_wrap=True)


def _bars(result: ArchiveResult) -> Table:
    table = Table(title="minute bars with the most volume", box=None, padding=(0, 2, 0, 0), title_justify="left")
    for column in ("symbol", "from (UTC)", "open", "high", "low", "close", "vwap", "volume", "trades"):
        table.add_column(column, justify="left" if column == "symbol" else "right", no_wrap=True)
    for bar in result.bars:
        start = datetime.fromtimestamp(bar.start_ns // NS_PER_SECOND, UTC)
        table.add_row(bar.symbol, f"{start:%H:%M}", *bar.prices, f"{bar.volume:,}", f"{bar.trades:,}")
    return table
