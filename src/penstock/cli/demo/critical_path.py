"""The first part of the demo: the critical path alone. An exchange, two adapters, an administration server and one
subscriber run for a few seconds, with nothing else on the machine, and the active adapter is killed halfway.
"""

from rich.console import Console

from penstock.base.clock import NS_PER_MS, NS_PER_US
from penstock.cli.common.interrupt import Interrupt
from penstock.cli.demo.account import PERCENTILES, machine
from penstock.cli.demo.running import Kill, run
from penstock.demo.consumers import difference
from penstock.demo.plant import DemoPlant
from penstock.demo.reports import DemoOptions
from penstock.demo.verdicts import is_exchange_slow, lost

SECONDS_MAX = 8.0


def show_critical_path(console: Console, wanted: DemoOptions, seconds: float, interrupt: Interrupt) -> list[str]:
    """Run the critical path, and print its figures. Return the faults: one sentence for each failed process, and for
    each promise that did not hold."""
    console.print("[bold]1. The critical path alone[/bold]: exchange → two adapters → one subscriber")
    alone = DemoOptions(
        rate=wanted.rate, symbols=wanted.symbols, seed=wanted.seed, loss=wanted.loss, spin=wanted.spin,
        subscribers=1, nodes=False, tree=False, router=False,
    )  # fmt: skip
    seconds = min(seconds, SECONDS_MAX)
    before = machine()
    with DemoPlant(alone) as plant:
        with console.status("starting five processes …"):
            is_started = plant.start(lambda: interrupt.is_wanted)
        if is_started:
            kill = Kill("the active adapter", seconds / 2, plant.kill_active)
            ran_seconds = run(console, plant, seconds, [kill], interrupt)
            plant.finish()
            console.print("\n".join(_account(plant, ran_seconds, before)), soft_wrap=True)
        return [*plant.faults, *(_broken_promises(plant) if is_started else [])]


def _account(plant: DemoPlant, ran_seconds: float, before: str) -> list[str]:
    (subscriber,) = plant.subscribers
    measured = ", ".join(f"p{q:g} {subscriber.latency.percentile(q) / NS_PER_US:,.0f}" for q in PERCENTILES)
    lines = [
        f"  latency in µs: {measured}; from an adapter's receipt of the source message to the subscriber's Python code",
        f"  {subscriber.messages:,} messages delivered of {plant.made:,} made; {before}",
    ]
    if is_exchange_slow(plant, ran_seconds):
        lines.append(f"  [red]the exchange could not keep its rate of {plant.options.rate:,.0f} messages/s[/red]")
    for kill in plant.kills:
        gap_ms = plant.gap_at_kill_ns(subscriber, kill) / NS_PER_MS
        twice = max(0, subscriber.messages - plant.made)
        lines.append(
            f"  {kill.node} was the active adapter and was killed with -9: {lost(subscriber):,} lost, {twice:,} twice, "
            f"longest gap {gap_ms:,.1f} ms ({plant.gap_otherwise_ns(subscriber) / NS_PER_MS:,.1f} ms in an ordinary "
            "second)"
        )
    return lines


def _broken_promises(plant: DemoPlant) -> list[str]:
    (subscriber,) = plant.subscribers
    broken = []
    if lost(subscriber):
        broken.append(f"{subscriber.name} lost {lost(subscriber):,} messages on the critical path")
    if not subscriber.fault and subscriber.messages + lost(subscriber) != plant.made:
        broken.append(f"{subscriber.name}, critical path: {difference(plant.made, subscriber.messages)}")
    return broken
