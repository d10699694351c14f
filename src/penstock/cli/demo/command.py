"""`penstock demo`: first the critical path alone, then a whole plant on this machine, in which nodes can be killed."""

import io
from datetime import UTC, datetime
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from penstock.base.clock import NS_PER_SECOND
from penstock.base.files import make_directory, write_file
from penstock.base.log import configure
from penstock.cli.common.interrupt import Interrupt, interruptible
from penstock.cli.common.options import takes_options
from penstock.cli.demo.account import details, summary
from penstock.cli.demo.critical_path import show_critical_path
from penstock.cli.demo.options import DemoCommandOptions
from penstock.cli.demo.running import Kill, run
from penstock.demo.plant import DemoPlant
from penstock.demo.reports import ArchiveResult
from penstock.demo.verdicts import is_complete, is_exchange_slow
from penstock.web.live.login_links import issue_link, open_console

KILL_AFTER = 0.5
"""Share of the run after which the active adapter is killed."""

KILL_SECONDS = 5.0
LOG_LINES = 5
"""Last lines of a failed process's log that are shown."""

PAGE_WIDTH = 160


@takes_options(DemoCommandOptions)
def demo(options: DemoCommandOptions) -> None:
    """Run Penstock on this machine, and measure latency and losses.

    First, the critical path alone: an exchange with lines A and B, an active and a backup feed adapter, and one
    subscriber. The active adapter is killed halfway.

    Then a whole plant. A filter module serves subscribers of one host; the last subscriber does without it, for
    comparison. A ticker plant, a multiplexer and an edge cache deliver the same messages to an algorithm that needs
    every trade, to pricing that needs the newest quotes, and to a slow screen. A distribution tree delivers quotes and
    trades to the console, a page for the browser at the printed address, which shows all nodes and can kill them.
    Trades of a few symbols go through a pair of message routers as assured messages.

    With --spark, Spark archives the adapters' messages: tables of quotes, trades and bars, and an audit.
    """
    configure(level="ERROR")  # the demo itself shows what happens to its nodes; their logs are files
    console = Console(highlight=False)
    if options.keep is not None:
        make_directory(options.keep)
    faults: list[str] = []
    with interruptible() as interrupt:
        if options.critical_path:
            faults += show_critical_path(console, options.of_plant(), options.seconds, interrupt)
        is_complete = interrupt.is_wanted or _show_plant(console, options, interrupt, faults)
    for fault in faults:
        Console(stderr=True, highlight=False).print(f"[red]{fault}[/red]", soft_wrap=True)
    if faults or not is_complete:
        raise typer.Exit(1)


def _show_plant(console: Console, options: DemoCommandOptions, interrupt: Interrupt, faults: list[str]) -> bool:
    """Run the whole plant. Append its faults; return whether every consumer received what it should."""
    wanted = options.of_plant()
    console.print("[bold]2. The whole plant[/bold]" if options.critical_path else "[bold]The whole plant[/bold]")
    with DemoPlant(wanted, options.keep) as plant:
        with console.status("starting the plant, and Spark behind it …" if wanted.pipeline else "starting the plant …"):
            is_started = plant.start(lambda: interrupt.is_wanted)
        is_good = True
        if is_started:
            _show_console(console, plant, opens=options.opens)
            ran_seconds = run(console, plant, options.seconds, _kills(plant, options), interrupt)
            if interrupt.is_wanted:
                console.print("stopping: messages on their way are still delivered; Ctrl-C again stops at once")
            with console.status("delivering the rest, completing and auditing the archive …"):
                plant.finish()
            is_good = _conclude(console, plant, options, ran_seconds)
        for fault in plant.faults:
            faults += [fault, *_last_logs(plant, fault)]
    return is_good


def _conclude(console: Console, plant: DemoPlant, options: DemoCommandOptions, ran_seconds: float) -> bool:
    """Print the summary, write the report, and return the verdict."""
    console.print("\n".join(summary(plant, ran_seconds)), soft_wrap=True)
    archived = plant.archiving.result if plant.archiving is not None else None
    if archived is not None:
        rows = sum(archived.tables.values())
        audit = "the audit found nothing missing" if archived.verdict == "good" else f"audit: {archived.verdict}"
        console.print(f"  Spark archived {rows:,} rows in {len(archived.tables)} tables; {audit}", soft_wrap=True)
    is_good = is_complete(plant) and not is_exchange_slow(plant, ran_seconds) and not plant.faults
    is_good = is_good and (archived is None or archived.verdict == "good")
    if options.report is not None:
        _write_report(options.report, plant, archived, ran_seconds)
    more = f"details: {options.report}" if options.report is not None else "--report FILE writes the details"
    result = (
        "[green]every consumer got everything[/green]" if is_good else "[red]not everything arrived, see above[/red]"
    )
    console.print(f"Result: {result}; {more}", soft_wrap=True)
    if options.keep is not None:
        console.print(f"Logs, archive and audit are in {options.keep}.", soft_wrap=True)
    return is_good


def _write_report(path: Path, plant: DemoPlant, archived: ArchiveResult | None, ran_seconds: float) -> None:
    page = Console(record=True, file=io.StringIO(), width=PAGE_WIDTH, highlight=False)
    page.print("\n".join(details(plant, ran_seconds)))
    if archived is not None:
        _show_archive(page, archived)
    write_file(path, page.export_html(inline_styles=True).encode())


def _show_console(console: Console, plant: DemoPlant, *, opens: bool) -> None:
    if not plant.console:
        return
    described = plant.running.plant
    config = described.console()
    console.print(f"Console: {issue_link(described, config, plant.console)}", soft_wrap=True)
    console.print("  the link logs in once, as the administrator of this plant", soft_wrap=True)
    if opens:
        open_console(described, config, plant.console)


def _kills(plant: DemoPlant, options: DemoCommandOptions) -> list[Kill]:
    """The nodes to kill, with the times and functions."""
    at_s = min(KILL_AFTER * options.seconds, KILL_SECONDS)
    kills: list[Kill] = []
    if options.kill_active:
        kills.append(Kill("the active adapter", at_s, plant.kill_active))
    if options.kill_filter:
        kills.append(Kill("the filter module", at_s * (1 + KILL_AFTER * options.kill_active), plant.kill_filter))
    if options.kill_router:
        kills.append(Kill("the active message router", at_s, plant.kill_router))
    return kills


def _last_logs(plant: DemoPlant, fault: str) -> list[str]:
    """The end of the log of the process that a fault is about."""
    path = plant.logs / f"{fault.split(maxsplit=1)[0]}.log"
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [f"  {line}" for line in lines[-LOG_LINES:]]


def _show_archive(console: Console, result: ArchiveResult) -> None:
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


def _bars(result: ArchiveResult) -> Table:
    table = Table(title="minute bars with the most volume", box=None, padding=(0, 2, 0, 0), title_justify="left")
    for column in ("symbol", "from (UTC)", "open", "high", "low", "close", "vwap", "volume", "trades"):
        table.add_column(column, justify="left" if column == "symbol" else "right", no_wrap=True)
    for bar in result.bars:
        start = datetime.fromtimestamp(bar.start_ns // NS_PER_SECOND, UTC)
        table.add_row(bar.symbol, f"{start:%H:%M}", *bar.prices, f"{bar.volume:,}", f"{bar.trades:,}")
    return table
