"""A lease with a witness, on a bad network and on clocks that differ (REPL-14).

What is promised, whatever happens to machines, network and clocks (as long as those keep within their bound):

- never do two routers hold the lease at a time, and no epoch is held twice;
- a router that reaches neither of the other voters holds nothing after one lease;
- while a router is noted to be degraded, the other one does not become the holder, unless an operator forces it;
- when all is well again, one of them holds it.
"""

import msgspec

from penstock.assured.core.lease.protocol import Fit, Force, LeaseConfig, Release
from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.base.errors import SimulationError
from penstock.sim.judge import SeedRun, work
from penstock.sim.lease.nodes import RouterNode, VoterNode
from penstock.sim.network import LinkFaults, Network
from penstock.sim.randomness import SeededRandomness
from penstock.sim.world import World

STEP_NS = 5 * NS_PER_MS
"""Between two looks at who holds the lease."""

RESTART_LEASES_MAX = 3
ORDER_LEASES = 4
"""An operator's order is good for two, on a slow clock; a vote that it got before its end may come late."""

SETTLING_LEASES = 12


class LeaseOptions(msgspec.Struct, kw_only=True):
    """Everything that distinguishes one plant from another."""

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


class LeaseSummary(msgspec.Struct, kw_only=True):
    """What a run did, for people."""

    seed: int
    virtual_seconds: float
    events: int
    digest: str
    epochs: int
    switches: int
    crashes: int
    partitions: int
    stalls: int
    clocks_set: int
    releases: int
    forced: int
    notes: int


class LeaseChecker:
    """Looks at the routers from outside, by true time."""

    def __init__(self, world: World, order_ns: int) -> None:
        """`order_ns`: how long an operator's order is good."""
        self._world = world
        self._order_ns = order_ns
        self._forced_ns: dict[str, int] = {}
        """Until when an order holds, by router."""
        self.epoch = 0
        self.switches = 0
        self.notes = 0
        self._last = ""
        self._degraded = ""
        self._cut_off_ns: dict[str, int] = {}
        """Since when a router reaches no other voter."""

    def held(self, name: str, epoch: int) -> None:
        self._require(epoch > self.epoch, f"{name} holds epoch {epoch}, after {self.epoch}")
        if self._world.now_ns() <= self._forced_ns.pop(name, -1):
            self._degraded = ""
        self._require(self._degraded in ("", name), f"{name} became the holder, while {self._degraded} is degraded")
        self.switches += self._last not in ("", name)
        self.epoch, self._last = epoch, name

    def lost(self, name: str, epoch: int) -> None:
        self._require(epoch <= self.epoch, f"{name} lost {epoch}, which it never held")

    def degraded(self, name: str) -> None:
        self._degraded = name
        self.notes += 1

    def not_degraded(self, name: str) -> None:
        """The router asks for the note to be struck off: from now on the other may become the holder."""
        if self._degraded == name:
            self._degraded = ""

    def forced(self, name: str) -> None:
        self._forced_ns[name] = self._world.now_ns() + self._order_ns

    def look(self, now_ns: int, holders: list[str], cut_off: list[str], lease_ns_max: int) -> None:
        self._require(len(holders) <= 1, f"{' and '.join(holders)} hold the lease")
        self._cut_off_ns = {name: self._cut_off_ns.get(name, now_ns) for name in cut_off}
        for name, since_ns in self._cut_off_ns.items():
            self._require(
                name not in holders or now_ns - since_ns <= lease_ns_max, f"{name} holds the lease without a majority"
            )

    def _require(self, is_kept: bool, promise: str) -> None:
        if not is_kept:
            raise SimulationError(f"LeaseChecker: {promise}")


class LeasePlant:
    def __init__(self, world: World, options: LeaseOptions) -> None:
        self.world = world
        self.options = options
        self.network = Network(world, options.link)
        self.checker = LeaseChecker(world, ORDER_LEASES * options.lease.promise_ns)
        self._randomness = world.randomness.fork("faults")
        self._slow = self._randomness.choose(["", *options.lease.voters])
        self.routers = [RouterNode(self, name) for name in options.lease.routers]
        self.nodes: list[VoterNode] = [*self.routers, VoterNode(self, options.lease.witness)]
        self.crashes = self.partitions = self.stalls = self.clocks_set = self.releases = self.forced = 0
        self._cut: set[tuple[str, str]] = set()
        self._is_faulty = True
        self._lease_ns = options.lease.promise_ns

    def rate_ppm(self, name: str) -> int:
        """Clocks differ as much as they may, one against the others, or somehow."""
        drift_ppm = self.options.lease.drift_ppm
        if not self._slow:
            return self._randomness.between(-drift_ppm, drift_ppm)
        return -drift_ppm if name == self._slow else drift_ppm

    def start(self) -> None:
        self.world.log.write(self.world.now_ns(), "plant", f"seed {self.world.seed} {self.options}")
        for node in self.nodes:
            node.start()
        self._wait()

    def run(self, duration_ns: int) -> None:
        work(self.world, duration_ns, STEP_NS, self.look)

    def finish(self) -> None:
        """End the faults, and let the voters find together."""
        self._is_faulty = False
        self._mend()
        self.network.heal()
        for node in self.nodes:
            self._restart(node)
        for router in self.routers:
            router.wish_degraded(False)
        self.run(SETTLING_LEASES * self._lease_ns)
        holders = [router.name for router in self.routers if router.holds()]
        if len(holders) != 1:
            raise SimulationError(f"LeaseChecker: {len(holders)} routers hold the lease, though all is well")

    def summary(self) -> LeaseSummary:
        return LeaseSummary(
            seed=self.world.seed,
            virtual_seconds=self.world.now_ns() / NS_PER_SECOND,
            events=self.world.log.count,
            digest=self.world.log.digest(),
            epochs=self.checker.epoch,
            switches=self.checker.switches,
            crashes=self.crashes,
            partitions=self.partitions,
            stalls=self.stalls,
            clocks_set=self.clocks_set,
            releases=self.releases,
            forced=self.forced,
            notes=self.checker.notes,
        )

    def look(self) -> None:
        holders = [router.name for router in self.routers if router.holds()]
        cut_off = [router.name for router in self.routers if not self._reached(router)]
        # what was on its way when the ways were cut may still arrive
        late_ns = self.network.faults.delay_max_ns + self.network.faults.reorder_delay_ns
        self.checker.look(self.world.now_ns(), holders, cut_off, self._lease_ns + late_ns)

    def somebody_held(self) -> None:
        """The moment at which there could be two; and from now on it is no new pair."""
        self.look()
        for router in self.routers:
            router.handle(Fit(True))

    def _reached(self, router: RouterNode) -> list[str]:
        others = [node for node in self.nodes if node is not router and node.is_up]
        ways = [(router.name, node.name) for node in others]
        return [there for here, there in ways if (here, there) not in self._cut and (there, here) not in self._cut]

    # What happens meanwhile

    def _wait(self) -> None:
        mean_ns = self.options.fault_interval_ms * NS_PER_MS
        self.world.after(self._randomness.below(2 * mean_ns), self._strike)

    def _strike(self) -> None:
        if not self._is_faulty:
            return
        node = self._randomness.choose(self.nodes)
        router = self._randomness.choose(self.routers)
        match self._randomness.below(12):
            case 0 | 1:
                self._crash(node)
            case 2 | 3:
                self._partition(node)
            case 4 | 10:
                self._mend()
            case 5:
                node.stall(self._randomness.below(2 * self._lease_ns))
                self.stalls += 1
            case 6:
                node.clock.set_wall(self._randomness.between(-NS_PER_SECOND, NS_PER_SECOND) * 86_400)
                self.clocks_set += 1
            case 7 | 11:
                router.wish_degraded(self._randomness.chance(0.5))
            case 8:
                if router.holds():
                    self.releases += 1
                    router.handle(Release())
            case _:
                self._force(router)
        self._wait()

    def _force(self, router: RouterNode) -> None:
        if self._randomness.chance(0.2):
            self.forced += 1
            self.checker.forced(router.name)
            router.handle(Force())

    def _crash(self, node: VoterNode) -> None:
        if node.is_up:
            self.crashes += 1
            node.crash()
            self.world.after(self._randomness.below(RESTART_LEASES_MAX * self._lease_ns), lambda: self._restart(node))

    def _restart(self, node: VoterNode) -> None:
        if not node.is_up:
            node.start()

    def _partition(self, node: VoterNode) -> None:
        """One voter from both others or from one, both ways or one way; or whoever holds the lease from everybody."""
        self.partitions += 1
        holders = [router for router in self.routers if router.holds()]
        is_whole = bool(holders) and self._randomness.chance(0.5)
        node = holders[0] if is_whole else node
        others = [each.name for each in self.nodes if each is not node]
        for other in others if is_whole or self._randomness.chance(0.5) else [self._randomness.choose(others)]:
            ways = [(node.name, other), (other, node.name)]
            for way in ways if is_whole or self._randomness.chance(0.7) else [self._randomness.choose(ways)]:
                self._cut.add(way)
                self.network.cut(*way)

    def _mend(self) -> None:
        for way in self._cut:
            self.network.mend(*way)
        self._cut.clear()


run_lease_seed = SeedRun("lease", lambda world: LeasePlant(world, LeaseOptions.draw(world.randomness.fork("options"))))
