"""A message router on a disk that fails, its publishers, consumers and transactions, and the verdict.

What is promised, whatever happens to the machine, the process, the disk and the links (REPL-1, REPL-10, REPL-12):

- what was acknowledged is delivered by every endpoint that wants it, or by the dead-message queue;
- what was refused or rolled back is delivered by nobody, and nobody gets what nobody published;
- each endpoint delivers in order, by priority, and each message once, or says that it may have done so before;
- what the dead-message queue delivers says why it is there, and which endpoint gave it up;
- a transaction counts as a whole, and what its client is told of its end stays true;
- queues and the log are bounded; when everything is settled, nothing is left.
"""

import msgspec

from penstock.assured.core.router.events import Instruction
from penstock.assured.wire.frames import Published
from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.base.errors import SimulationError
from penstock.sim.assured.checker import AssuredChecker
from penstock.sim.assured.clients import Client, SimConsumer, SimPublisher, SimTransactor
from penstock.sim.assured.node import WANTS, AssuredNode, AssuredOptions
from penstock.sim.disk import DiskFaults
from penstock.sim.judge import SeedRun, work
from penstock.sim.randomness import SeededRandomness
from penstock.sim.world import World

SETTLING_NS = NS_PER_SECOND // 2
SETTLING_ROUNDS = 60
SETTLED_MIN = 750
"""Messages that leave their queues in so many rounds, or all: the slowest consumers take three times as many."""
RESTART_DELAY_NS_MAX = NS_PER_SECOND // 2
LOOK_NS = 100 * NS_PER_MS


class AssuredSummary(msgspec.Struct, kw_only=True):
    """What a run did, for people."""

    seed: int
    virtual_seconds: float
    events: int
    digest: str
    acknowledged: int
    delivered: int
    redelivered: int
    committed: int
    rolled_back: int
    given_up: int
    moved: int
    fetched: int
    sections_removed: int
    crashes: int
    kills: int
    cuts: int
    full_disks: int
    writes_torn: int


class AssuredPlant:
    def __init__(self, world: World, options: AssuredOptions) -> None:
        self.world = world
        self.options = options
        self.checker = AssuredChecker(WANTS, options.router.endpoints)
        self.is_resting = False
        self.node = AssuredNode(self)
        self.crashes = self.kills = self.cuts = self.full_disks = 0
        self._randomness = world.randomness.fork("faults")
        self._is_faulty = True
        self._links: dict[int, Client] = {}
        self._link = 0
        self._publishers = [SimPublisher(self, number + 1) for number in range(options.publishers)]
        self._transactors = [SimTransactor(self, "work", number + 100) for number in range(options.transactors)]
        self._consumers = [
            SimConsumer(self, endpoint, number)
            for endpoint in ("all", "one", "small", "brief", "dead")
            for number in range(options.consumers)
        ]
        if not options.transactors:
            self._consumers.append(SimConsumer(self, "work", 0))

    # What clients need

    def next_link(self, client: Client) -> int:
        self._link += 1
        self._links[self._link] = client
        return self._link

    def forget_link(self, link: int) -> None:
        self._links.pop(link, None)

    def to_client(self, link: int, instruction: Instruction) -> None:
        if link in self._links:
            self._links[link].receive(instruction)

    def message(self, randomness: SeededRandomness, publisher: int, number: int) -> Published:
        text = f"{publisher}/{number}/".encode() + bytes(randomness.below(self.options.payload_size_max))
        return Published(
            randomness.choose(sorted(WANTS)),
            text,
            priority=randomness.choose([4, 4, 4, 9, 0]),
            ttl_ms=randomness.choose([0, 0, 0, 0, 30]),
        )

    # The run

    def start(self) -> None:
        self.world.log.write(self.world.now_ns(), "plant", f"seed {self.world.seed} {self.options}")
        self.node.start()
        self._wait()

    def run(self, duration_ns: int) -> None:
        work(self.world, duration_ns, LOOK_NS, self._look)

    def _look(self) -> None:
        """Bounds are kept, and accounts add up, at any time."""
        router = self.node.router()
        if router is None:
            return
        for endpoint in router.endpoints:
            numbers = router.tables.endpoint_numbers(endpoint.number)
            if numbers["messages"] > endpoint.config.messages_max:
                raise SimulationError(f"{endpoint.name} has {numbers['messages']} messages")
            came = sum(numbers[name] for name in ("begun", "accepted", "brought"))
            went = sum(numbers[name] for name in ("settled", "given_up", "removed", "messages"))
            if came != went:
                raise SimulationError(f"{endpoint.name} does not account for {came - went} messages: {numbers}")

    def finish(self) -> None:
        """End the faults, let everything be settled, and judge."""
        self._is_faulty = False
        self.node.disk.disk.faults = DiskFaults()
        self.is_resting = True
        self._restart()
        self._settle()
        self.checker.finish()
        self._check_log()

    def _settle(self) -> None:
        """A long run may leave more than consumers take in a while; but it has to become less at a steady pace."""
        left = self._left()
        while not self._is_settled_soon():
            before, left = left, self._left()
            if left is None or (before is not None and before - left < SETTLED_MIN):
                raise SimulationError(f"it does not settle: {self._state()}")

    def _is_settled_soon(self) -> bool:
        for _ in range(SETTLING_ROUNDS):
            self.run(SETTLING_NS)
            if self._is_settled():
                return True
        return False

    def _left(self) -> int | None:
        """Messages in all queues, if there is a router."""
        router = self.node.router()
        if router is None:
            return None
        return sum(router.tables.endpoint_numbers(each.number)["messages"] for each in router.endpoints)

    def _is_settled(self) -> bool:
        router = self.node.router()
        return (
            router is not None
            and router.tables.message_count == 0
            and all(not each.unresolved for each in self._publishers)
            and all(each.is_settled for each in self._transactors)
        )

    def _state(self) -> str:
        router = self.node.router()
        if router is None:
            return "there is no router"
        queued = {each.name: router.tables.endpoint_numbers(each.number) for each in router.endpoints}
        return f"{queued}, unresolved {[len(each.unresolved) for each in self._publishers]}"

    def _check_log(self) -> None:
        """What is dead does not pile up."""
        router = self.node.router()
        assert router is not None
        definitions = router.endpoints.log_size + 1_000 * router.tables.publishers.count
        bound = 6 * self.options.router.section_bytes + 4 * definitions
        if router.tables.log.size > bound:
            raise SimulationError(f"the log of a router without messages has {router.tables.log.size} bytes")

    def summary(self) -> AssuredSummary:
        node, checker = self.node, self.checker
        return AssuredSummary(
            seed=self.world.seed,
            virtual_seconds=self.world.now_ns() / NS_PER_SECOND,
            events=self.world.log.count,
            digest=self.world.log.digest(),
            acknowledged=checker.acknowledged,
            delivered=checker.delivered,
            redelivered=checker.redelivered,
            committed=checker.committed,
            rolled_back=checker.rolled_back,
            given_up=node.given_up,
            moved=node.moved,
            fetched=node.fetched,
            sections_removed=node.sections_removed,
            crashes=self.crashes,
            kills=self.kills,
            cuts=self.cuts,
            full_disks=self.full_disks,
            writes_torn=node.disk.disk.statistics.writes_torn,
        )

    # Faults

    def kill(self, *, is_machine: bool) -> None:
        if not self.node.is_up:
            return
        if (router := self.node.router()) is not None:
            self.node.given_up += router.tables.given_up_total
            self.node.moved += router.tables.moved_total
        self.node.crash()
        for client in list(self._links.values()):
            client.lost()
        if is_machine:
            self.node.disk.disk.crash()
            self.node.disk.boots += 1
            self.crashes += 1
        else:
            self.kills += 1
        self.world.after(self._randomness.below(RESTART_DELAY_NS_MAX), self._restart)

    def _restart(self) -> None:
        if not self.node.is_up:
            self.node.start()

    def _wait(self) -> None:
        mean_ns = self.options.fault_interval_ms * NS_PER_MS
        self.world.after(self._randomness.below(2 * mean_ns), self._strike)

    def _strike(self) -> None:
        if not self._is_faulty:
            return
        match self._randomness.below(8):
            case 0:
                self.kill(is_machine=True)
            case 1:
                self.kill(is_machine=False)
            case 2:
                self.node.stall(self._randomness.below(NS_PER_SECOND // 4))
            case 3:
                self._fill_disk()
            case _:
                if self._links:
                    self.cuts += 1
                    self._randomness.choose(list(self._links.values())).cut()
        self._wait()

    def _fill_disk(self) -> None:
        self.full_disks += 1
        disk = self.node.disk.disk
        disk.faults.size_max = disk.size() + self._randomness.below(2_000)

        def make_room() -> None:
            disk.faults.size_max = DiskFaults().size_max

        self.world.after(self._randomness.below(NS_PER_SECOND), make_room)


run_assured_seed = SeedRun(
    "assured", lambda world: AssuredPlant(world, AssuredOptions.draw(world.randomness.fork("options")))
)
