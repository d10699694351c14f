"""`penstock sim`: run simulated plants and check their promises."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress

from penstock.base.errors import ConfigurationError, SimulationError
from penstock.base.files import create_or_open
from penstock.sim import SCENARIOS, PlantSummary, SeedRun, Summary, TreeEstimate, estimate_tree

Scenario: TypeAlias = Literal[
    "middleware", "journal", "feed", "filter", "engine", "tree", "lease", "assured", "replicated"
]
COLUMNS = ("seed", "secs", "published", "delivered", "lost", "repairs", "reported", "crashes", "digest")
LEGEND = (
    "secs: virtual; published, delivered: messages; lost: datagrams, by the network;\n"
    "repairs: packets sent again; reported: packets reported lost; digest: equal for\n"
    "equal runs. --json has more."
)

ESTIMATE_SECONDS_MAX = 2.0
"""Virtual time after which an estimate has settled."""


def sim(
    seed: Annotated[int, typer.Option(help="The first seed, which determines the plant and all events.")] = 1,
    minutes: Annotated[float, typer.Option(min=0.001, help="Virtual time under load and faults, for each seed.")] = 1.0,
    seeds: Annotated[int, typer.Option(min=1, help="Number of consecutive seeds to run.")] = 1,
    trace: Annotated[Path | None, typer.Option(help="Write every event of the run to this file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line and seed, for programs.")] = False,
    scenario: Annotated[
        Scenario,
        typer.Option(
            help="Publishers and receivers on a faulty network, a journal on a faulty disk, a feed and its adapters, "
            "filter modules between publishers and applications, a ticker plant with multiplexers and consumers, a "
            "distribution tree with its agents, subscribers and publishers, a message router with its clients, the "
            "lease of a pair of message routers, or such a pair."
        ),
    ] = "middleware",
    subscribers: Annotated[
        int,
        typer.Option(
            min=0,
            help="With --scenario tree: estimate a deployment for this number of subscribers, without running seeds.",
        ),
    ] = 0,
) -> None:
    """Run a simulated plant from a seed, with loss, reordering, partitions, crashes and failing disks.

    External checkers judge the run: every message is delivered exactly once and in order, or reported lost; a
    journal has every acknowledged record after any crash; a feed has one content for every number, whichever adapter
    sends it; each application of a filter module gets exactly the messages of its interests; a ticker plant keeps
    the promises of each delivery class to fast, slow and crashing consumers; a tree heals, and no subscriber misses
    messages without a report; a message router loses no acknowledged message; a lease has at most one holder. On a
    violation, the command prints the last events and exits with status 1; the same seed replays the same run.
    """
    if trace is not None and seeds > 1:
        raise ConfigurationError(
            f"--trace writes the events of one run, but --seeds asks for {seeds}", hint="trace one seed at a time"
        )
    if subscribers:
        _estimate(scenario, subscribers, seed, minutes, json)
        return
    console = Console(stderr=True)
    summaries: list[PlantSummary] = []
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("simulating", total=seeds * minutes * 60)
        for number in range(seeds):
            done = number * minutes * 60

            def show(seconds: float, done: float = done, current: int = seed + number) -> None:
                progress.update(task, completed=done + seconds, description=f"seed {current}")

            summaries.append(_run(scenario, seed + number, minutes, trace, show))
            if json:
                typer.echo(msgspec.json.encode(summaries[-1]))
    if not json:
        typer.echo(_text(scenario, summaries))


def _estimate(scenario: Scenario, subscribers: int, seed: int, minutes: float, json: bool) -> None:
    if scenario != "tree":
        raise ConfigurationError(f"--subscribers cannot be used with {scenario}", hint="use --scenario tree")
    estimate = estimate_tree(subscribers, seed=seed, seconds=min(minutes * 60, ESTIMATE_SECONDS_MAX))
    typer.echo(msgspec.json.encode(estimate) if json else _figures(estimate))


def _figures(estimate: TreeEstimate) -> str:
    lines = [f"a tree for {estimate.subscribers:,} subscribers, as its cores would carry it:"]
    for name, value in msgspec.structs.asdict(estimate).items():
        lines.append(f"  {name.replace('_', ' '):30} {value:>16,.3f}" if isinstance(value, float)
                     else f"  {name.replace('_', ' '):30} {value:>16,}")  # fmt: skip
    return "\n".join(lines)


def _run(
    scenario: Scenario, seed: int, minutes: float, trace: Path | None, show: Callable[[float], None]
) -> PlantSummary:
    run: SeedRun[PlantSummary] = SCENARIOS[scenario]
    if trace is None:
        return run(seed, seconds=minutes * 60, progress=show)
    try:
        with open(create_or_open(trace, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8") as stream:
            return run(seed, seconds=minutes * 60, trace=stream, progress=show)
    except (OSError, SimulationError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError):
            raise
        raise ConfigurationError(f"cannot be written: {cause.strerror}", where=f"--trace {trace}") from None


def _text(scenario: Scenario, summaries: list[PlantSummary]) -> str:
    promise = SCENARIOS[scenario].promise
    plants = [each for each in summaries if isinstance(each, Summary)]
    if plants:
        return _one(plants[0], promise) if len(plants) == 1 else _several(plants, promise)
    return "\n".join(_counted(each, promise) for each in summaries)


def _counted(summary: PlantSummary, promise: str) -> str:
    """One line per counter."""
    counts = msgspec.structs.asdict(summary) | {"digest": summary.digest[:16]}
    del counts["seed"]
    lines = [f"  {name.replace('_', ' '):30} {value:>16}" for name, value in counts.items()]
    return "\n".join([f"seed {summary.seed}: {promise}", *lines])


def _one(summary: Summary, promise: str) -> str:
    """One line per counter."""
    lines = [
        ("virtual time", f"{summary.virtual_seconds:,.1f} s"),
        ("events", f"{summary.events:,}"),
        ("messages published", f"{summary.messages_published:,}"),
        ("messages delivered", f"{summary.messages_delivered:,}"),
        ("packets sent", f"{summary.packets_sent:,}"),
        ("datagrams lost by the network", f"{summary.datagrams_lost:,}"),
        ("NACKs sent", f"{summary.nacks_sent:,}"),
        ("repairs sent", f"{summary.repairs_sent:,}"),
        ("packets reported lost", f"{summary.packets_reported_lost:,}"),
        ("crashes", f"{summary.crashes:,}"),
        ("digest (equal for equal runs)", summary.digest[:16]),
    ]
    return "\n".join([f"seed {summary.seed}: {promise}", *(f"  {what:30} {value:>16}" for what, value in lines)])


def _several(summaries: list[Summary], promise: str) -> str:
    """One line per seed, with aligned columns."""
    rows = [COLUMNS, *(_row(each) for each in summaries)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join([f"{len(summaries)} seeds: {promise}", *lines, LEGEND])


def _row(summary: Summary) -> tuple[str, ...]:
    counts = (
        summary.messages_published,
        summary.messages_delivered,
        summary.datagrams_lost,
        summary.repairs_sent,
        summary.packets_reported_lost,
        summary.crashes,
    )
    seconds = f"{summary.virtual_seconds:.0f}"
    return str(summary.seed), seconds, *(f"{count:,}" for count in counts), summary.digest[:8]
