"""The scenario `tree`: a distribution tree with agents, subscribers and publishers."""

from typing import Any

import msgspec

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.security.core.token import Grant
from penstock.sim.plant import Plant, PlantSummary
from penstock.sim.randomness import SeededRandomness
from penstock.sim.seed_run import SeedRun
from penstock.sim.tree.apps import Subscriber, Subscription
from penstock.sim.tree.checkers import (
    CatchUpChecker,
    Delivered,
    InfostreamChecker,
    PublisherChecker,
    ShapeChecker,
    StoryChecker,
)
from penstock.sim.tree.faults import TreeFaultSchedule
from penstock.sim.tree.links import TreeNetwork
from penstock.sim.tree.market import KINDS, LEVELS, MODEL, NAMES, Taste, topics_of
from penstock.sim.tree.nodes import AgentNode
from penstock.sim.tree.publishers import Publisher
from penstock.sim.world import World
from penstock.tree.config import BackoffConfig, ReactionConfig, Step, StreamConfig, TreeConfig
from penstock.tree.core.control import LIVE, OLDEST, Class, Position
from penstock.tree.core.events import Informed, Revoke
from penstock.tree.core.infostream import Conflated, Diverged, Gone, Info, Revoked
from penstock.wire import decode

STEP_NS = 100 * NS_PER_MS
SETTLE_NS = 2 * NS_PER_SECOND
SETTLE_NS_PER_LEVEL = NS_PER_SECOND // 4
"""Maximum recovery time of the tree after the last fault, plus this time for each level."""
CATCH_UP_NS = 60 * NS_PER_SECOND
"""A subscriber below many agents catches up slowly: every portion passes all of them."""
LEVELS_MAX = 20


class TreePlantOptions(msgspec.Struct, kw_only=True):
    """Options of a tree."""

    agents: int = 6
    fan_out: int = 3
    subscribers: int = 8
    streams: int = 2
    publishers: int = 2
    messages_per_s: int = 200
    history_bytes: int = 1_048_576
    payload_size: int = 0
    """Padding of messages in bytes; larger messages shorten the histories."""
    queue_packets: int = 64
    persist: str = "synced"
    standby: bool = False
    replicate: str = "none"
    promotes_by_hand: bool = False
    peers: int = 0
    reactions: tuple[Step, ...] = ("alternate", "sibling", "wait")
    unrooted: tuple[Step, ...] = ("wait",)
    balance: int = 0
    forgets: float = 0.0
    fault_interval_ms: int = 0

    @staticmethod
    def draw(randomness: SeededRandomness) -> "TreePlantOptions":
        """The options of a seed: mild to merciless."""
        pick = randomness
        reactions: list[tuple[Step, ...]] = [
            ("alternate", "sibling", "wait"), ("sibling", "alternate"), ("wait",), ("alternate", "parent"),
        ]  # fmt: skip
        unrooted: list[tuple[Step, ...]] = [("wait",), ("wait",), ("wait", "alternate"), ("alternate",)]
        has_standby = pick.chance(0.4)
        agents = pick.choose([2, 4, 6, 8, 12, 20])
        if pick.chance(0.02):
            agents = 200
        return TreePlantOptions(
            agents=agents,
            fan_out=pick.choose([1, 2, 3, 5]) if agents < 100 else 6,
            subscribers=pick.choose([3, 8, 16]) if agents < 100 else 400,
            streams=pick.choose([1, 2]),
            publishers=pick.choose([1, 2, 3]),
            messages_per_s=pick.choose([50, 150, 400]) if agents < 100 else 20,
            payload_size=pick.choose([0, 0, 4_000]) if agents < 100 else 0,
            queue_packets=pick.choose([16, 64, 1_024]),
            persist=pick.choose(["synced", "synced", "written"]),
            standby=has_standby,
            replicate=pick.choose(["synchronous", "asynchronous"]) if has_standby else "none",
            promotes_by_hand=pick.chance(0.5),
            peers=pick.choose([0, 0, 1, 2]),
            reactions=pick.choose(reactions[:2] if has_standby else reactions),
            unrooted=pick.choose(unrooted),
            balance=pick.choose([0, 0, 60]),
            forgets=0.0 if has_standby else pick.choose([0.0, 0.5]),
            fault_interval_ms=pick.choose([0, 60, 200, 500]) if agents < 100 else 40,
        )


class TreeSummary(PlantSummary, kw_only=True):
    agents: int
    subscribers: int
    messages_published: int
    messages_delivered: int
    infostream_messages: int
    receipts: int
    diverged: int
    revoked: int
    moves: int
    cuts: int
    begun_anew: int
    crashes: int
    takeovers: int
    torn: int


class TreePlant(Plant[TreePlantOptions, TreeSummary]):
    """Agents and applications, with checkers around them."""

    options_type = TreePlantOptions
    summary_type = TreeSummary
    step_ns = STEP_NS
    faults: TreeFaultSchedule

    def __init__(self, world: World, options: TreePlantOptions) -> None:
        super().__init__(world, options)
        self.models = (MODEL,)
        self.network = TreeNetwork(world)
        self.disk_randomness = world.randomness.fork("disk delays")
        self._randomness = world.randomness.fork("plant")
        self.is_publishing = True
        self.is_taken_over = False
        self.stream_names = [f"s{number}" for number in range(1, options.streams + 1)]
        self._removed: dict[str, dict[int, Delivered]] = {name: {} for name in self.stream_names}
        self._revoked: dict[str, Revoke] = {}
        self.stories = StoryChecker(self)
        self.infostream = InfostreamChecker(self)
        self.checkers = [
            ShapeChecker(self), self.infostream, self.stories, PublisherChecker(self), CatchUpChecker(self)
        ]  # fmt: skip
        self._first_root = AgentNode(self, self._root_config())
        self.standby: AgentNode | None = None
        self.agents: list[AgentNode] = [self._first_root]
        self.nodes = self.agents
        if options.standby:
            self.standby = AgentNode(self, self.config_of("standby", role="standby", parent=self.place_of("root")))
            self.agents.append(self.standby)
        self._by_place = {node.place: node for node in self.agents}
        for number in range(1, options.agents + 1):
            self.add_agent(self._agent_config(number))
        self.subscribers = [self._subscriber(number) for number in range(1, options.subscribers + 1)]
        roots = [self.place_of("root"), *([self.place_of("standby")] if options.standby else [])]
        self.publishers = [Publisher(self, f"p{number}", roots, number) for number in range(1, options.publishers + 1)]
        self.faults = TreeFaultSchedule(self)

    # Content of the plant

    @property
    def root(self) -> AgentNode:
        """The root with the highest term; during a takeover, the former or the next root."""
        ruling = [node for node in self.agents if node.became is not None and node.became.role == "root"]
        if ruling:
            return max(ruling, key=lambda node: node.became.term if node.became is not None else 0)
        return self.standby if self.is_taken_over and self.standby is not None else self._first_root

    def is_dead(self, node: AgentNode) -> bool:
        return self.is_taken_over and node is self._first_root

    def place_of(self, name: str) -> str:
        return f"{name}:7420"

    def at_place(self, place: str) -> AgentNode | None:
        return self._by_place.get(place)

    def add_agent(self, config: TreeConfig) -> AgentNode:
        node = AgentNode(self, config)
        self.agents.append(node)
        self._by_place[node.place] = node
        return node

    def config_of(self, name: str, **more: object) -> TreeConfig:
        options = self.options
        values: dict[str, object] = {
            "on": ReactionConfig(
                parent_lost=options.reactions,
                parent_unrooted=options.unrooted,
                root_lost="wait" if options.promotes_by_hand else "promote",
                promote_after_ms=300,
            ),
            "backoff": BackoffConfig(base_ms=10, max_ms=200),
            "history_bytes": options.history_bytes,
            "queue_packets": options.queue_packets,
            "persist": options.persist,
            "replicate": options.replicate,
            "replicate_wait_ms": 200,
            "heartbeat_ms": 100,
            "silence_ms": 300,
            "fetch_bytes_max": 65_536,
            "balance_high": options.balance,
            "streams_max": 16,
            "children_max": 256 if options.agents < 100 else 1_024,
        }
        return TreeConfig(name=name, **{**values, **more})  # type: ignore[arg-type]

    def _root_config(self) -> TreeConfig:
        streams = tuple(StreamConfig(name=name, topics=(f"{name}.>",)) for name in self.stream_names)
        standby = self.place_of("standby") if self.options.standby else ""
        return self.config_of("root", role="root", streams=streams, standby=standby)

    def _agent_config(self, number: int) -> TreeConfig:
        pick = self._randomness
        above = ["root"] if number <= self.options.fan_out else []
        above = above or [f"a{pick.between(max(1, (number - 1) // self.options.fan_out), number - 1)}"]
        others = [f"a{pick.between(1, self.options.agents)}" for _ in range(pick.below(3))]
        if self.options.standby and above == ["root"]:
            others.append("standby")
        others = [each for each in dict.fromkeys(others) if each not in (f"a{number}", above[0])]
        alternates = tuple(map(self.place_of, others))
        peers: tuple[str, ...] = ()
        if number <= self.options.peers and number < self.options.agents:
            peers = (self.place_of(f"a{number + 1}"),)
        return self.config_of(f"a{number}", parent=self.place_of(above[0]), alternates=alternates, peers=peers)

    def _subscriber(self, number: int) -> Subscriber:
        pick = self._randomness
        homes = [f"a{pick.between(1, self.options.agents)}" for _ in range(3)]
        wants = []
        for stream in self.stream_names:
            name, kind = pick.choose(["*", *NAMES]), pick.choose(["*", *KINDS])
            level_min = pick.choose([0, 0, LEVELS // 2, LEVELS - 10])
            begin = pick.choose([LIVE, LIVE, OLDEST, Position("time", NS_PER_SECOND // 2)])
            wants.append(Subscription(stream, Taste(stream, name, kind, level_min), begin))
        classes: list[Class] = ["lossless", "lossless", "lossless", "conflating", "disconnect"]
        places = [self.place_of(each) for each in dict.fromkeys(homes)]
        return Subscriber(self, f"u{number}", places, wants, pick.choose(classes))

    # Reports of nodes

    def grants_of(self, name: str) -> tuple[Grant, ...] | None:
        return None

    def sent(self, node: AgentNode, link: int, data: bytes) -> None:
        self.infostream.sent(node, link, data)

    def informed(self, node: AgentNode, informed: Informed) -> None:
        """Provides data for observers of the run."""

    def heard(self, subscriber: Subscriber, agent: str, publisher_id: int, info: Info) -> None:
        self.world.log.write(self.world.now_ns(), subscriber.name, f"hears {info} from {agent}")

    def began(self, subscriber: Subscriber, subscription: Subscription, after: int) -> None:
        self.world.log.write(self.world.now_ns(), subscriber.name, f"begins {subscription.taste} after {after}")
        self.stories.began(subscriber, subscription, after)

    def delivered(
        self, subscriber: Subscriber, subscription: Subscription, sequence: int, term: int, topic: str, payload: bytes
    ) -> None:
        self.world.log.write(self.world.now_ns(), subscriber.name, f"gets {subscription.stream} {sequence} of {term}")
        message = Delivered(sequence, term, topic, payload)
        self.stories.delivered(subscriber, subscription, message)

    def published(self, publisher: Publisher) -> None:
        """Called after each publication, for plants that need its time."""

    def gone(self, subscriber: Subscriber, info: Gone) -> None:
        self.stories.gone(subscriber, info)

    def diverged(self, subscriber: Subscriber, subscription: Subscription, info: Diverged) -> None:
        self.stories.diverged(subscriber, subscription, info)

    def conflated(self, subscriber: Subscriber, info: Conflated) -> None:
        self.stories.conflated(subscriber, info)

    def revoked(self, subscriber: Subscriber, info: Revoked) -> None:
        self.stories.revoked(subscriber, info)

    # Operators

    def revoke(self, subscriber: Subscriber) -> None:
        stream = self._randomness.choose(self.stream_names)
        event = Revoke(subscriber.name, (f"{stream}.>",), "the entitlement has ended")
        self.world.log.write(self.world.now_ns(), "plant", f"revokes {event}")
        self._revoked[subscriber.name] = event
        for node in self.agents:
            node.handle(event)

    def revocations(self) -> list[Revoke]:
        return list(self._revoked.values())

    def is_revoked(self, name: str) -> bool:
        return name in self._revoked

    def note_removed(self, stream: int, through: int) -> int:
        """Keep a copy of the packets that the root's journal is about to remove."""
        disk = self.root.disk
        name = disk.infos[stream].name
        for packet in disk.stores[stream].records():
            whole = decode(packet)
            if whole.sequence <= through:
                self._removed[name][whole.sequence] = Delivered.of(packet)
        return through

    def truth(self, stream: str) -> dict[int, Delivered]:
        """The root's stream, including messages that it has dropped since."""
        disk = self.root.disk
        number = next((number for number, info in disk.infos.items() if info.name == stream), None)
        packets = disk.stores[number].records() if number is not None else []
        found = dict(self._removed[stream])
        for packet in packets:
            message = Delivered.of(packet)
            found[message.sequence] = message
        return found

    # The run

    def begin(self) -> None:
        for application in (*self.publishers, *self.subscribers):
            application.start()
        self._publish()

    def _publish(self) -> None:
        if not self.is_publishing:
            return
        pick = self._randomness
        publisher = pick.choose(self.publishers)
        stream = pick.choose(self.stream_names)
        for _ in range(1 + pick.below(4)):
            publisher.publish(
                stream, pick.choose(topics_of(stream)), pick.below(LEVELS), pick.below(self.options.payload_size + 1)
            )
        self.world.after(pick.below(5 * NS_PER_SECOND // self.options.messages_per_s), self._publish)

    def settle(self) -> None:
        """Wait until the tree is intact and all subscribers have caught up."""
        for subscriber in self.subscribers:
            if not subscriber.is_up:
                subscriber.start()
        self.run(200 * NS_PER_MS)
        self.is_publishing = False
        levels = min(self.options.agents // self.options.fan_out, LEVELS_MAX)
        self.run(SETTLE_NS + levels * SETTLE_NS_PER_LEVEL)
        self._let_catch_up()

    def _let_catch_up(self) -> None:
        """Wait as long as subscribers make progress, but at most as long as the run has taken, or CATCH_UP_NS."""
        now_ns = self.world.now_ns()
        before, until_ns = -1, now_ns + max(now_ns, CATCH_UP_NS)
        while (progress := sum(each.progress for each in self.subscribers)) > before and self.world.now_ns() < until_ns:
            before = progress
            self.run(SETTLE_NS_PER_LEVEL)

    def counts(self) -> dict[str, Any]:
        return {
            "agents": len(self.agents),
            "subscribers": len(self.subscribers),
            "messages_published": sum(len(each.messages) for each in self.publishers),
            "messages_delivered": self.stories.delivered_count,
            "infostream_messages": self.infostream.heard_count,
            "receipts": self.stories.receipts,
            "diverged": self.stories.diverged_count,
            "revoked": len(self._revoked),
            "moves": self.faults.moves,
            "cuts": self.faults.cuts,
            "begun_anew": self.faults.anew,
            "crashes": self.faults.crashes,
            "takeovers": self.faults.takeovers,
            "torn": sum(node.disk.torn for node in self.agents),
        }


run_tree_seed = SeedRun(
    "tree",
    TreePlant.draw,
    "every subscriber received each matching message once and in order, or a receipt; the tree is intact again",
    seconds=3.0,
)
