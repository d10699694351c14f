"""`penstock demo`: a whole plant on this machine, from an exchange to its subscribers; and the death of a part."""

import time
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from penstock.base.clock import NS_PER_MS, NS_PER_US
from penstock.cli.interrupt import Interrupt, interruptible
from penstock.demo.plant import DemoPlant, Subscriber
from penstock.demo.reports import DemoOptions

FRAME_SECONDS = 0.25
LINE_SECONDS = 1.0
PERCENTILES = (50, 99, 99.9)
KILL_AFTER = 0.5
"""Share of the run after which the active adapter is killed; of an endless run, after this many seconds."""

KILL_SECONDS = 5.0
RATE_KEPT = 0.9
"""Share of the wanted messages below which the summary says that the exchange was too slow."""


def demo(
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to run; without it, until Ctrl-C.")] = float("inf"),
    rate: Annotated[float, typer.Option(min=1, max=5_000_000, help="Messages per second of the exchange.")] = 10_000,
    subscribers: Annotated[int, typer.Option(min=1, max=64, help="How many processes subscribe.")] = 2,
    symbols: Annotated[int, typer.Option(min=1, max=20_000, help="How many instruments are traded.")] = 500,
    loss: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="Share of datagrams lost on line A; line B fills in.")
    ] = 0.0,
    kill_active: Annotated[
        bool, typer.Option("--kill-active", help="Kill the active adapter in mid-run, and tell what subscribers saw.")
    ] = False,
    spin: Annotated[bool, typer.Option(help="Adapters look again and again: quicker, a whole core each.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, another day; the same seed, the same one.")] = 1,
) -> None:
    """Run an exchange with lines A and B, an active and a backup feed adapter, an administration server and subscribers
    on this machine, and show how fast and how completely messages arrive."""
    console = Console(highlight=False)
    options = DemoOptions(rate=rate, subscribers=subscribers, symbols=symbols, loss=loss, spin=spin, seed=seed)
    with interruptible() as interrupt, DemoPlant(options) as plant:
        with console.status("starting the plant …"):
            is_started = plant.start(lambda: interrupt.is_wanted)
        ran_seconds = 0.0
        if is_started:
            kill_at = min(KILL_AFTER * seconds, KILL_SECONDS) if kill_active else float("inf")
            ran_seconds = _run(console, plant, seconds, kill_at, interrupt)
            plant.finish()
            _conclude(console, plant, ran_seconds)
        faults = plant.faults
    for fault in faults:
        Console(stderr=True, highlight=False).print(f"[red]{fault}[/red]")
    if faults or (is_started and not all(_is_complete(plant, each) for each in plant.subscribers)):
        raise typer.Exit(1)


def _run(console: Console, plant: DemoPlant, seconds: float, kill_at: float, interrupt: Interrupt) -> float:
    """Show the plant at work until time is up; returns how long it was."""
    started = time.monotonic()
    interval, shown = (FRAME_SECONDS if console.is_terminal else LINE_SECONDS), 0.0
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while plant.is_working and not interrupt.is_wanted and (elapsed := time.monotonic() - started) < seconds:
            plant.poll(min(FRAME_SECONDS, seconds - elapsed))
            elapsed = time.monotonic() - started
            if elapsed >= kill_at and plant.kill is None and (killed := plant.kill_active()):
                console.print(f"{elapsed:6.1f} s  kill -9 of the active adapter, {killed}")
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
    for each in plant.subscribers:
        latencies = [f"{each.latency.percentile(q) / NS_PER_US:,.1f}" for q in PERCENTILES]
        copies, lost = (each.report.duplicates, each.report.lost) if each.report else (0, 0)
        name = f"[red]{each.name}[/red]" if each.fault else each.name
        table.add_row(
            name,
            "subscriber",
            f"{each.rate.per_second:,.0f}",
            f"{each.messages:,}",
            *latencies,
            f"{copies:,}",
            f"{lost:,}",
        )
    return table


def _line(plant: DemoPlant, elapsed: float) -> str:
    """The state of things where no table can be redrawn."""
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
    if sent < RATE_KEPT * plant.options.rate * ran_seconds:
        lines.append(f"[red]The exchange could not keep its rate of {plant.options.rate:,.0f} messages/s.[/red]")
    for each in plant.subscribers:
        lines += _account(plant, each)
    if plant.kill is not None:
        new = next((node.name for node in plant.running.adapters() if node.name != plant.kill.adapter), "nobody")
        lines.append(f"{plant.kill.adapter} was the active adapter and was killed with -9; {new} took over.")
        for each in plant.subscribers:
            at_kill, otherwise = plant.gap_at_kill_ns(each) / NS_PER_MS, plant.gap_otherwise_ns(each) / NS_PER_MS
            lines.append(
                f"  {each.name}: longest gap between two deliveries {at_kill:,.1f} ms around the kill, "
                f"{otherwise:,.1f} ms in an ordinary second"
            )
    lines.append("Latencies are in µs from an adapter's receipt of the source message to the subscriber's Python code.")
    console.print("\n".join(lines), soft_wrap=True)


def _is_complete(plant: DemoPlant, subscriber: Subscriber) -> bool:
    return subscriber.messages == plant.made and (subscriber.report is None or subscriber.report.lost == 0)


def _account(plant: DemoPlant, subscriber: Subscriber) -> list[str]:
    """What became of everything, for one subscriber."""
    report, latency = subscriber.report, subscriber.latency
    missing = plant.made - subscriber.messages
    verdict = "every message, once" if missing == 0 else f"[red]{missing:,} missing[/red]"
    if subscriber.fault:
        verdict = f"[red]until {subscriber.fault}[/red]"
    parts = [f"{subscriber.name}: {subscriber.messages:,} delivered ({verdict})"]
    if report is not None:
        parts.append(f"{report.duplicates:,} copies from the other adapter suppressed")
        parts.append(f"{report.repairs:,} packets repaired")
        parts.append(f"[red]{report.lost:,} lost[/red]" if report.lost else "0 lost")
    measured = "  ".join(f"p{q:g} {latency.percentile(q) / NS_PER_US:,.1f}" for q in PERCENTILES)
    return ["; ".join(parts), f"  latency {measured}  max {latency.maximum / NS_PER_US:,.1f}"]
