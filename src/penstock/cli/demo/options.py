"""The options of `penstock demo`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from penstock.demo.reports import DemoOptions


@dataclass(frozen=True, kw_only=True)
class DemoCommandOptions:
    """The options as given on the command line."""

    seconds: Annotated[
        float,
        typer.Option(min=0.1, help="Duration of the whole plant; inf: until Ctrl-C."),
    ] = 20.0
    critical_path: Annotated[
        bool, typer.Option("--critical-path/--no-critical-path", help="First run the critical path alone.")
    ] = True
    rate: Annotated[float, typer.Option(min=1, max=5_000_000, help="Messages per second of the exchange.")] = 10_000
    subscribers: Annotated[
        int,
        typer.Option(min=1, max=64, help="Number of subscribers; the last of several does not use the filter module."),
    ] = 2
    symbols: Annotated[int, typer.Option(min=1, max=20_000, help="Number of instruments.")] = 500
    loss: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="Share of datagrams lost on line A; line B has them.")
    ] = 0.0
    kill_active: Annotated[
        bool,
        typer.Option(
            "--kill-active",
            help="Also kill the active adapter of the whole plant, and report the effect.",
        ),
    ] = False
    kill_filter: Annotated[
        bool, typer.Option("--kill-filter", help="Kill the filter module during the run; it is restarted.")
    ] = False
    kill_router: Annotated[
        bool,
        typer.Option("--kill-router", help="Kill the active message router during the run; the standby takes over."),
    ] = False
    tree: Annotated[
        bool, typer.Option("--tree/--no-tree", help="Run a distribution tree, and a console for the browser.")
    ] = True
    router: Annotated[bool, typer.Option("--router/--no-router", help="Run a pair of message routers, for trades.")] = (
        True
    )
    opens: Annotated[bool, typer.Option("--open", help="Open the console in this machine's browser.")] = False
    spin: Annotated[bool, typer.Option(help="Adapters poll continuously, which is faster and takes a core each.")] = (
        False
    )
    seed: Annotated[int, typer.Option(min=0, help="Seed of the generated day; equal seeds generate equal days.")] = 1
    spark: Annotated[bool, typer.Option("--spark", help="Archive the messages with Spark, and audit the archive.")] = (
        False
    )
    keep: Annotated[
        Path | None, typer.Option(help="Keep logs, the archive and the audit's page in this new directory.")
    ] = None
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.HTML", help="Write the details of every process to this page.")
    ] = None

    def of_plant(self) -> DemoOptions:
        return DemoOptions(
            rate=self.rate,
            subscribers=self.subscribers,
            symbols=self.symbols,
            loss=self.loss,
            tree=self.tree,
            router=self.router,
            spin=self.spin,
            seed=self.seed,
            pipeline=self.spark,
        )
