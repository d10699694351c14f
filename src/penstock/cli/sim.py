"""`penstock sim`: run plants of the simulator and say whether they kept their promises."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from penstock.sim import Summary, run_seed


def sim(
    seed: Annotated[int, typer.Option(help="The first seed; it decides the plant and everything that happens.")] = 1,
    minutes: Annotated[float, typer.Option(min=0.001, help="Virtual time under load and faults, for each seed.")] = 1.0,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to run, one after the other.")] = 1,
    trace: Annotated[Path | None, typer.Option(help="Write every event of the run to this file.")] = None,
) -> None:
    """Run a simulated plant from a seed: loss, reordering, partitions, crashes, failing disks.

    Checkers judge it from outside: every message delivered exactly once and in order, or reported lost. When they
    object, the command prints the last events, exits with status 1, and the same seed replays the same run.
    """
    console = Console(stderr=True)
    summaries = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("simulating", total=seeds * minutes * 60)
        for number in range(seeds):
            done = number * minutes * 60

            def show(seconds: float, done: float = done, current: int = seed + number) -> None:
                progress.update(task, completed=done + seconds, description=f"seed {current}")

            summaries.append(_run(seed + number, minutes, trace, show))
    Console().print(_table(summaries))


def _run(seed: int, minutes: float, trace: Path | None, show: Callable[[float], None]) -> Summary:
    if trace is None:
        return run_seed(seed, seconds=minutes * 60, progress=show)
    with trace.open("w", encoding="utf-8") as stream:
        return run_seed(seed, seconds=minutes * 60, trace=stream, progress=show)


def _table(summaries: list[Summary]) -> Table:
    table = Table(
        title="every message delivered once and in order, or reported lost", caption="digest: equal for equal runs"
    )
    columns = (
        "seed",
        "virtual s",
        "published",
        "delivered",
        "packets",
        "lost in net",
        "nacks",
        "repairs",
        "reported",
        "crashes",
        "digest",
    )
    for column in columns:
        table.add_column(column, justify="right")
    for each in summaries:
        counts = (
            each.messages_published,
            each.messages_delivered,
            each.packets_sent,
            each.datagrams_lost,
            each.nacks_sent,
            each.repairs_sent,
            each.packets_reported_lost,
            each.crashes,
        )
        table.add_row(
            str(each.seed), f"{each.virtual_seconds:.0f}", *(f"{count:,}" for count in counts), each.digest[:8]
        )
    return table
