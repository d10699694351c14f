"""`penstock bench`: measure, beside a limit or a peer."""

import sys
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from penstock.base.errors import LocalProtocolError
from penstock.bench.catalogue import BENCHES
from penstock.bench.harness import Result


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which benches to run; all of them when none is named.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line, for programs.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Say what there is and stop.")] = False,
) -> None:
    """Measure Penstock on this machine, each figure beside a physical limit or a peer in the same run."""
    console = Console()
    if list_:
        for known in BENCHES.values():
            console.print(f"  {known.name:12}{known.summary}", highlight=False)
        return
    chosen = names or list(BENCHES)
    for name in chosen:
        if name not in BENCHES:
            raise LocalProtocolError(f"no bench is called {name!r}", hint=f"there are: {', '.join(BENCHES)}")
    for name in chosen:
        Console(stderr=True).print(f"measuring {name} ...", style="dim")
        results = []
        for result in BENCHES[name].run():
            results.append(result)
            if json:
                sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
                sys.stdout.flush()
        if not json:
            console.print(_table(name, results))


def _table(name: str, results: list[Result]) -> Table:
    table = Table(title=name, title_justify="left")
    table.add_column("metric")
    table.add_column("value", justify="right")
    table.add_column("unit")
    table.add_column("against")
    table.add_column("", justify="right")
    table.add_column("ratio", justify="right")
    table.add_column("conditions", overflow="fold")
    for each in results:
        ratio = f"{each.ratio:,.3g}" if each.against else ""
        against_value = f"{each.against_value:,.4g}" if each.against else ""
        table.add_row(each.metric, _number(each.value), each.unit, each.against, against_value, ratio, each.conditions)
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:,.4g}"
