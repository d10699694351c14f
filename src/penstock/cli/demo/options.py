"""The options of `penstock demo`."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from penstock.demo.reports import DemoOptions


@dataclass(frozen=True, kw_only=True)
class DemoCommandOptions:
    """As the command line has them."""

    seconds: Annotated[float, typer.Option(min=0.1, help="How long to run; without it, until Ctrl-C.")] = float("inf")
    rate: Annotated[float, typer.Option(min=1, max=5_000_000, help="Messages per second of the exchange.")] = 10_000
    subscribers: Annotated[
        int,
        typer.Option(
            min=1, max=64, help="How many processes subscribe; of several, the last without the filter module."
        ),
    ] = 2
    symbols: Annotated[int, typer.Option(min=1, max=20_000, help="How many instruments are traded.")] = 500
    loss: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="Share of datagrams lost on line A; line B fills in.")
    ] = 0.0
    kill_active: Annotated[
        bool, typer.Option("--kill-active", help="Kill the active adapter in mid-run, and tell what subscribers saw.")
    ] = False
    kill_filter: Annotated[
        bool, typer.Option("--kill-filter", help="Kill the filter module in mid-run; it is started again.")
    ] = False
    kill_router: Annotated[
        bool, typer.Option("--kill-router", help="Kill the active message router in mid-run; the other takes over.")
    ] = False
    tree: Annotated[
        bool, typer.Option("--tree/--no-tree", help="Run a distribution tree, and a console for the browser.")
    ] = True
    router: Annotated[
        bool, typer.Option("--router/--no-router", help="Run a pair of message routers, with trades going through it.")
    ] = True
    opens: Annotated[bool, typer.Option("--open", help="Open the console in this machine's browser.")] = False
    spin: Annotated[bool, typer.Option(help="Adapters look again and again: quicker, a whole core each.")] = False
    seed: Annotated[int, typer.Option(min=0, help="Another seed, another day; the same seed, the same one.")] = 1
    pipeline: Annotated[
        bool | None,
        typer.Option(
            "--pipeline/--no-pipeline",
            help="Archive with Spark what is published, and show bars and an audit; unless told, if it is installed.",
        ),
    ] = None
    keep: Annotated[
        Path | None, typer.Option(help="Keep the archive and the audit's page in this directory, which is made.")
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
            pipeline=_has_spark() if self.pipeline is None else self.pipeline,
        )


def _has_spark() -> bool:
    return importlib.util.find_spec("pyspark") is not None
