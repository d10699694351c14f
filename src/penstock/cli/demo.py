"""`penstock demo`: ticks from a publisher to its subscribers, in processes of their own, on this machine."""

import contextlib
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from penstock.base.clock import NS_PER_US
from penstock.base.endpoint import Endpoint, Health
from penstock.base.metrics import Metrics
from penstock.cli.interrupt import Interrupt, interruptible
from penstock.demo import DemoOptions, DemoPlant, Member
from penstock.net.udp import Channel, free_channel

FRAME_SECONDS = 0.25
LINE_SECONDS = 1.0
PERCENTILES = (50, 99, 99.9)
RATE_KEPT = 0.9
"""Share of the wanted messages below which the summary says that the publisher was too slow."""


def demo(
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to run; without it, until Ctrl-C.")] = float("inf"),
    rate: Annotated[float, typer.Option(min=1, max=50_000_000, help="Messages per second.")] = 20_000,
    subscribers: Annotated[int, typer.Option(min=1, max=64, help="How many processes listen.")] = 2,
    symbols: Annotated[int, typer.Option(min=1, max=100_000, help="How many instruments are quoted.")] = 500,
    loss: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="Share of datagrams each subscriber throws away, to be repaired.")
    ] = 0.0,
    spin: Annotated[bool, typer.Option(help="Wait by looking again and again: quicker, a whole core each.")] = False,
    seed: Annotated[int, typer.Option(help="Another seed, other quotes; the same seed, the same ones.")] = 1,
    channel: Annotated[
        str | None, typer.Option(help="The group and port to use, for others to listen too; else a free one.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Serve /metrics and /health here on loopback; 0: a free port.")
    ] = None,
) -> None:
    """Publish made-up quotes by multicast on this machine, and show how fast and how completely they arrive."""
    console = Console(highlight=False)
    options = DemoOptions(
        channel=free_channel() if channel is None else Channel.parse(channel),
        rate=rate,
        subscribers=subscribers,
        symbols=symbols,
        loss=loss,
        spin=spin,
        seed=seed,
    )
    with interruptible() as interrupt, contextlib.ExitStack() as stack:
        plant = stack.enter_context(DemoPlant(options))
        is_started = plant.start(lambda: interrupt.is_wanted)
        if metrics_port is not None and is_started:
            stack.enter_context(_endpoint(plant, metrics_port))
        ran_seconds = _run(console, plant, seconds, interrupt) if is_started else 0.0
        if is_started:
            plant.finish()
    if is_started:
        _conclude(console, plant, ran_seconds)
    for fault in plant.faults:
        Console(stderr=True, highlight=False).print(f"[red]{fault}[/red]")
    if plant.faults:
        raise typer.Exit(1)


def _endpoint(plant: DemoPlant, port: int) -> Endpoint:
    metrics = Metrics()
    for member in plant.members:
        metrics.register(member.counters)

    def health() -> Health:
        return Health(not plant.faults, "; ".join(plant.faults))

    return Endpoint(metrics, health, port=port)


def _run(console: Console, plant: DemoPlant, seconds: float, interrupt: Interrupt) -> float:
    """Show the plant at work until time is up; returns how long it was."""
    started = time.monotonic()
    interval, shown = (FRAME_SECONDS if console.is_terminal else LINE_SECONDS), 0.0
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while plant.is_working and not interrupt.is_wanted and (elapsed := time.monotonic() - started) < seconds:
            plant.poll(min(FRAME_SECONDS, seconds - elapsed))
            elapsed = time.monotonic() - started
            if elapsed - shown < interval:
                continue
            shown = elapsed
            if console.is_terminal:
                title = f"{plant.options.channel} after {elapsed:.1f} s (Ctrl-C ends it)"
                live.update(_table(plant, title), refresh=True)
            else:
                console.print(_line(plant, elapsed), soft_wrap=True)
    return time.monotonic() - started


def _table(plant: DemoPlant, title: str) -> Table:
    table = Table(title=title, box=None, padding=(0, 2, 0, 0), title_justify="left")
    for column in ("process", "msgs/s", "messages", "packets", "p50 µs", "p99 µs", "p99.9 µs", "repairs", "lost"):
        table.add_column(column, justify="left" if column == "process" else "right", no_wrap=True)
    table.add_row(*_row(plant.publisher, "packets_sent", "repairs_sent"))
    for member in plant.subscribers:
        table.add_row(*_row(member, "packets_received", "repairs_received"))
    return table


def _row(member: Member, packets: str, repairs: str) -> list[str]:
    counters = member.counters
    name = f"[red]{member.name}[/red]" if member.fault else member.name
    is_measured = member.role == "subscriber"
    latencies = [f"{member.latency.percentile(q) / NS_PER_US:,.1f}" if is_measured else "" for q in PERCENTILES]
    lost = f"{counters['packets_lost']:,}" if is_measured else ""
    counts = (member.messages, counters[packets])
    return [
        name,
        f"{member.rate:,.0f}",
        *(f"{count:,}" for count in counts),
        *latencies,
        f"{counters[repairs]:,}",
        lost,
    ]


def _line(plant: DemoPlant, elapsed: float) -> str:
    """The state of things where no table can be redrawn."""
    parts = [f"{elapsed:6.1f} s", f"published {plant.publisher.messages:,} at {plant.publisher.rate:,.0f}/s"]
    for member in plant.subscribers:
        p50, p99 = (member.latency.percentile(q) / NS_PER_US for q in (50, 99))
        repaired, lost = member.counters["repairs_received"], member.counters["packets_lost"]
        latency = f"p50 {p50:,.0f} µs p99 {p99:,.0f} µs"
        parts.append(f"{member.name} {member.rate:,.0f}/s {latency} repaired {repaired:,} lost {lost:,}")
    return "; ".join(parts)


def _conclude(console: Console, plant: DemoPlant, ran_seconds: float) -> None:
    publisher = plant.publisher
    counters = publisher.counters
    lines = [
        (
            f"In {ran_seconds:.1f} s on {plant.options.channel}: {publisher.messages:,} messages published in "
            f"{counters['packets_sent']:,} packets; {counters['nacks_received']:,} repair requests came, "
            f"{counters['repairs_sent']:,} packets were sent again."
        )
    ]
    if publisher.messages < RATE_KEPT * plant.options.rate * ran_seconds and not publisher.fault:
        lines.append(f"[red]The publisher could not keep the rate of {plant.options.rate:,.0f} messages/s.[/red]")
    for member in plant.subscribers:
        lines += _account(member, publisher)
    lines.append("Latencies are in µs from the intended send time to the subscriber's Python code.")
    console.print("\n".join(lines), soft_wrap=True)


def _verdict(member: Member, publisher: Member) -> str:
    if member.messages == publisher.messages:
        return "every message"
    if member.fault or publisher.fault:
        return f"[red]until {member.fault or publisher.fault}[/red]"
    return f"[red]{publisher.messages - member.messages:,} missing[/red]"


def _account(member: Member, publisher: Member) -> list[str]:
    """What became of everything, for one subscriber."""
    counters, latency = member.counters, member.latency
    lost = ", ".join(f"{count:,} {cause}" for cause, count in counters.by_cause("packets_lost").items())
    parts = [f"{member.name}: {member.messages:,} delivered ({_verdict(member, publisher)})"]
    if discarded := counters["datagrams_discarded"]:
        parts.append(f"{discarded:,} datagrams discarded on purpose")
    if overflowed := counters["datagrams_overflowed"]:
        parts.append(f"{overflowed:,} datagrams dropped by the kernel")
    if repaired := counters["repairs_received"]:
        parts.append(f"{counters['nacks_sent']:,} NACKs sent, {repaired:,} packets repaired")
    parts.append(f"[red]packets lost: {lost}[/red]" if lost else "0 packets lost")
    if latency.negative_count:
        parts.append(f"{latency.negative_count:,} latencies below zero: a clock was set")
    measured = "  ".join(f"p{q:g} {latency.percentile(q) / NS_PER_US:,.1f}" for q in PERCENTILES)
    return ["; ".join(parts), f"  latency {measured}  max {latency.maximum / NS_PER_US:,.1f}"]
