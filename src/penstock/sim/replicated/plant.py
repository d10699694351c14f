"""A pair of message routers with publishers and consumers, and their faults (REPL-2 to REPL-10, REPL-14).

The promises, over any crash, partition and switch, by an operator or by the lease:

- messages acknowledged as synchronous are delivered by every endpoint of their topics, in the publisher's order;
- second deliveries are flagged; transactions are atomic;
- under a lease two routers are never active at a time; a router that is not active delivers and acknowledges nothing;
- after all faults, one router is active, the other has every record, and everything published is acknowledged.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import msgspec

from penstock.assured.config import EndpointConfig, RouterConfig, Want
from penstock.assured.core.lease.protocol import LeaseConfig
from penstock.assured.core.pair.protocol import PairConfig, SwitchHere
from penstock.assured.core.router._records import TREATMENT_ASYNC, TREATMENT_NONE, TREATMENT_SYNC
from penstock.assured.core.router.events import Noted
from penstock.assured.wire._layout import MESSAGE_WANTS_ASYNC, OUTCOME_DEGRADED, OUTCOME_KNOWN, OUTCOME_SYNC
from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.sim.clock import ClockRates
from penstock.sim.lease.nodes import VoterNode
from penstock.sim.link import LinkEnd, OrderedLink
from penstock.sim.network import LinkFaults, Network
from penstock.sim.plant import Plant, PlantSummary
from penstock.sim.randomness import SeededRandomness
from penstock.sim.replicated.checkers import ReplicatedChecker
from penstock.sim.replicated.clients import SimPublisher
from penstock.sim.replicated.consumers import SimConsumer
from penstock.sim.replicated.faults import ReplicatedFaultSchedule
from penstock.sim.replicated.nodes import PairNode
from penstock.sim.seed_run import SeedRun
from penstock.sim.world import World

STEP_NS = 10 * NS_PER_MS
PEER_NS = 40 * NS_PER_MS
"""Between two attempts to connect the routers."""

SETTLING_NS_MAX = 10 * NS_PER_SECOND
"""Maximal time from the last fault until all faults are over, and from the last message until all are consumed."""

LINK_TIMEOUT_NS = 150 * NS_PER_MS
"""Silence after which a link is ended."""
LINK_POLL_NS = 10 * NS_PER_MS

TOPICS = (b"a.one", b"a.two", b"b.one")
WANTS = {"all": (">",), "some": ("a.>",), "queue": ("b.one",)}
ROUTES = {b"a.one": ["all", "some"], b"a.two": ["all", "some"], b"b.one": ["all", "queue"]}
LOCAL = frozenset({"some"})
REPLICATED_TOPICS = (b"a.one", b"b.one")
ReplicateBy = Literal["endpoint", "publisher", "topic"]


class ReplicatedOptions(msgspec.Struct, kw_only=True):
    """Options of a plant."""

    has_lease: bool = True
    lease_ms: int = 300
    drift_ppm: int = 10_000
    replicate_by: ReplicateBy = "endpoint"
    local: bool = False
    """True: if endpoints or topics decide, some messages are not replicated."""
    degrade: Literal["after", "never"] = "after"
    degrade_after_ms: int = 100
    matching: Literal["secondary", "primary"] = "secondary"
    transactions: Literal["stream", "at_commit"] = "stream"
    window_bytes: int = 65_536
    cache_bytes: int = 65_536
    section_bytes: int = 65_536
    settle_ms: int = 50
    delay_ms: int = 2
    sync_ms: int = 3
    fault_interval_ms: int = 200

    @property
    def lease(self) -> LeaseConfig:
        return LeaseConfig(routers=("a", "b"), witness="w", lease_ms=self.lease_ms, drift_ppm=self.drift_ppm)

    @property
    def pair(self) -> PairConfig:
        return PairConfig(
            routers=("a", "b"),
            lease=self.lease if self.has_lease else None,
            degrade=self.degrade,
            degrade_after_ms=self.degrade_after_ms,
            matching=self.matching,
            transactions=self.transactions,
            window_bytes=self.window_bytes,
        )

    def router(self, name: str) -> RouterConfig:
        treatment: Any = "synchronous" if self.replicate_by == "endpoint" else "none"
        endpoints = tuple(
            EndpointConfig(
                name=each,
                wants=(Want(topics=topics),),
                replication="none" if each in self.local_endpoints else treatment,
            )
            for each, topics in WANTS.items()
        )
        return RouterConfig(
            name=name,
            endpoints=endpoints,
            replicate_by=self.replicate_by,
            synchronous_topics=self._synchronous_topics if self.replicate_by == "topic" else (),
            message_bytes_max=4_096,
            transaction_bytes_max=65_536,
            cache_bytes=self.cache_bytes,
            section_bytes=self.section_bytes,
            fetch_bytes_max=65_536,
        )

    @property
    def _synchronous_topics(self) -> tuple[str, ...]:
        return tuple(each.decode() for each in REPLICATED_TOPICS) if self.local else (">",)

    @property
    def local_endpoints(self) -> frozenset[str]:
        """Endpoints that are not replicated."""
        return LOCAL if self.local and self.replicate_by == "endpoint" else frozenset()

    def treatment(self, topic: bytes, flags: int) -> int:
        """Return the replication mode of a message (REPL-2)."""
        match self.replicate_by:
            case "publisher" if flags == 0:
                return TREATMENT_NONE
            case "publisher" if flags == MESSAGE_WANTS_ASYNC:
                return TREATMENT_ASYNC
            case "topic" if self.local and topic not in REPLICATED_TOPICS:
                return TREATMENT_NONE
            case _:
                return TREATMENT_SYNC

    @staticmethod
    def draw(pick: SeededRandomness) -> "ReplicatedOptions":
        delay_ms, sync_ms = pick.choose([1, 10, 40]), pick.choose([1, 5, 20])
        return ReplicatedOptions(
            has_lease=pick.chance(0.7),
            lease_ms=pick.choose([200, 500]),
            drift_ppm=pick.choose([0, 10_000, 100_000]),
            replicate_by=pick.choose(["endpoint", "publisher", "topic"]),
            local=pick.chance(0.5),
            degrade=pick.choose(["after", "after", "never"]),
            degrade_after_ms=max(pick.choose([50, 300]), 4 * (delay_ms + sync_ms)),
            window_bytes=pick.choose([65_536, 1_048_576]),
            cache_bytes=pick.choose([65_536, 1_048_576]),
            section_bytes=pick.choose([8_192, 65_536]),
            settle_ms=pick.choose([5, 100, 400]),
            delay_ms=delay_ms,
            sync_ms=sync_ms,
            fault_interval_ms=pick.choose([100, 300, 1_000]),
            matching=pick.choose(["secondary", "primary"]),
            transactions=pick.choose(["stream", "stream", "at_commit"]),
        )


class ReplicatedSummary(PlantSummary, kw_only=True):
    deliveries: int
    redeliveries: int
    acknowledged_synchronous: int
    acknowledged_degraded: int
    acknowledged_known: int
    epochs: int
    planned: int
    forced: int
    crashes: int
    partitions: int
    records_torn: int
    times_whole: int
    times_degraded: int
    times_stranded: int


class ReplicatedPlant(Plant[ReplicatedOptions, ReplicatedSummary]):
    """Two message routers, a witness if there is a lease, and their clients."""

    options_type = ReplicatedOptions
    summary_type = ReplicatedSummary
    step_ns = STEP_NS
    faults: ReplicatedFaultSchedule

    def __init__(self, world: World, options: ReplicatedOptions) -> None:
        super().__init__(world, options)
        self.topics = TOPICS
        self._randomness = world.randomness.fork("plant")
        self.clocks = ClockRates(self._randomness, ("a", "b", "w"), options.drift_ppm)
        self.network = Network(world, LinkFaults(delay_max_ns=options.delay_ms * NS_PER_MS))
        self.checker = ReplicatedChecker(ROUTES, has_lease=options.has_lease, local=options.local_endpoints)
        self.routers = [PairNode(self, name) for name in ("a", "b")]
        self.nodes = [*self.routers, *([VoterNode(self, "w")] if options.has_lease else [])]
        self.publishers = [SimPublisher(self, number) for number in range(2)]
        self.consumers = [
            SimConsumer(self, endpoint, number, is_transacting=endpoint == "some")
            for number, endpoint in enumerate(WANTS)
        ]
        self.noted_counts: dict[str, int] = {}
        self.faults = ReplicatedFaultSchedule(self)
        self.checkers = [self.checker]

    # Reports of nodes

    def sends(self, node: PairNode) -> None:
        """A router delivers or acknowledges."""
        self.checker.require(node.may_speak(), f"{node.name} is not active, but sends to clients")
        self.step()

    def noted(self, note: Noted) -> None:
        self.count(str(note.values["mode"] if note.what == "replication" else note.what))

    def treatment(self, topic: bytes, flags: int) -> int:
        return self.options.treatment(topic, flags)

    def count(self, what: str) -> None:
        self.noted_counts[what] = self.noted_counts.get(what, 0) + 1

    # Links

    def connect(
        self, name: str, node: PairNode, receive: Callable[[Any], None], ended: Callable[[], None]
    ) -> tuple[LinkEnd[Any], LinkEnd[Any]] | None:
        """A link of a client to a router: the client's end and the router's; None if the router is not there."""
        if not node.is_up or node.core is None or self.faults.is_cut(name, node.name):
            return None
        link = self._new_link(name)
        link.ends = (LinkEnd(link, name, receive, ended), LinkEnd(link, node.name))
        link.watch(LINK_TIMEOUT_NS)
        return link.ends

    def _connect_routers(self) -> None:
        self.world.after(PEER_NS, self._connect_routers)
        one, other = self.routers
        is_up = one.is_up and other.is_up and one.core is not None and other.core is not None
        if not is_up or one.has_peer() or other.has_peer() or self.faults.is_cut("a", "b"):
            return
        link = self._new_link("peers")
        link.ends = (LinkEnd(link, one.name), LinkEnd(link, other.name))
        for node, end in zip(self.routers, link.ends, strict=True):
            end.receive, end.ended = partial(node.peer_said, end), partial(node.peer_gone, end)
        link.watch(LINK_TIMEOUT_NS)
        for node, end in zip(self.routers, link.ends, strict=True):
            node.peer_opened(end)

    def _new_link(self, name: str) -> OrderedLink[LinkEnd[Any]]:
        delay_ns = self.options.delay_ms * NS_PER_MS
        randomness = self._randomness.fork(name)
        return OrderedLink(self.world, randomness, delay_ns, is_cut=self.faults.is_cut, poll_ns=LINK_POLL_NS)

    # The run

    def begin(self) -> None:
        for client in [*self.publishers, *self.consumers]:
            client.start()
        self._connect_routers()

    def settle(self) -> None:
        """Let the routers reconnect and all messages be consumed, first at one router and then at the other."""
        self._operate()
        for consumer in self.consumers:
            consumer.hurry()
        self._settle(self._trouble)
        for publisher in self.publishers:
            publisher.is_resting = True
        self._settle(self._unfinished)
        self.checker.finish_first()
        self._take_turns()

    def _take_turns(self) -> None:
        """Switch to the other router, which may have exclusive messages. The order may fail if the voters do not
        agree in time."""
        active, other = sorted(self.routers, key=PairNode.is_active, reverse=True)

        def order() -> str:
            if active.is_in_step():
                other.handle(SwitchHere())
            return "" if other.is_active() else "there is no planned switch"

        self._settle(order)
        self._settle(self._unfinished)

    def _settle(self, trouble: Callable[[], str]) -> None:
        """Run until there is no trouble."""
        end_ns = self.world.now_ns() + SETTLING_NS_MAX
        while self.world.now_ns() < end_ns and trouble():
            self.run(10 * STEP_NS)
        why = trouble()
        self.checker.require(not why, f"{why}, in a healthy plant")

    def _trouble(self) -> str:
        active = [node for node in self.routers if node.is_active()]
        if len(active) != 1:
            return f"{len(active)} routers are active"
        return "" if active[0].is_in_step() else "the other router does not have all records"

    def _unfinished(self) -> str:
        waiting = {each.name: len(each.waiting) for each in self.publishers if each.waiting}
        if waiting:
            return f"unacknowledged messages remain: {waiting}"
        if any(each.is_committing for each in [*self.publishers, *self.consumers]):
            return "a transaction has not ended"
        # Messages that only the other router has were given up by an operator's order.
        kept = {node.name: node.message_count() for node in self.routers if node.is_active() or self.options.has_lease}
        return f"messages remain after everything was consumed: {kept}" if any(kept.values()) else self._trouble()

    def _operate(self) -> None:
        """Without a lease, act as the operator who makes one router active."""
        self.run(NS_PER_SECOND)
        if not self.options.has_lease and not any(node.is_active() for node in self.routers):
            max(self.routers, key=PairNode.epoch).handle(SwitchHere(is_forced=True))

    def counts(self) -> dict[str, Any]:
        outcomes, noted = self.checker.outcomes, self.noted_counts
        return {
            "deliveries": self.checker.deliveries,
            "redeliveries": self.checker.redeliveries,
            "acknowledged_synchronous": outcomes.get(OUTCOME_SYNC, 0),
            "acknowledged_degraded": outcomes.get(OUTCOME_DEGRADED, 0),
            "acknowledged_known": outcomes.get(OUTCOME_KNOWN, 0),
            "epochs": max(node.epoch() for node in self.routers),
            "planned": noted.get("planned", 0),
            "forced": noted.get("forced", 0),
            "crashes": self.faults.crashes,
            "partitions": noted.get("partitions", 0),
            "records_torn": sum(node.journal.store.torn for node in self.routers),
            "times_whole": noted.get("whole", 0),
            "times_degraded": noted.get("degraded", 0),
            "times_stranded": noted.get("stranded", 0),
        }


run_replicated_seed = SeedRun(
    "replicated",
    ReplicatedPlant.draw,
    "messages acknowledged as synchronous were delivered over every switch, in order; redeliveries were flagged",
)
