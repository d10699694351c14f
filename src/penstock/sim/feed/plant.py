"""The scenario `feed`: an exchange, adapters and subscribers."""

from collections.abc import Sequence
from typing import Any, Self

import msgspec

from penstock.base.clock import NS_PER_MS
from penstock.base.ids import parse_group
from penstock.feed.config import LineConfig, SynchroniserConfig
from penstock.feed.core.events import Promote, ReturnToService, RoleChanged
from penstock.feed.core.sync.messages import SyncMessage
from penstock.middleware import Discontinuity, MergeGap, MergerConfig, PublisherConfig, ReceiverConfig, SessionEvent
from penstock.sim.datagram_node import Viewer
from penstock.sim.disk import DiskFaults
from penstock.sim.feed.checkers import (
    FeedChecker,
    LivenessChecker,
    LosslessChecker,
    NumberChecker,
    PromotionChecker,
    SessionChecker,
    StoryChecker,
    TermChecker,
)
from penstock.sim.feed.exchange import Exchange, LineFaults, Market
from penstock.sim.feed.faults import FeedFaultSchedule
from penstock.sim.feed.market import ItchMarket
from penstock.sim.feed.nodes import AdapterNode, SubscriberNode
from penstock.sim.feed.packables import ApplicationMessage
from penstock.sim.feed.peers import PeerLinks
from penstock.sim.network import LinkFaults, Network
from penstock.sim.plant import Plant, PlantSummary
from penstock.sim.randomness import SeededRandomness
from penstock.sim.seed_run import SeedRun
from penstock.sim.world import World

SETTLE_NS = 300 * NS_PER_MS


class FeedPlantOptions(msgspec.Struct, kw_only=True):
    """Options of a plant."""

    adapters: int = 3
    subscribers: int = 2
    streams: int = 1
    messages_per_s: int = 400
    sync: SynchroniserConfig = SynchroniserConfig()
    line: LineConfig = LineConfig()
    lines: LineFaults = msgspec.field(default_factory=LineFaults)
    publisher: PublisherConfig = PublisherConfig(keep_alive_ms=100)
    receiver: ReceiverConfig = ReceiverConfig(publisher_expiry_ms=500, nack_retry_ms=3)
    merger: MergerConfig = MergerConfig(wait_ms=300)
    link: LinkFaults = msgspec.field(default_factory=LinkFaults)
    disk: DiskFaults = msgspec.field(default_factory=DiskFaults)
    sessions: bool = False
    """True: new sessions begin during the run."""
    fault_interval_ms: int = 0
    """Mean time between faults; 0 for none."""
    is_mild: bool = True
    """True: the only fault is a crash of the active adapter while all others are synchronised."""

    @staticmethod
    def draw(randomness: SeededRandomness) -> "FeedPlantOptions":
        """The options of a seed: mild to merciless."""
        pick = randomness
        is_mild = pick.chance(0.3)
        return FeedPlantOptions(
            adapters=pick.between(2, 4),
            subscribers=pick.between(1, 2),
            streams=pick.choose([1, 1, 2]),
            messages_per_s=pick.choose([50, 150, 400]),
            sync=SynchroniserConfig(
                state_interval_ms=pick.choose([15, 40]),
                checkpoint_interval=pick.choose([8, 32, 1_024]),
                checkpoints_max=pick.choose([2, 64]),
                active_lost_ms=100,
                claim_ms=10,
                startup_ms=100,
                handover_ms=30,
                without_synchronised="promote" if is_mild else pick.choose(["promote", "promote", "wait"]),
                pause_ms=pick.choose([1, 5]),
                pause_every=pick.choose([1, 3]),
                unsynchronised_max=pick.choose([4, 16]),
                offline=pick.choose(["lowest", "lower-than-any"]),
                held_messages_max=100_000 if is_mild else pick.choose([5, 100_000]),
                image_chunk_size=pick.choose([256, 4_096, 65_536]),
                image_bytes_per_s=pick.choose([2_000_000, 50_000_000]),
                image_timeout_ms=100,
            ),
            line=LineConfig(
                join=pick.choose(["live", "start"]),
                gap_wait_us=1_000,
                request_retry_ms=5,
                request_attempts_max=6 if is_mild else pick.choose([0, 2, 6]),
                jump_wait_ms=50,
            ),
            lines=LineFaults(loss=pick.choose([0.0, 0.02] if is_mild else [0.0, 0.02, 0.2])),
            link=LinkFaults(
                loss=pick.choose([0.0, 0.02] if is_mild else [0.0, 0.02, 0.1]),
                reorder=pick.choose([0.0, 0.05]),
                reorder_delay_ns=1_000_000,
            ),
            disk=DiskFaults() if is_mild else DiskFaults(fsync_failure=pick.choose([0.0, 0.3])),
            sessions=pick.chance(0.3),
            fault_interval_ms=400 if is_mild else pick.choose([80, 250]),
            is_mild=is_mild,
        )


class FeedSummary(PlantSummary, kw_only=True):
    source_messages: int
    messages_published: int
    messages_delivered: int
    takeovers: int
    discontinuities: int
    gaps_reported: int
    crashes: int
    is_mild: bool


class FeedPlant(Plant[FeedPlantOptions, FeedSummary]):
    """Exchange, adapters and subscribers on faulty networks, with checkers around them."""

    options_type = FeedPlantOptions
    summary_type = FeedSummary
    step_ns = 20 * NS_PER_MS
    checkers: list[FeedChecker]

    def __init__(self, world: World, options: FeedPlantOptions, market: Market | None = None) -> None:
        super().__init__(world, options)
        self.market = market or ItchMarket(world.seed)
        self.stream_ids = list(range(1, options.streams + 1))
        self.groups = [parse_group(f"239.8.0.{n + 1}") for n in range(options.adapters)]
        self.network = Network(world, options.link)
        self.adapters = [AdapterNode(self, n) for n in range(options.adapters)]
        self.subscribers = [SubscriberNode(self, n + 1) for n in range(options.subscribers)]
        self.nodes = [*self.subscribers, *self.adapters]
        self.peers = PeerLinks(world, [*self.adapters], self._heard)
        self.exchange = Exchange(self)
        self.faults = FeedFaultSchedule(self)
        numbers = NumberChecker(self)
        self.stories = StoryChecker(self, numbers)
        self.checkers = [
            numbers,
            TermChecker(self),
            PromotionChecker(self, numbers),
            self.stories,
            SessionChecker(self),
            LivenessChecker(self, numbers, self.stories),
        ]
        if options.is_mild:
            self.checkers.append(LosslessChecker(self))
        self._told = {"takeover": 0, "discontinuity": 0, "gap": 0}

    @classmethod
    def draw(cls, world: World, market: Market | None = None) -> Self:
        return cls(world, FeedPlantOptions.draw(world.randomness.fork("options")), market)

    # Reports of nodes

    def published(self, adapter: AdapterNode, session: str, messages: Sequence[ApplicationMessage]) -> None:
        for checker in self.checkers:
            checker.published(adapter, session, messages)

    def role_changed(self, adapter: AdapterNode, change: RoleChanged) -> None:
        self._told["takeover"] += change.role == "active"
        for checker in self.checkers:
            checker.role_changed(adapter, change)

    def delivered(self, viewer: Viewer, message: ApplicationMessage) -> None:
        for checker in self.checkers:
            checker.delivered(viewer, message)

    def told(self, viewer: Viewer, what: MergeGap | Discontinuity) -> None:
        self._told["gap" if isinstance(what, MergeGap) else "discontinuity"] += 1
        for checker in self.checkers:
            checker.told(viewer, what)

    def session(self, viewer: Viewer, event: SessionEvent) -> None:
        for checker in self.checkers:
            checker.session(viewer, event)

    def _heard(self, index: int, message: SyncMessage) -> None:
        for checker in self.checkers:
            checker.heard(self.adapters[index], message)

    # The run

    def begin(self) -> None:
        self.exchange.open()
        self.run(2 * self.options.sync.startup_ms * NS_PER_MS)
        self.exchange.start()

    def settle(self) -> None:
        """Let an operator act if the policy requires it, continue, and stop the market."""
        self.run(SETTLE_NS)
        for adapter in self.adapters:
            adapter.handle(ReturnToService())
        if not any(self._is_active(adapter) for adapter in self.adapters):
            self.adapters[-1].handle(Promote())
        self.run(SETTLE_NS)
        self.exchange.rest()
        self.run(2 * SETTLE_NS)

    def _is_active(self, adapter: AdapterNode) -> bool:
        process = adapter.process()
        return process is not None and process.feed.synchroniser.role == "active"

    def is_well(self) -> bool:
        """True if one adapter is active and all others are synchronised with it."""
        processes = [adapter.process() for adapter in self.adapters]
        states = [each.feed.synchroniser.state(self.world.now_ns()) for each in processes if each is not None]
        is_one = sum(state.is_active for state in states) == 1
        return len(states) == len(self.adapters) and is_one and all(state.is_synchronised for state in states)

    def counts(self) -> dict[str, Any]:
        return {
            "source_messages": sum(len(log.made) for log in self.exchange.logs.values()),
            "messages_published": sum(adapter.counters["messages_published"] for adapter in self.adapters),
            "messages_delivered": self.stories.count,
            "takeovers": self._told["takeover"],
            "discontinuities": self._told["discontinuity"],
            "gaps_reported": self._told["gap"],
            "crashes": self.faults.crashes,
            "is_mild": self.options.is_mild,
        }


run_feed_seed = SeedRun(
    "feed",
    FeedPlant.draw,
    "every subscriber got each message once and in order, or with a report; the adapters are synchronised again",
)
