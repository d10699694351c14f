"""A lease with a witness, on a bad network and on clocks that differ (REPL-14).

The promises, over any fault of machines, network and clocks (as long as the clocks differ within their bound):

- two routers never hold the lease at the same time, and no epoch is held twice;
- a router that reaches neither of the other voters loses the lease after its duration;
- while a router is noted as degraded, the other one does not become the holder, unless an operator forces it;
- after all faults, one of them holds the lease.
"""

from typing import Any

import msgspec

from penstock.assured.core.lease.protocol import Fit, LeaseConfig
from penstock.base.clock import NS_PER_MS
from penstock.sim.clock import ClockRates
from penstock.sim.fencing import FencingChecker
from penstock.sim.lease.faults import LeaseFaultSchedule
from penstock.sim.lease.nodes import RouterNode, VoterNode
from penstock.sim.network import LinkFaults, Network
from penstock.sim.plant import Plant, PlantSummary
from penstock.sim.randomness import SeededRandomness
from penstock.sim.seed_run import SeedRun
from penstock.sim.world import World

ORDER_LEASES = 4
"""An operator's order is valid for two leases on a slow clock; a vote granted before its end may arrive late."""

SETTLING_LEASES = 12


class LeaseOptions(msgspec.Struct, kw_only=True):
    """Options of a plant."""

    lease: LeaseConfig = LeaseConfig(routers=("a", "b"), witness="w", lease_ms=500)
    link: LinkFaults = msgspec.field(default_factory=LinkFaults)
    fault_interval_ms: int = 300

    @staticmethod
    def draw(pick: SeededRandomness) -> "LeaseOptions":
        lease_ms = pick.choose([200, 500, 1_000])
        return LeaseOptions(
            lease=LeaseConfig(
                routers=("a", "b"), witness="w", lease_ms=lease_ms, drift_ppm=pick.choose([0, 10_000, 100_000])
            ),
            link=LinkFaults(
                loss=pick.choose([0.0, 0.02, 0.3]),
                duplicate=pick.choose([0.0, 0.1]),
                reorder=pick.choose([0.0, 0.1]),
                delay_max_ns=pick.choose([1, lease_ms // 10, lease_ms // 3]) * NS_PER_MS,
                reorder_delay_ns=pick.choose([lease_ms // 2, lease_ms * 2]) * NS_PER_MS,
            ),
            fault_interval_ms=pick.choose([lease_ms // 5, lease_ms // 2, lease_ms * 2]),
        )


class LeaseSummary(PlantSummary, kw_only=True):
    epochs: int
    switches: int
    crashes: int
    partitions: int
    stalls: int
    clocks_set: int
    releases: int
    forced: int
    notes: int


class LeaseChecker(FencingChecker):
    """Observes the routers from outside, in true time."""

    def __init__(self, world: World, order_ns: int) -> None:
        """`order_ns`: validity of an operator's order."""
        super().__init__()
        self._world = world
        self._order_ns = order_ns
        self._forced_ns: dict[str, int] = {}
        """Expiry of the operator's order, by router."""
        self.epoch = 0
        self.switches = 0
        self.notes = 0
        self._last = ""
        self._degraded = ""
        self._cut_off_ns: dict[str, int] = {}
        """Time since which a router reaches no other voter."""

    def held(self, name: str, epoch: int) -> None:
        self.require(epoch > self.epoch, f"{name} holds epoch {epoch}, after {self.epoch}")
        if self._world.now_ns() <= self._forced_ns.pop(name, -1):
            self._degraded = ""
        self.require(self._degraded in ("", name), f"{name} became the holder, while {self._degraded} is degraded")
        self.switches += self._last not in ("", name)
        self.epoch, self._last = epoch, name

    def lost(self, name: str, epoch: int) -> None:
        self.require(epoch <= self.epoch, f"{name} lost {epoch}, which it never held")

    def degraded(self, name: str) -> None:
        self._degraded = name
        self.notes += 1

    def not_degraded(self, name: str) -> None:
        """The router requests the removal of the note: from now on the other router may become the holder."""
        if self._degraded == name:
            self._degraded = ""

    def forced(self, name: str) -> None:
        self._forced_ns[name] = self._world.now_ns() + self._order_ns

    def step(self, plant: "LeasePlant") -> None:
        now_ns = self._world.now_ns()
        holders = [router.name for router in plant.routers if router.holds()]
        self.require_one(holders)
        cut_off = [router.name for router in plant.routers if not plant.faults.reached(router)]
        self._cut_off_ns = {name: self._cut_off_ns.get(name, now_ns) for name in cut_off}
        # messages already on their way may still arrive
        late_ns = plant.network.faults.delay_max_ns + plant.network.faults.reorder_delay_ns
        for name, since_ns in self._cut_off_ns.items():
            is_late = now_ns - since_ns > plant.options.lease.promise_ns + late_ns
            self.require(name not in holders or not is_late, f"{name} holds the lease without a majority")

    def finish(self, plant: "LeasePlant") -> None:
        holders = [router.name for router in plant.routers if router.holds()]
        self.require(len(holders) == 1, f"{len(holders)} routers hold the lease in a healthy plant")


class LeasePlant(Plant[LeaseOptions, LeaseSummary]):
    """Two routers and a witness."""

    options_type = LeaseOptions
    summary_type = LeaseSummary
    step_ns = 5 * NS_PER_MS
    faults: LeaseFaultSchedule
    nodes: list[VoterNode]

    def __init__(self, world: World, options: LeaseOptions) -> None:
        super().__init__(world, options)
        self.network = Network(world, options.link)
        self.checker = LeaseChecker(world, ORDER_LEASES * options.lease.promise_ns)
        self.checkers = [self.checker]
        self.faults = LeaseFaultSchedule(self)
        self.clocks = ClockRates(self.faults.randomness, options.lease.voters, options.lease.drift_ppm)
        self.routers = [RouterNode(self, name) for name in options.lease.routers]
        self.nodes = [*self.routers, VoterNode(self, options.lease.witness)]

    def settle(self) -> None:
        """Let the voters agree on one holder."""
        for router in self.routers:
            router.wish_degraded(False)
        self.run(SETTLING_LEASES * self.options.lease.promise_ns)

    def counts(self) -> dict[str, Any]:
        faults, checker = self.faults, self.checker
        return {
            "epochs": checker.epoch,
            "switches": checker.switches,
            "crashes": faults.crashes,
            "partitions": faults.partitions,
            "stalls": faults.stalls,
            "clocks_set": faults.clocks_set,
            "releases": faults.releases,
            "forced": faults.forced,
            "notes": checker.notes,
        }

    def somebody_held(self) -> None:
        """A router has become the holder: from this moment there could be two. The pair is no longer new."""
        self.step()
        for router in self.routers:
            router.handle(Fit(True))


run_lease_seed = SeedRun(
    "lease",
    LeasePlant.draw,
    "two routers never held the lease at the same time, and none held it without a majority",
)
