"""`penstock demo`: a plant at work. For now it is a simulated one, run at the speed of the wall clock."""

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from penstock.base.clock import NS_PER_SECOND
from penstock.base.endpoint import Endpoint, Health
from penstock.base.metrics import Metrics
from penstock.middleware import ReceiverConfig
from penstock.sim import LinkFaults, MiddlewarePlant, Node, PlantOptions, World

FRAME_SECONDS = 0.1
WIDTH_UNSEEN = 200
"""Columns where no terminal says how many it has: enough that nothing is cut in a pipe."""


def demo(
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to run; without it, until Ctrl-C.")] = float("inf"),
    loss: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="Share of datagrams the network loses, until the plant settles.")
    ] = 0.02,
    seed: Annotated[int, typer.Option(help="Another seed, another run; the same seed, the same run.")] = 1,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Serve /metrics and /health here on loopback; 0: a free port.")
    ] = None,
) -> None:
    """Show a simulated plant: publishers, a lossy network, receivers, crashes, and every loss repaired or reported."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH_UNSEEN)
    with _interrupt() as interrupt, contextlib.ExitStack() as stack:
        plant = _plant(seed, loss)
        plant.start()
        if metrics_port is not None:
            stack.enter_context(_endpoint(plant, metrics_port))
        _run(console, plant, seconds, interrupt)
        if interrupt.is_wanted:
            console.print("stopping: letting the plant settle (Ctrl-C again leaves at once)")
        ran_seconds = plant.world.now_ns() / NS_PER_SECOND
        plant.finish(kills_one=False)
    _conclude(console, plant, ran_seconds)


class _Interrupt:
    """Whether somebody pressed Ctrl-C. Read between frames: an exception in the midst of one would tear the plant."""

    def __init__(self) -> None:
        self.is_wanted = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_wanted:
            raise KeyboardInterrupt
        self.is_wanted = True


@contextlib.contextmanager
def _interrupt() -> Iterator[_Interrupt]:
    interrupt = _Interrupt()
    before = signal.signal(signal.SIGINT, interrupt.handle)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)


def _plant(seed: int, loss: float) -> MiddlewarePlant:
    link = LinkFaults(loss=loss, duplicate=0.01, reorder=0.05)
    receiver = ReceiverConfig(join="start")  # so that delivered is published times receivers, when nothing is lost
    options = PlantOptions(link=link, receiver=receiver, large_messages=0.02, fault_interval_ms=4_000)
    return MiddlewarePlant(World(seed), options)


def _endpoint(plant: MiddlewarePlant, port: int) -> Endpoint:
    metrics = Metrics()
    for node in plant.nodes:
        metrics.register(node.counters)

    def health() -> Health:
        down = [node.name for node in plant.nodes if not node.is_up]
        return Health(not down, f"crashed: {', '.join(down)}" if down else "")

    return Endpoint(metrics, health, port=port)


def _run(console: Console, plant: MiddlewarePlant, seconds: float, interrupt: _Interrupt) -> None:
    started = time.monotonic()
    with Live(_running(plant), console=console, auto_refresh=False, transient=True) as live:
        while (elapsed := time.monotonic() - started) < seconds and not interrupt.is_wanted:
            plant.run(round(min(elapsed + FRAME_SECONDS, seconds) * NS_PER_SECOND) - plant.world.now_ns())
            live.update(_running(plant), refresh=console.is_terminal)
            ahead = plant.world.now_ns() / NS_PER_SECOND - (time.monotonic() - started)
            time.sleep(max(0.0, min(ahead, FRAME_SECONDS)))


def _running(plant: MiddlewarePlant) -> Table:
    virtual_seconds = plant.world.now_ns() / NS_PER_SECOND
    return _table(plant, f"a simulated plant after {virtual_seconds:.1f} s (seed {plant.world.seed}; Ctrl-C ends it)")


def _table(plant: MiddlewarePlant, title: str) -> Table:
    table = Table(title=title, box=None, padding=(0, 2, 0, 0), caption_justify="left", title_justify="left")
    for column in ("node", "state", "published", "delivered", "packets", "NACKs", "repairs", "lost"):
        table.add_column(column, justify="left" if column in ("node", "state") else "right", no_wrap=True)
    for node in plant.nodes:
        table.add_row(*_row(node))
    statistics = plant.network.statistics
    table.caption = (
        f"The network carried {statistics.sent:,} datagrams: {statistics.lost:,} lost, {statistics.duplicated:,} "
        f"duplicated, {statistics.delayed:,} held back, {statistics.cut:,} cut off."
    )
    return table


def _row(node: Node) -> list[str]:
    counters = node.counters
    counts = (
        counters["messages_published"],
        counters["messages_delivered"],
        counters["packets_sent"] + counters["packets_received"],
        counters["nacks_sent"] + counters["nacks_received"],
        counters["repairs_sent"] + counters["repairs_received"],
        counters["packets_lost"],
    )
    state = f"up, start {node.incarnation}" if node.is_up else "[red]crashed[/red]"
    return [node.name, state, *(f"{count:,}" if count else "" for count in counts)]


def _conclude(console: Console, plant: MiddlewarePlant, ran_seconds: float) -> None:
    console.print(_table(plant, f"the simulated plant after it settled (seed {plant.world.seed})"))
    summary = plant.summary()
    again = " (again to those that restarted)" if any(each.incarnation > 1 for each in plant.receivers) else ""
    console.print(
        f"\nIn {ran_seconds:.1f} s, and while it settled: {_count(summary.messages_published, 'message')} published, "
        f"{_count(summary.messages_delivered, 'message')} delivered to {len(plant.receivers)} receivers{again}.\n"
        f"On the way: {_count(summary.datagrams_lost, 'datagram')} lost and "
        f"{_count(summary.crashes, 'crash', 'crashes')}; once the plant settles, the network loses nothing more.\n"
        f"{_count(summary.repairs_sent, 'repair')} were sent; "
        f"{_count(summary.packets_reported_lost, 'packet')} reported lost.\n"
        "Checked: every message came once, in order and unchanged, or its loss was reported.",
        highlight=False,
    )


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
