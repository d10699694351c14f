"""Faults of a feed, and the commands of its operators."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from penstock.base.clock import NS_PER_MS
from penstock.feed.core.events import HealthMeasured, Promote, ReturnToService
from penstock.feed.core.sync.health import Health
from penstock.sim.disk import DiskFaults
from penstock.sim.fault_schedule import FaultSchedule
from penstock.sim.network import LinkFaults

if TYPE_CHECKING:
    from penstock.sim.feed.plant import FeedPlant

OUTAGE_NS_MAX = 600 * NS_PER_MS


class FeedFaultSchedule(FaultSchedule):
    """Faults of adapters, subscribers, lines, channels and disks."""

    def __init__(self, plant: "FeedPlant") -> None:
        super().__init__(plant.world, plant.options.fault_interval_ms)
        self._plant = plant

    def stop(self) -> None:
        super().stop()
        plant = self._plant
        plant.network.heal()
        plant.peers.heal()
        for index in range(len(plant.adapters)):
            self._calm_lines(index)
        for adapter in plant.adapters:
            adapter.disk.faults = DiskFaults()
        for node in (*plant.adapters, *plant.subscribers):
            self.restart(node)

    def strike(self) -> None:
        if self._plant.options.is_mild:
            self._kill_active()
        else:
            kinds = [
                self._crash, self._crash, self._kill_active, self._stall, self._cut_peers, self._cut_peers,
                self._isolate, self._cut_output, self._storm, self._deafen, self._slow_disk, self._change_health,
                self._command, self._crash_subscriber,
            ]  # fmt: skip
            self.randomness.choose(kinds)()
        if self._plant.options.sessions and self.randomness.chance(0.1):
            self._log("a new session")
            self._plant.exchange.begin_session()

    # Adapters and subscribers

    def _kill_active(self) -> None:
        plant = self._plant
        if plant.options.is_mild and not plant.is_well():
            return
        for adapter in plant.adapters:
            process = adapter.process()
            if process is not None and process.feed.synchroniser.role == "active":
                self.crash(adapter, OUTAGE_NS_MAX)
                return

    def _crash(self) -> None:
        self.crash(self.randomness.choose(self._plant.adapters), OUTAGE_NS_MAX)

    def _crash_subscriber(self) -> None:
        self.crash(self.randomness.choose(self._plant.subscribers), OUTAGE_NS_MAX)

    def _stall(self) -> None:
        self.randomness.choose(self._plant.adapters).stall(self.randomness.below(OUTAGE_NS_MAX // 2))

    def _change_health(self) -> None:
        adapter = self.randomness.choose(self._plant.adapters)
        adapter.health = Health(cpu_free=self.randomness.below(100) / 100)
        adapter.handle(HealthMeasured(adapter.health))

    def _command(self) -> None:
        """An operator promotes an adapter or returns it to service."""
        command = Promote() if self.randomness.chance(0.3) else ReturnToService()
        self.randomness.choose(self._plant.adapters).handle(command)

    def _slow_disk(self) -> None:
        disk = self.randomness.choose(self._plant.adapters).disk
        disk.faults.fsync_delay_max_ns = 100 * NS_PER_MS
        self._after_a_while(lambda: setattr(disk.faults, "fsync_delay_max_ns", DiskFaults().fsync_delay_max_ns))

    # Networks

    def _cut_peers(self) -> None:
        one, other = self._two_adapters()
        self._log(f"the link between adapters {one} and {other} is cut")
        self._plant.peers.cut(one, other)
        self._after_a_while(lambda: self._plant.peers.mend(one, other))

    def _isolate(self) -> None:
        """Cut one adapter off from the others, not from the exchange and the subscribers."""
        one = self.randomness.below(len(self._plant.adapters))
        others = [other for other in range(len(self._plant.adapters)) if other != one]
        self._log(f"adapter {one} is alone")
        for other in others:
            self._plant.peers.cut(one, other)

        def mend() -> None:
            for other in others:
                self._plant.peers.mend(one, other)

        self._after_a_while(mend)

    def _cut_output(self) -> None:
        adapter = self.randomness.choose(self._plant.adapters)
        subscriber = self.randomness.choose(self._plant.subscribers)
        self._log(f"{subscriber.name} no longer hears {adapter.name}")
        self._plant.network.cut(adapter.name, subscriber.name)
        self._after_a_while(lambda: self._plant.network.mend(adapter.name, subscriber.name))

    def _storm(self) -> None:
        network, before = self._plant.network, self._plant.options.link
        network.faults = LinkFaults(loss=0.7, delay_max_ns=before.delay_max_ns)
        self._log("a burst of loss on the way to subscribers")

        def calm() -> None:
            if self.is_running:
                network.faults = before

        self._world.after(self.randomness.below(OUTAGE_NS_MAX // 4), calm)

    def _deafen(self) -> None:
        """One adapter, or all of them, receive few packets of the exchange, and no answers."""
        count = len(self._plant.adapters)
        indexes = list(range(count)) if self.randomness.chance(0.2) else [self.randomness.below(count)]
        self._log(f"the adapters {indexes} receive few packets of the exchange")
        for index in indexes:
            faults = self._plant.exchange.faults[index]
            faults.loss, faults.answers = 0.8, False

        def calm() -> None:
            for index in indexes:
                self._calm_lines(index)

        self._world.after(self.randomness.below(OUTAGE_NS_MAX // 2), calm)

    def _calm_lines(self, index: int) -> None:
        before = (
            self._plant.options.lines
            if self.is_running
            else msgspec.structs.replace(self._plant.options.lines, loss=0.0)
        )
        faults = self._plant.exchange.faults[index]
        faults.loss, faults.answers = before.loss, before.answers

    def _two_adapters(self) -> tuple[int, int]:
        count = len(self._plant.adapters)
        one = self.randomness.below(count)
        return one, (one + 1 + self.randomness.below(count - 1)) % count

    def _after_a_while(self, action: Callable[[], None]) -> None:
        self._world.after(self.randomness.below(OUTAGE_NS_MAX), action)
