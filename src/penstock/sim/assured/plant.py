"""The scenario `assured`: a message router on a disk that fails, with publishers, consumers and transactions.

The promises, over any fault of the machine, the process, the disk and the links (REPL-1, REPL-10, REPL-12):

- every endpoint of its topic delivers an acknowledged message, or the dead-letter endpoint does;
- no endpoint delivers a message that was refused, rolled back or never published;
- each endpoint delivers in order, by priority, and each message once, or flagged as redelivered;
- messages of the dead-letter endpoint have the reason, and the endpoint that gave them up;
- a transaction is atomic, and the result reported to its client stays true;
- queues and the log are bounded; when every message is settled, they are empty.
"""

from typing import Any

from penstock.assured.core.router.events import Instruction
from penstock.assured.wire.frames import Published
from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import SimulationError
from penstock.sim.assured.checker import AssuredChecker
from penstock.sim.assured.clients import Client, SimConsumer, SimPublisher, SimTransactor
from penstock.sim.assured.node import WANTS, AssuredNode, AssuredOptions
from penstock.sim.checker import Checker
from penstock.sim.journal.faults import MachineFaultSchedule
from penstock.sim.plant import Plant, PlantSummary
from penstock.sim.randomness import SeededRandomness
from penstock.sim.seed_run import SeedRun
from penstock.sim.world import World

SETTLING_NS = NS_PER_SECOND // 2
SETTLING_ROUNDS = 60
SETTLED_MIN = 750
"""Minimum number of messages that leave their queues in SETTLING_ROUNDS; the slowest consumers take thrice that."""
RESTART_DELAY_NS_MAX = NS_PER_SECOND // 2


class AssuredSummary(PlantSummary, kw_only=True):
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


class AssuredFaultSchedule(MachineFaultSchedule):
    def __init__(self, plant: "AssuredPlant") -> None:
        super().__init__(
            plant.world,
            plant.options.fault_interval_ms,
            plant.node,
            plant.node.disk,
            outage_ns_max=RESTART_DELAY_NS_MAX,
        )
        self.cuts = 0
        self._plant = plant

    def strike(self) -> None:
        match self.randomness.below(8):
            case 0:
                self.kill(is_machine=True)
            case 1:
                self.kill(is_machine=False)
            case 2:
                self._plant.node.stall(self.randomness.below(NS_PER_SECOND // 4))
            case 3:
                self.fill_disk(NS_PER_SECOND)
            case _:
                clients = self._plant.connected_clients()
                if clients:
                    self.cuts += 1
                    self.randomness.choose(clients).cut()


class RouterChecker(Checker):
    """Queues are bounded and account for every message; the log of a router without messages is bounded, too."""

    def step(self, plant: "AssuredPlant") -> None:
        router = plant.node.router()
        if router is None:
            return
        for endpoint in router.endpoints:
            numbers = router.tables.endpoint_numbers(endpoint.number)
            is_bounded = numbers["messages"] <= endpoint.config.messages_max
            self.require(is_bounded, f"{endpoint.name} has {numbers['messages']} messages")
            came = sum(numbers[name] for name in ("begun", "accepted", "brought"))
            went = sum(numbers[name] for name in ("settled", "given_up", "removed", "messages"))
            self.require(came == went, f"{endpoint.name} does not account for {came - went} messages: {numbers}")

    def finish(self, plant: "AssuredPlant") -> None:
        router = plant.node.router()
        assert router is not None
        definitions = router.endpoints.log_size + 1_000 * router.tables.publishers.count
        bound = 6 * plant.options.router.section_bytes + 4 * definitions
        size = router.tables.log.size
        self.require(size <= bound, f"the log of a router without messages has {size} bytes")


class AssuredPlant(Plant[AssuredOptions, AssuredSummary]):
    """A message router with its clients."""

    options_type = AssuredOptions
    summary_type = AssuredSummary
    faults: AssuredFaultSchedule

    def __init__(self, world: World, options: AssuredOptions) -> None:
        super().__init__(world, options)
        self.checker = AssuredChecker(WANTS, options.router.endpoints)
        self.is_resting = False
        self.node = AssuredNode(self)
        self.nodes = [self.node]
        self.faults = AssuredFaultSchedule(self)
        self.checkers = [self.checker, RouterChecker()]
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

    # For the clients

    def next_link(self, client: Client) -> int:
        self._link += 1
        self._links[self._link] = client
        return self._link

    def forget_link(self, link: int) -> None:
        self._links.pop(link, None)

    def connected_clients(self) -> list[Client]:
        return list(self._links.values())

    def lose_links(self) -> None:
        """The router's process ends, and every link with it."""
        for client in self.connected_clients():
            client.lost()

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

    def kill(self, *, is_machine: bool) -> None:
        self.faults.kill(is_machine=is_machine)

    def settle(self) -> None:
        """Let the clients settle everything."""
        self.is_resting = True
        self.faults.restart(self.node)
        self._settle()

    def _settle(self) -> None:
        """Continue while the clients make steady progress: a long run may leave more messages than consumers take in
        a while."""
        left = self._left()
        while not self._is_settled_soon():
            before, left = left, self._left()
            if left is None or (before is not None and before - left < SETTLED_MIN):
                raise SimulationError(f"the router does not settle: {self._state()}")

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

    def counts(self) -> dict[str, Any]:
        node, checker, faults = self.node, self.checker, self.faults
        return {
            "acknowledged": checker.acknowledged,
            "delivered": checker.deliveries,
            "redelivered": checker.redeliveries,
            "committed": checker.committed,
            "rolled_back": checker.rolled_back,
            "given_up": node.given_up,
            "moved": node.moved,
            "fetched": node.fetched,
            "sections_removed": node.sections_removed,
            "crashes": faults.crashes,
            "kills": faults.kills,
            "cuts": faults.cuts,
            "full_disks": faults.full_disks,
            "writes_torn": node.disk.disk.statistics.writes_torn,
        }


run_assured_seed = SeedRun(
    "assured",
    AssuredPlant.draw,
    "every acknowledged message was delivered in order, and once or flagged; transactions were atomic",
)
