"""A small tree in virtual time, built by hand: real cores, simulated links and disks, and the simulator's checkers."""

from typing import Any

from penstock.base.clock import NS_PER_MS
from penstock.sim import TreePlant, TreePlantOptions, World
from penstock.sim.tree.apps import Subscriber, Subscription
from penstock.sim.tree.market import Taste
from penstock.sim.tree.nodes import AgentNode
from penstock.tree.core.control import LIVE, Class, Position

STREAM = "s1"


class Stage(TreePlant):
    """The root is called root; all other agents are added before `up()`."""

    def __init__(self, **options: Any) -> None:
        values: dict[str, Any] = {"agents": 0, "fan_out": 1, "subscribers": 0, "streams": 1, "publishers": 1}
        super().__init__(World(1), TreePlantOptions(**{**values, **options}))
        self.is_publishing = False

    def agent(self, name: str, parent: str = "root", **config: Any) -> AgentNode:
        return self.add_agent(self.config_of(name, parent=self.place_of(parent), **config))

    def subscriber(
        self,
        name: str,
        *places: str,
        topic: str = "*",
        level_min: int = 0,
        begin: Position = LIVE,
        cls: Class = "lossless",
    ) -> Subscriber:
        wants = [Subscription(STREAM, Taste(STREAM, topic, "*", level_min), begin)]
        subscriber = Subscriber(self, name, [self.place_of(each) for each in places], wants, cls)
        self.subscribers.append(subscriber)
        return subscriber

    def up(self) -> "Stage":
        self.start()
        self.wait(500)
        return self

    def wait(self, milliseconds: int) -> None:
        self.run(milliseconds * NS_PER_MS)

    def publish(self, count: int = 1, topic: str = "a", level: int = 0, padding: int = 0) -> None:
        for _ in range(count):
            self.publishers[0].publish(STREAM, f"{STREAM}.{topic}.x", level, padding)
        self.wait(60)

    def got(self, subscriber: Subscriber) -> list[int]:
        """Sequence numbers, in the order of arrival."""
        story = self.stories.stories.get((subscriber.name, STREAM))
        return [] if story is None else [each.sequence for each in story.messages]

    def accepted(self, node: AgentNode) -> int:
        return node.agent.fanout.stream(1).accepted if len(node.agent.streams) else 0

    def judge(self) -> None:
        """The report of the simulator's checkers when the tree is idle."""
        self.wait(500)
        for checker in self.checkers:
            checker.finish(self)
