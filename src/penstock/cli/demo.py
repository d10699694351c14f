"""`penstock demo`: a plant at work. For now it is a simulated one, run at the speed of the wall clock."""

import contextlib
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from penstock.base.endpoint import Endpoint, Health
from penstock.base.metrics import Metrics
from penstock.sim import LinkFaults, MiddlewarePlant, Node, PlantOptions, World
from penstock.sim.world import NS_PER_SECOND

FRAME_SECONDS = 0.1


def demo(
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to run; without it, until Ctrl-C.")] = float("inf"),
    loss: Annotated[float, typer.Option(min=0.0, max=0.9, help="Share of datagrams the network loses.")] = 0.02,
    seed: Annotated[int, typer.Option(help="Another seed, another run; the same seed, the same run.")] = 1,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Serve /metrics and /health here on loopback; 0: a free port.")
    ] = None,
) -> None:
    """Show a simulated plant: publishers, a lossy network, receivers, crashes, and every loss repaired or reported."""
    console = Console()
    world = World(seed)
    link = LinkFaults(loss=loss, duplicate=0.01, reorder=0.05)
    plant = MiddlewarePlant(world, PlantOptions(link=link, large_messages=0.02, fault_interval_ms=4_000))
    plant.start()
    with contextlib.ExitStack() as stack:
        if metrics_port is not None:
            stack.enter_context(_endpoint(plant, metrics_port))
        try:
            _run(console, plant, seconds)
        except KeyboardInterrupt:
            console.print("stopping: letting the plant settle")
    ran_seconds = world.now_ns() / NS_PER_SECOND
    plant.finish()
    _conclude(console, plant, ran_seconds)


def _endpoint(plant: MiddlewarePlant, port: int) -> Endpoint:
    metrics = Metrics()
    for node in plant.nodes:
        metrics.register(node.counters)

    def health() -> Health:
        down = [node.name for node in plant.nodes if not node.is_up]
        return Health(not down, f"crashed: {', '.join(down)}" if down else "")

    return Endpoint(metrics, health, port=port)


def _run(console: Console, plant: MiddlewarePlant, seconds: float) -> None:
    started = time.monotonic()
    with Live(_table(plant), console=console, auto_refresh=False, transient=True) as live:
        while (elapsed := time.monotonic() - started) < seconds:
            plant.run(round(min(elapsed + FRAME_SECONDS, seconds) * NS_PER_SECOND) - plant.world.now_ns())
            live.update(_table(plant), refresh=console.is_terminal)
            ahead = plant.world.now_ns() / NS_PER_SECOND - (time.monotonic() - started)
            time.sleep(max(0.0, min(ahead, FRAME_SECONDS)))


def _table(plant: MiddlewarePlant) -> Table:
    virtual_seconds = plant.world.now_ns() / NS_PER_SECOND
    table = Table(title=f"a simulated plant after {virtual_seconds:.1f} s (seed {plant.world.seed}; Ctrl-C ends it)")
    columns = ("node", "state", "published", "delivered", "packets", "NACKs", "repairs", "lost, reported")
    for column in columns:
        table.add_column(column, justify="left" if column in ("node", "state") else "right")
    for node in plant.nodes:
        table.add_row(*_row(node))
    statistics = plant.network.statistics
    table.caption = (
        f"the network carried {statistics.sent:,} datagrams, lost {statistics.lost:,}, duplicated "
        f"{statistics.duplicated:,}, held {statistics.delayed:,} back, cut {statistics.cut:,}"
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
    state = f"up ({node.incarnation})" if node.is_up else "[red]crashed[/red]"
    return [node.name, state, *(f"{count:,}" if count else "" for count in counts)]


def _conclude(console: Console, plant: MiddlewarePlant, ran_seconds: float) -> None:
    console.print(_table(plant))
    summary = plant.summary()
    console.print(
        f"In {ran_seconds:.1f} s: {summary.messages_published:,} messages published, {summary.messages_delivered:,} "
        f"delivered to {len(plant.receivers)} receivers through {summary.datagrams_lost:,} lost datagrams and "
        f"{summary.crashes} crashes; {summary.repairs_sent:,} packets were repaired, "
        f"{summary.packets_reported_lost:,} reported lost.\n"
        "Checked: every message came once, in order and unchanged, or its loss was reported."
    )
