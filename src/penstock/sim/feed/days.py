"""Trading days through one pair of adapters, with a failover at every midnight.

    plant = pair_plant(seed=1)
    plant.start()
    run_days(plant, days=5, failover_ms=0)
    plant.finish()
    plant.exchange.logs[1].sessions                # DAY1 … DAY5, each with its trading date and messages

The exchange reassigns locate codes on each day; a weekend and a holiday lie between the days.
"""

from typing import Any, Literal

from penstock.base.clock import NS_PER_MS
from penstock.base.errors import SimulationError
from penstock.feed.config import SynchroniserConfig
from penstock.middleware import Deliver, DeliverBatch, LossReceipt, Multicast, Receiver, Unicast
from penstock.sim.datagram_node import DatagramNode
from penstock.sim.feed.nodes import AdapterNode
from penstock.sim.feed.plant import FeedPlant, FeedPlantOptions
from penstock.sim.world import World

DAY_NS = 250 * NS_PER_MS
"""Half a trading day in virtual time."""


class CaptureNode(DatagramNode):
    """Listens to all adapters, and keeps their packets in the order in which a capture appends them to its journal."""

    def __init__(self, plant: FeedPlant) -> None:
        super().__init__(plant.world, "capture", "capture", plant.network, plant.groups)
        self._config = plant.options.receiver
        self.packets: list[tuple[int, bytes]] = []
        """Time and content."""

    def on_start(self) -> None:
        self.run(Receiver(self._config, self.world.randomness.fork(self.name), self.counters))
        self.listen()

    def carry_out(self, instruction: Any) -> None:
        match instruction:
            case Multicast(group, data):
                self.network.multicast(self.address(), group, data)
            case Unicast(destination, data):
                self.network.unicast(self.address(), destination, data)
            case Deliver():
                self._keep(bytes(instruction.data))
            case DeliverBatch():
                for each in instruction.one_by_one():
                    self._keep(bytes(each.data))
            case LossReceipt():
                raise SimulationError(f"a network without faults lost packets: {instruction}")
            case _:
                self.log(f"{instruction}")

    def _keep(self, packet: bytes) -> None:
        self.packets.append((self.world.now_ns(), packet))


def pair_plant(seed: int, *, policy: Literal["wait", "promote"] = "promote", messages_per_s: int = 400) -> FeedPlant:
    """A pair of adapters and one subscriber, on networks without faults. `policy` is `without_synchronised`."""
    options = FeedPlantOptions(
        adapters=2,
        subscribers=1,
        messages_per_s=messages_per_s,
        sync=SynchroniserConfig(
            state_interval_ms=15,
            checkpoint_interval=32,
            active_lost_ms=100,
            claim_ms=10,
            startup_ms=100,
            without_synchronised=policy,
        ),
        is_mild=False,
    )
    return FeedPlant(World(seed), options)


def run_days(plant: FeedPlant, days: int, *, failover_ms: int | None) -> None:
    """Run a started plant for `days` sessions. The active adapter dies `failover_ms` after each midnight (before it, if
    negative; None: never), and restarts later on the same day."""
    plant.run(DAY_NS)
    for _ in range(days - 1):
        if failover_ms is None:
            plant.exchange.begin_session()
        elif failover_ms < 0:
            kill_active(plant)
            plant.world.after(-failover_ms * NS_PER_MS, plant.exchange.begin_session)
        else:
            plant.exchange.begin_session()
            plant.world.after(failover_ms * NS_PER_MS, lambda: kill_active(plant))
        plant.run(2 * DAY_NS)


def active_of(plant: FeedPlant) -> AdapterNode:
    for adapter in plant.adapters:
        process = adapter.process()
        if process is not None and process.feed.synchroniser.role == "active":
            return adapter
    raise SimulationError("no adapter is active")


def kill_active(plant: FeedPlant) -> None:
    active = active_of(plant)
    active.crash()
    plant.world.after(DAY_NS, active.start)
