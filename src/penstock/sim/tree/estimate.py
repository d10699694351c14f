"""Requirements of a large tree: the same cores, with one subscriber at each leaf that represents all subscribers of the
leaf.

All agents and their links are simulated. A leaf sends every message once per represented subscriber, one after another
over its link. So times are those of the last subscriber, and bytes are the sum over all.
"""

import msgspec

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.base.errors import ConfigurationError, SimulationError
from penstock.sim.tree.apps import Subscriber, Subscription
from penstock.sim.tree.market import Taste, number_of
from penstock.sim.tree.plant import STEP_NS, TreePlant, TreePlantOptions
from penstock.sim.tree.publishers import Publisher
from penstock.sim.world import World

SUBSCRIBERS_PER_LEAF = 2_000
CHILDREN_PER_AGENT = 20
LINE_BYTES_PER_S = 1_250_000_000
"""10 Gbit/s."""
PAYLOAD_SIZE = 64
SUBSCRIBERS_MAX = 20_000_000
START_NS_MAX = 60 * NS_PER_SECOND


class TreeEstimate(msgspec.Struct, kw_only=True):
    """A large deployment, in figures."""

    subscribers: int
    agents: int
    levels: int
    """Agents from the root to a leaf."""
    subscribers_per_leaf: int
    messages_per_s: float
    message_bytes: float
    """Average size of a message on a link."""
    messages: int
    fan_out_ms_p50: float
    """Time from the publisher to the last of all subscribers."""
    fan_out_ms_max: float
    first_ms_p50: float
    """Time from the publisher to the first subscriber."""
    agent_link_bytes_per_s: float
    """Load of the busiest link between two agents."""
    leaf_bytes_per_s: float
    """Load of the busiest leaf."""
    line_share: float
    """Share of a 10 Gbit/s line that the busiest leaf uses."""


class EstimatedTree(TreePlant):
    """Root, agents in levels, leaves with one subscriber each."""

    def __init__(self, world: World, subscribers: int, messages_per_s: int) -> None:
        options = TreePlantOptions(
            agents=0, fan_out=1, subscribers=0, streams=1, publishers=1, messages_per_s=messages_per_s,
            payload_size=PAYLOAD_SIZE, queue_packets=65_536,
        )  # fmt: skip
        super().__init__(world, options)
        self.leaf_count = -(-subscribers // SUBSCRIBERS_PER_LEAF)
        self.crowd = -(-subscribers // self.leaf_count)
        self.levels = 2
        self.sent_ns: dict[tuple[int, int], int] = {}
        self.times_ns: dict[int, list[int]] = {}
        """By sequence: the time until the first and until the last subscriber had received it."""
        self._bytes_before: dict[tuple[str, int], int] = {}
        self._began_ns = 0
        self._is_measuring = False
        self._grow()

    def _grow(self) -> None:
        sizes = [self.leaf_count]
        while sizes[0] > CHILDREN_PER_AGENT:
            sizes.insert(0, -(-sizes[0] // CHILDREN_PER_AGENT))
        self.levels = 1 + len(sizes)
        above = ["root"]
        for level, size in enumerate(sizes, start=1):
            names = [f"l{level}n{number}" for number in range(size)]
            for number, name in enumerate(names):
                self.add_agent(self.config_of(name, parent=self.place_of(above[number * len(above) // size])))
            above = names
        taste = Taste(self.stream_names[0])
        for number, leaf in enumerate(above):
            wants = [Subscription(self.stream_names[0], taste)]
            self.subscribers.append(Subscriber(self, f"u{number}", [self.place_of(leaf)], wants))

    # Measurements

    def published(self, publisher: Publisher) -> None:
        if self._is_measuring:
            self.sent_ns[publisher.publisher_id, len(publisher.messages)] = self.world.now_ns()

    def delivered(
        self, subscriber: Subscriber, subscription: Subscription, sequence: int, term: int, topic: str, payload: bytes
    ) -> None:
        now_ns = self.world.now_ns()
        sent_ns = self.sent_ns.get(number_of(payload))
        if sent_ns is None:
            return
        size = round(self._bytes_out(subscriber))
        first_ns = now_ns - sent_ns + size * NS_PER_SECOND // LINE_BYTES_PER_S
        last_ns = now_ns - sent_ns + self.crowd * size * NS_PER_SECOND // LINE_BYTES_PER_S
        times = self.times_ns.setdefault(sequence, [first_ns, last_ns])
        times[0], times[1] = min(times[0], first_ns), max(times[1], last_ns)

    def _bytes_out(self, subscriber: Subscriber) -> float:
        """Average size of a message at a leaf so far."""
        node = self.at_place(subscriber.places[0])
        assert node is not None
        state = node.agent.fanout.link(node.agent.children.links()[0])
        return state.bytes_out / max(1, state.packets_out)

    def begin_measuring(self) -> None:
        """Start the measurement when all subscribers are served."""
        self._is_measuring = True
        self._bytes_before = self._link_bytes()
        self._began_ns = self.world.now_ns()

    def _link_bytes(self) -> dict[tuple[str, int], int]:
        return {
            (node.name, link): node.agent.fanout.link(link).bytes_out
            for node in self.agents
            for link in node.agent.children.links()
        }

    def estimate(self) -> TreeEstimate:
        seconds = (self.world.now_ns() - self._began_ns) / NS_PER_SECOND
        rates = {key: (total - self._bytes_before.get(key, 0)) / seconds for key, total in self._link_bytes().items()}
        leaves = {place.split(":")[0] for subscriber in self.subscribers for place in subscriber.places}
        of_agents = [rate for (name, _), rate in rates.items() if name not in leaves]
        of_leaves = [rate * self.crowd for (name, _), rate in rates.items() if name in leaves]
        firsts = sorted(first for first, _ in self.times_ns.values())
        lasts = sorted(last for _, last in self.times_ns.values())
        if not lasts:
            raise SimulationError("no message reached the leaves", hint="simulate longer")
        count = len(self.times_ns)
        return TreeEstimate(
            subscribers=self.crowd * self.leaf_count,
            agents=len(self.agents),
            levels=self.levels,
            subscribers_per_leaf=self.crowd,
            messages=count,
            messages_per_s=count / seconds,
            message_bytes=self._bytes_out(self.subscribers[0]),
            fan_out_ms_p50=lasts[count // 2] / NS_PER_MS,
            fan_out_ms_max=lasts[-1] / NS_PER_MS,
            first_ms_p50=firsts[count // 2] / NS_PER_MS,
            agent_link_bytes_per_s=max(of_agents),
            leaf_bytes_per_s=max(of_leaves),
            line_share=max(of_leaves) / LINE_BYTES_PER_S,
        )


def estimate_tree(subscribers: int, *, seed: int = 1, seconds: float = 2.0, messages_per_s: int = 200) -> TreeEstimate:
    """Let a tree for so many subscribers carry messages for a while."""
    if not 1 <= subscribers <= SUBSCRIBERS_MAX:
        raise ConfigurationError(f"{subscribers} subscribers", hint=f"1 to {SUBSCRIBERS_MAX}")
    plant = EstimatedTree(World(seed), subscribers, messages_per_s)
    plant.start()
    while not all(subscriber.is_live for subscriber in plant.subscribers):
        if plant.world.now_ns() > START_NS_MAX:
            raise SimulationError("the tree did not come up")
        plant.run(STEP_NS)
    plant.begin_measuring()
    plant.run(round(seconds * NS_PER_SECOND))
    return plant.estimate()
