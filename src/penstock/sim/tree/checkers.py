"""Checkers of a distribution tree: they see deliveries to applications, bytes on links and records on disks."""

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from penstock.sim.checker import Checker
from penstock.sim.tree.apps import Subscriber, Subscription
from penstock.sim.tree.market import number_of
from penstock.tree.core.infostream import Conflated, Diverged, Gone, Revoked, id_of
from penstock.tree.core.kernel._frame import BLOCK_HEADER_SIZE, BLOCK_KIND_AT, BLOCK_LEG_AT, KIND_PACKETS, split_packets
from penstock.wire import decode

if TYPE_CHECKING:
    from penstock.sim.tree.nodes import AgentNode
    from penstock.sim.tree.plant import TreePlant

CYCLE_NS_MAX = 3_000_000_000
"""Longest time until a cycle is noticed and broken."""
CATCH_UP_NS_MAX = 1_000_000_000
LENGTH_SIZE = 4


class TreeChecker(Checker):
    """Observes deliveries to applications, bytes on links and records on disks."""

    def __init__(self, plant: "TreePlant") -> None:
        self.plant = plant


class Delivered(msgspec.Struct, frozen=True):
    sequence: int
    term: int
    topic: str
    payload: bytes

    @staticmethod
    def of(packet: bytes) -> "Delivered":
        whole = decode(packet)
        message = whole[0]
        return Delivered(whole.sequence, whole.epoch, message.topic, bytes(message.payload))


class Story(msgspec.Struct, eq=False):
    """Deliveries of one stream to one subscriber."""

    began: int
    messages: list[Delivered] = []
    gone: list[tuple[int, int]] = []
    conflated: int = 0
    revoked_at: dict[str, int] = {}
    """Number of messages before the start of the story, by pattern."""


class StoryChecker(TreeChecker):
    """TREE-1, 5: each message in order and exactly once, or a receipt; TREE-6: no message after a revocation."""

    def __init__(self, plant: "TreePlant") -> None:
        super().__init__(plant)
        self.stories: dict[tuple[str, str], Story] = {}
        self.delivered_count = self.receipts = self.diverged_count = 0

    def began(self, subscriber: Subscriber, subscription: Subscription, after: int) -> None:
        self.stories[subscriber.name, subscription.stream] = Story(after)

    def delivered(self, subscriber: Subscriber, subscription: Subscription, message: Delivered) -> None:
        story = self.stories[subscriber.name, subscription.stream]
        where = f"{subscriber.name}, {subscription.stream}"
        self.delivered_count += 1
        if story.messages:
            last = story.messages[-1]
            self.require(message.sequence > last.sequence, f"{where}: {message.sequence} after {last.sequence}")
            self.require(message.term >= last.term, f"{where}: term {message.term} after {last.term}")
        for pattern in story.revoked_at:
            prefix = pattern.removesuffix(">")
            self.require(not message.topic.startswith(prefix), f"{where}: {message.topic} after {pattern} was revoked")
        story.messages.append(message)

    def diverged(self, subscriber: Subscriber, subscription: Subscription, info: Diverged) -> None:
        """A receipt: the delivered messages of that term are not part of the stream."""
        story = self.stories[subscriber.name, subscription.stream]
        self.diverged_count += 1
        for each in story.messages:
            is_newer = each.sequence >= info.first and each.term > info.term
            self.require(not is_newer, f"{subscriber.name}: {each.sequence} of a newer term is withdrawn: {info}")
        story.messages = [each for each in story.messages if each.sequence < info.first]

    def gone(self, subscriber: Subscriber, info: Gone) -> None:
        self.receipts += 1
        for subscription in subscriber.subscriptions:
            if subscription.number == info.stream and (subscriber.name, subscription.stream) in self.stories:
                self.stories[subscriber.name, subscription.stream].gone.append((info.first, info.last))

    def conflated(self, subscriber: Subscriber, info: Conflated) -> None:
        for subscription in subscriber.subscriptions:
            story = self.stories.get((subscriber.name, subscription.stream))
            if story is not None:
                story.conflated += info.count

    def revoked(self, subscriber: Subscriber, info: Revoked) -> None:
        for subscription in subscriber.subscriptions:
            story = self.stories.get((subscriber.name, subscription.stream))
            if story is not None:
                for pattern in info.topics or (">",):
                    story.revoked_at.setdefault(pattern, len(story.messages))

    def finish(self, plant: "TreePlant") -> None:
        for subscriber in plant.subscribers:
            for subscription in subscriber.subscriptions:
                story = self.stories.get((subscriber.name, subscription.stream))
                if story is None:
                    self.require(subscription.is_refused, f"{subscriber.name} was never served {subscription.taste}")
                else:
                    self._judge(subscriber, subscription, story)

    def _judge(self, subscriber: Subscriber, subscription: Subscription, story: Story) -> None:
        truth = self.plant.truth(subscription.stream)
        where = f"{subscriber.name}, {subscription.taste}"
        got = {each.sequence: each for each in story.messages}
        last = story.messages[-1].sequence if story.messages else story.began
        for each in story.messages:
            if story.revoked_at and (each.sequence not in truth or truth[each.sequence].term > each.term):
                continue  # the stream diverged while the subscriber received no reports
            self.require(each.sequence in truth, f"{where}: {each.sequence} is in no journal")
            self.require(truth[each.sequence].payload == each.payload, f"{where}: {each.sequence} is another message")
        is_whole = not story.revoked_at and not subscription.is_refused
        newest: dict[str, int] = {}
        for sequence, message in truth.items():
            if sequence <= story.began or not subscription.taste.wants_it(message.topic, message.payload):
                continue
            if not is_whole and sequence > last:
                break
            newest[message.topic] = sequence
            is_told = any(first <= sequence <= through for first, through in story.gone)
            if sequence in got or is_told or subscriber.cls == "conflating":
                continue
            if any(message.topic.startswith(pattern.removesuffix(">")) for pattern in story.revoked_at):
                continue
            self.require(False, f"{where}: {sequence} never came: began {story.began}, gone {story.gone}, last {last}")
        if subscriber.cls == "conflating" and is_whole:
            self._judge_conflated(where, story, got, newest)

    def _judge_conflated(self, where: str, story: Story, got: dict[int, Delivered], newest: dict[str, int]) -> None:
        for topic, sequence in newest.items():
            is_told = any(first <= sequence <= through for first, through in story.gone)
            self.require(sequence in got or is_told, f"{where}: the newest of {topic}, {sequence}, never came")


class PublisherChecker(TreeChecker):
    """Each message is in the stream once, in its publisher's order; no acknowledged message is missing."""

    def finish(self, plant: "TreePlant") -> None:
        found: dict[int, list[int]] = defaultdict(list)
        sequenced = [(sequence, stream, each) for stream in plant.stream_names
                     for sequence, each in plant.truth(stream).items()]  # fmt: skip
        per_stream: dict[tuple[int, str], int] = defaultdict(int)
        for _, stream, each in sequenced:
            publisher_id, number = number_of(each.payload)
            found[publisher_id].append(number)
            before = per_stream[publisher_id, stream]
            self.require(number > before, f"publisher {publisher_id}: {number} is out of order")
            per_stream[publisher_id, stream] = number
        for publisher in plant.publishers:
            numbers = sorted(found[publisher.publisher_id])
            self.require(len(numbers) == len(set(numbers)), f"{publisher.name}: the stream has a message twice")
            count = len(publisher.messages)
            self.require(
                numbers == list(range(1, count + 1)),
                f"{publisher.name}: the stream has {len(numbers)} of {count} messages",
            )
            self.require(
                publisher.acknowledged == count, f"{publisher.name}: {publisher.acknowledged} of {count} acknowledged"
            )


class ShapeChecker(TreeChecker):
    """TREE-4: no lasting cycle; after the faults all agents are rooted in one tree."""

    def __init__(self, plant: "TreePlant") -> None:
        super().__init__(plant)
        self._cycles: dict[frozenset[str], int] = {}

    def step(self, plant: "TreePlant") -> None:
        now_ns = plant.world.now_ns()
        parents = {node.name: node.became.parent for node in plant.agents if node.is_up and node.became is not None}
        found = set()
        for name in parents:
            seen: list[str] = []
            while name and name not in seen:
                seen.append(name)
                name = parents.get(name, "")
            if name:
                found.add(frozenset(seen[seen.index(name) :]))
        self._cycles = {each: self._cycles.get(each, now_ns) for each in found}
        for cycle, since_ns in self._cycles.items():
            self.require(now_ns - since_ns < CYCLE_NS_MAX, f"{sorted(cycle)} are each other's parents")

    def finish(self, plant: "TreePlant") -> None:
        roots = [node for node in plant.agents if node.became is not None and node.became.role == "root"]
        self.require(len(roots) == 1, f"there are {len(roots)} roots")
        for node in plant.agents:
            if node.config.role != "agent":
                continue
            self.require(node.became is not None and node.became.is_rooted, f"{node.name} is not rooted: {node.became}")
            assert node.became is not None
            self.require(node.became.path[0] == roots[0].name, f"{node.name} is in another tree: {node.became.path}")
        for subscriber in plant.subscribers:
            is_served = subscriber.is_live or all(each.is_refused for each in subscriber.subscriptions)
            self.require(is_served or plant.is_revoked(subscriber.name), f"{subscriber.name} is not live")


class CatchUpChecker(TreeChecker):
    """TREE-5: in an intact tree, a subscriber that starts in the past makes progress until it is live. The duration
    depends on the amount of data and on other subscribers, but a pause without progress is bounded.
    """

    def __init__(self, plant: "TreePlant") -> None:
        super().__init__(plant)
        self._waits: dict[str, tuple[int, int]] = {}
        """By subscriber that is not live although all agents are rooted: its position, and the time since which it
        has that position."""

    def step(self, plant: "TreePlant") -> None:
        now_ns = plant.world.now_ns()
        agents = [node for node in plant.agents if node.config.role == "agent"]
        is_whole = all(node.became is not None and node.became.is_rooted for node in agents)
        if not plant.faults.is_over or not is_whole:
            self._waits.clear()
            return
        before, self._waits = self._waits, {}
        for subscriber in plant.subscribers:
            if subscriber.is_up and not subscriber.is_live and not plant.is_revoked(subscriber.name):
                far, since_ns = before.get(subscriber.name, (-1, now_ns))
                if subscriber.progress > far:
                    far, since_ns = subscriber.progress, now_ns
                self._waits[subscriber.name] = far, since_ns
                self.require(
                    now_ns - since_ns < CATCH_UP_NS_MAX, f"{subscriber.name} makes no progress in an intact tree"
                )


class InfostreamChecker(TreeChecker):
    """TREE-3: an agent's messages reach its direct neighbours in order, and no other party."""

    def __init__(self, plant: "TreePlant") -> None:
        super().__init__(plant)
        self._sequences: dict[tuple[str, int, int], int] = {}
        self.heard_count = 0

    def sent(self, node: "AgentNode", link: int, data: bytes) -> None:
        key = (node.name, node.incarnation, link)
        at = 0
        while at < len(data):
            size = LENGTH_SIZE + int.from_bytes(data[at : at + LENGTH_SIZE], "little")
            is_live = data[at + BLOCK_LEG_AT : at + BLOCK_LEG_AT + 4] == b"\0\0\0\0"
            if data[at + BLOCK_KIND_AT] == KIND_PACKETS and is_live:
                for packet in split_packets(data[at + BLOCK_HEADER_SIZE : at + size]):
                    if packet[24:28] == b"\0\0\0\0":
                        self._info(node, key, packet)
            at += size

    def _info(self, node: "AgentNode", key: tuple[str, int, int], packet: bytes) -> None:
        whole = decode(packet)
        self.heard_count += 1
        self.require(
            whole.publisher_id == id_of(node.name),
            f"{node.name} forwards the message of another agent: {whole[0].topic}",
        )
        before = self._sequences.get(key, 0)
        self.require(whole.sequence > before, f"{node.name} sends {whole.sequence} after {before} on link {key[2]}")
        self._sequences[key] = whole.sequence
