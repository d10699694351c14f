"""`penstock bench`: measure, beside a limit or a peer."""

import difflib
import textwrap
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from penstock.base.errors import ConfigurationError
from penstock.bench.catalogue import BENCHES
from penstock.bench.harness import Result

UNWRAPPED = 1_000_000


def bench(
    names: Annotated[list[str] | None, typer.Argument(help="Benches to run. Default: all.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line, for programs.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the benches and exit.")] = False,
) -> None:
    """Measure Penstock on this machine, each figure beside a physical limit or a peer in the same run."""
    chosen = names or [name for name, bench in BENCHES.items() if list_ or not bench.is_part]
    for name in chosen:
        if name not in BENCHES:
            near = difflib.get_close_matches(name, BENCHES, n=1)
            guess = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigurationError(f"no bench is called {name!r}", hint=f"{guess}there are: {', '.join(BENCHES)}")
    console = Console()
    width = console.width if console.is_terminal else UNWRAPPED
    if list_:
        size = max(map(len, chosen)) + 2
        for name in chosen:
            known = BENCHES[name]
            if json:
                typer.echo(msgspec.json.encode({"name": name, "summary": known.summary}))
            else:
                typer.echo(_wrap(f"  {name:{size}}{known.summary}", size + 2, width))
        return
    for name in chosen:
        Console(stderr=True).print(f"measuring {name} ...", style="dim")
        results = []
        try:
            for result in BENCHES[name].run():
                results.append(result)
                if json:
                    typer.echo(msgspec.json.encode(result))
        except ModuleNotFoundError as error:
            message = f"bench {name} compares with {error.name}, which is not installed"
            raise ConfigurationError(message, hint=f'make bench ARGS="{name}" installs it') from None
        if not json:
            figures, conditions = _report(name, results, width)
            typer.echo(figures)
            typer.secho(conditions, dim=True)


def _report(name: str, results: list[Result], width: int) -> tuple[str, str]:
    """The figures, one per line, and their conditions, each printed once."""
    metric_size = max(len(each.metric) for each in results)
    value_size = max(len(_number(each.value)) for each in results)
    unit_size = max(len(each.unit) for each in results)
    lines = [name]
    for each in results:
        line = f"  {each.metric:{metric_size}}  {_number(each.value):>{value_size}} {each.unit:{unit_size}}"
        against = f"  ({each.ratio:,.3g} × {each.against})" if each.against else ""
        if each.missing:
            line, against = f"  {each.metric:{metric_size}}  not measured: {each.missing}", ""
        lines.append(_wrap(f"{line}{against}".rstrip(), metric_size + 4, width))
    conditions = dict.fromkeys(part for each in results for part in each.conditions.split("; ") if part)
    return "\n".join(lines), _wrap(f"  {'; '.join(conditions)}", 2, width)


def _wrap(line: str, indent: int, width: int) -> str:
    """Wrap a line at the width of the terminal, with an indent."""
    if len(line) <= width:
        return line
    return textwrap.fill(line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:,.4g}"
