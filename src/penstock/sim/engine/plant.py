"""The scenario `engine`: a ticker plant, multiplexers below it and consumers of all classes."""

from typing import Any

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.base.errors import SimulationError
from penstock.engine import ClassMap, DistributionEngine, EngineConfig, Event, MeteringLimits
from penstock.engine.client._store import RecordState
from penstock.engine.core.events import ChangeClasses
from penstock.engine.core.kernel._event import EventKind, ReceiptCause, TransmissionClass
from penstock.engine.core.signals import SignalThresholds, Threshold
from penstock.plant.config import DatagramsConfig
from penstock.plant.core.incoming import Updated
from penstock.sim.engine.chains import GROUP, INTERFACE
from penstock.sim.engine.checkers import (
    BoundsChecker,
    ContentChecker,
    EngineChecker,
    FreshnessChecker,
    NewestChecker,
    RateChecker,
    StoryChecker,
)
from penstock.sim.engine.consumers import FAST_BYTES_PER_S, MODELS_BY_ID, Connection, ConsumerNode, Defined
from penstock.sim.engine.faults import EngineFaultSchedule
from penstock.sim.engine.links import SessionLink
from penstock.sim.engine.market import MODELS, Market
from penstock.sim.engine.muxes import MuxNode
from penstock.sim.engine.nodes import AttachedConsumer, DistributionNode, PlantNode
from penstock.sim.engine.options import EnginePlantOptions, EngineSummary
from penstock.sim.engine.receipts import ReceiptChecker, SignalChecker
from penstock.sim.engine.records import AgeChecker, RecordChecker
from penstock.sim.engine.regions import ReadAmid
from penstock.sim.engine.sessions import SessionChecker, SessionSource
from penstock.sim.network import LinkFaults, Network
from penstock.sim.plant import Plant
from penstock.sim.randomness import SeededRandomness
from penstock.sim.seed_run import SeedRun
from penstock.sim.world import World

SETTLE_NS = 3 * NS_PER_SECOND
CALM_NS = 400 * NS_PER_MS
"""Maximum age of an adaptive record after congestion has ended, below a chain of nodes that restart."""
PER_SECOND_MAX = 100.0
RULES = ClassMap.parse(
    """
default = "critical"
[[rule]]
class = "metered"
topics = ["md.newest.*"]
[[rule]]
class = "adaptive"
models = ["sim_kept"]
where = "high > 0"
"""
)
"""Class rules for consumers that leave the class to the node; for one model the class depends on each record."""

SIGNALS = SignalThresholds(
    load=Threshold(relieve=0.9, restore=0.6), congestion=Threshold(relieve=0.6, restore=0.1), hold_seconds=0.02
)

OTHER_RULES = ClassMap.parse(
    """
default = "adaptive"
[[rule]]
class = "critical"
topics = ["md.newest.*"]
[[rule]]
class = "metered"
models = ["sim_kept"]
where = "high > 0"
"""
)
"""The rules among which an operator may choose."""


class EnginePlant(Plant[EnginePlantOptions, EngineSummary]):
    """A chain of engines and their consumers, with checkers around them."""

    options_type = EnginePlantOptions
    summary_type = EngineSummary
    step_ns = 50 * NS_PER_MS
    nodes: list[DistributionNode]
    checkers: list[EngineChecker]

    def __init__(self, world: World, options: EnginePlantOptions) -> None:
        super().__init__(world, options)
        self.market = Market(options.topics)
        self.source = SessionSource(self.market)
        faults = LinkFaults(loss=options.loss, duplicate=options.loss / 2, reorder=options.loss)
        self.network = Network(world, faults, "chain")
        self._ports = 0
        self.storm = 1
        self.is_resting = self.is_settling = self.is_over = False
        self.overruns = self.connections = self.rule_changes = self.datagram_losses = self.updates_metered = 0
        self.plant = PlantNode(self, "plant")
        self.muxes: list[MuxNode] = []
        for number in range(options.muxes):
            above: DistributionNode = self.muxes[-1] if self.muxes and options.depth > 1 else self.plant
            self.muxes.append(MuxNode(self, f"mux-{number}", above))
        self.nodes = [self.plant, *self.muxes]
        self.consumers = [
            ConsumerNode(self, f"{node.name}/{index}", node, taste)
            for node in self.nodes
            for index, taste in enumerate(options.tastes)
        ]
        self.faults = EngineFaultSchedule(self)
        self.stories = StoryChecker(self.market, options)
        self.rates = RateChecker(self.market)
        self.records = RecordChecker(self.market, options)
        self.losses = ReceiptChecker(self.market, options)
        self.signals = SignalChecker(self.market)
        self.sessions = SessionChecker(self.market, self.source)
        self.checkers = [
            ContentChecker(self.market, self.stories, options),
            self.rates,
            self.stories,
            self.records,
            self.losses,
            self.signals,
            AgeChecker(self.market),
            NewestChecker(self.market, self.stories, self.records.newest),
            FreshnessChecker(self.market),
            BoundsChecker(self.market),
            self.sessions,
        ]

    @property
    def updates_per_s(self) -> int:
        return self.options.updates_per_s * self.storm

    def make_engine(self, node: DistributionNode, randomness: SeededRandomness) -> DistributionEngine:
        is_plant = node is self.plant
        config = EngineConfig(
            classes=("critical", "adaptive", "metered"),
            keeps="all" if is_plant else "wanted",
            has_upstream=not is_plant,
            offsets="own" if self.options.regions == "own" else "common",
            items_max=1_000,
            consumers_max=1_000,
            pairs_max=100_000,
            history_bytes=self.options.history_bytes,
            budget_bytes=self.options.budget_bytes,
        )
        limits = MeteringLimits(
            per_second_max=PER_SECOND_MAX,
            node_per_second=self.options.node_per_second,
            consumer_per_second=self.options.consumer_per_second,
        )
        signals = SIGNALS if self.options.has_signals else None
        return DistributionEngine(
            config, randomness, node.counters, models=MODELS, rules=RULES, limits=limits, signals=signals
        )

    def datagrams(self, node: DistributionNode) -> DatagramsConfig | None:
        """Configuration of the datagrams to the nodes below; None if the node uses sessions."""
        if self.options.chain == "session":
            return None
        has_group = self.options.has_group and node is self.plant
        missed = "resend" if self.options.missed == "resend_all" and not has_group else self.options.missed
        return DatagramsConfig(interface=INTERFACE, missed=missed, group=GROUP if has_group else "")

    def new_port(self) -> int:
        self._ports += 1
        return self._ports

    def publish_below(self, engine: DistributionEngine, update: Updated, now_ns: int) -> None:
        engine.kernel.publish(*update[:-2], now_ns, update.merged, None, update.session_id)

    def newest_at_plant(self, topic: str) -> int:
        """The newest record at the plant, which loses its records in a crash; 0: none."""
        for current in self.plant.engine.current([topic]):
            if current.record is not None:
                number: int = MODELS_BY_ID[current.model_id].view(current.record).number
                return number
        return 0

    def change_rules(self, node: DistributionNode) -> None:
        """Replace the class rules, or restore the previous ones."""
        rules = self.world.randomness.choose([RULES, OTHER_RULES])
        if node.is_up:
            self.rule_changes += 1
            node.ask(lambda: node.say(ChangeClasses(rules)))

    def parties_of(self, node: DistributionNode) -> list[AttachedConsumer]:
        """Consumers and multiplexers of the node, attached or reconnecting."""
        muxes = [each for each in self.muxes if each.above is node]
        return [*muxes, *(each for each in self.consumers if each.node is node)]

    def links(self) -> list[SessionLink]:
        links = [*(each.link for each in self.consumers), *(each.link for each in self.muxes)]
        return [link for link in links if isinstance(link, SessionLink)]

    # Reports of nodes

    def connected(self, connection: Connection, consumer: ConsumerNode) -> None:
        self.connections += 1
        self.world.log.write(self.world.now_ns(), consumer.name, f"connects: {connection.number}")

    def subscribed(self, connection: Connection, topic: str) -> None:
        self.world.log.write(self.world.now_ns(), connection.consumer, f"subscribes to {topic}")
        for checker in self.checkers:
            checker.subscribed(connection, topic)

    def unsubscribed(self, connection: Connection, topic: str) -> None:
        self.world.log.write(self.world.now_ns(), connection.consumer, f"unsubscribes from {topic}")
        for checker in self.checkers:
            checker.unsubscribed(connection, topic)

    def overran(self, connection: Connection) -> None:
        self.overruns += 1
        self.losses.overran(connection)
        self.world.log.write(self.world.now_ns(), connection.consumer, "is overrun")

    def restarted(self, connection: Connection) -> None:
        self.stories.restarted(connection)

    def told(self, connection: Connection, event: Event, defined: Defined | None) -> None:
        message = None
        if event.kind in (EventKind.REFRESH, EventKind.UPDATE) and defined is not None:
            message = defined.model.view(event.body)
        what = f"{defined.topic if defined else ''} {'' if message is None else message.number}"
        flags = f"class {event.cls} flags {event.flags} merged {event.merged}"
        self.world.log.write(
            self.world.now_ns(), connection.consumer, f"{EventKind(event.kind).name} {event.number} {what} {flags}"
        )
        if event.kind == EventKind.SESSION or (defined is not None and defined.topic in self.market.dated):
            self.sessions.told(connection, event, defined, message)
            return
        for checker in self.checkers:
            checker.told(connection, event, defined, message)

    def live(self, connection: Connection, subscription: int) -> None:
        """A consumer's ring of notices announces the subscription as live."""
        self.records.live(connection, subscription)

    def read(
        self, connection: Connection, topic: str, state: RecordState, *, is_shared: bool, is_updated: bool
    ) -> None:
        """A consumer reads a record in its region."""
        what = f"reads {topic} {state.message.number} merged {state.merged}"
        self.world.log.write(self.world.now_ns(), connection.consumer, what)
        self.records.read(connection, topic, state, is_shared=is_shared, is_updated=is_updated)

    def read_amid(self, connection: Connection, topic: str, read: ReadAmid) -> None:
        """Read a record while it is being written."""
        self.records.read_amid(connection, topic, read)

    def wrote(self, consumer: ConsumerNode, event: Event, defined: Defined | None) -> None:
        """A node wrote an event into a consumer's ring."""
        if defined is not None and defined.topic in self.market.dated:
            return
        self.records.wrote(consumer, event)
        self.stories.wrote(consumer.connection, event, defined)
        if event.kind == EventKind.RECEIPT:
            first, last, cause = event.lost
            consumer.log(f"a receipt is written: {first} to {last}, {ReceiptCause(cause).name}")
            self.losses.wrote_receipt(consumer.connection, ReceiptCause(cause), self.world.now_ns())
        if event.kind == EventKind.UPDATE and defined is not None:
            self.signals.wrote(consumer, event, defined)
        self.metered(consumer, event, defined)

    def metered(self, consumer: ConsumerNode, event: Event, defined: Defined | None) -> None:
        """A node wrote an event for a consumer; only metered updates are checked."""
        if event.kind != EventKind.UPDATE or event.cls != TransmissionClass.METERED or defined is None:
            return
        if defined.topic in self.market.dated:
            return
        node, now_ns = consumer.node, self.world.now_ns()
        per_second = min(consumer.taste.per_second, PER_SECOND_MAX)
        self.rates.wrote(f"{consumer.connection}, {defined.topic}", per_second, now_ns)
        self.rates.wrote(f"{consumer.connection}, in all", self.options.consumer_per_second, now_ns)
        self.rates.wrote(f"{node.name} since its start {node.incarnation}", self.options.node_per_second, now_ns)
        self.updates_metered += 1

    def broke(self, what: str) -> None:
        raise SimulationError(what)

    # The run

    def begin(self) -> None:
        for consumer in self.consumers:
            consumer.start()

    def finish(self) -> None:
        try:
            super().finish()
        finally:
            self.close()

    def settle(self) -> None:
        """Congestion ends with the faults; the market pauses, and soon all consumers have the newest records."""
        self.network.heal()
        self.is_settling = True
        if self.options.is_lossy_above and self.options.missed == "wait":
            self.plant.ask(self.plant.publish_all)  # only a new update replaces the last lost one
        for link in self.links():
            link.bytes_per_s = FAST_BYTES_PER_S
        self.run(100 * NS_PER_MS)
        self.is_resting = True
        self.run(CALM_NS)
        for checker in self.checkers:
            checker.calmed(self)
        self.run(SETTLE_NS - CALM_NS)

    def close(self) -> None:
        self.is_over = True
        for consumer in self.consumers:
            consumer.close()
        for node in self.nodes:
            node.close()

    def counts(self) -> dict[str, Any]:
        return {
            "updates_published": self.market.count,
            "updates_delivered": self.stories.updates,
            "updates_merged": self.stories.merged,
            "updates_metered": self.updates_metered,
            "updates_replayed": self.stories.replays,
            "refreshes": self.stories.refreshes,
            "receipts": self.stories.receipts,
            "overruns": self.overruns,
            "connections": self.connections,
            "crashes": self.faults.crashes,
            "rule_changes": self.rule_changes,
            "datagrams_lost": self.network.statistics.lost,
            "datagram_losses": self.datagram_losses,
            "reliefs": sum(node.reliefs for node in self.nodes),
            "updates_relieved": self.signals.relieved,
            "records_read": self.records.reads,
            "records_read_amid": self.records.reads_amid,
            "session_changes": self.source.changes,
            "records_withdrawn": self.sessions.withdrawn,
        }


run_engine_seed = SeedRun(
    "engine",
    EnginePlant.draw,
    "every consumer received its class of delivery or a report of its losses, and has the newest records",
)
