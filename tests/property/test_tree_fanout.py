"""The compiled fan-out equals the reference fan-out, for any order of events."""

import random

import pytest

from oracles.fanout import Child, FanoutOracle, Leg, Message
from penstock.tree.core.kernel._fanout import Brings, Fanout
from penstock.tree.core.kernel._frame import BLOCK_HEADER_SIZE, BLOCK_LEG_AT, split_packets
from penstock.tree.core.kernel.notices import LeftLive
from tree_kit import TREE_ID, block, packet

TOPICS = ("md.a", "md.b", "md.c.x", "md.c.y", "news.a")
INTERESTS = ("md.>", "md.a", "md.*", "md.c.*", "news.>", "md.b", ">")
PARENTS = (1, 2)
CHILDREN = (11, 12, 13)
QUEUE_MAX = 24


def live_packets(frames: bytes) -> list[bytes]:
    found: list[bytes] = []
    at = 0
    while at < len(frames):
        length = int.from_bytes(frames[at : at + 4], "little")
        assert frames[at + BLOCK_LEG_AT : at + BLOCK_LEG_AT + 4] == bytes(4)
        found += split_packets(frames[at + BLOCK_HEADER_SIZE : at + 4 + length])
        at += 4 + length
    return found


class Run:
    """One fan-out and its oracle, with the same inputs."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.fanout = Fanout(TREE_ID, history_size=2 * 1024 * 1024, queue_packets_max=QUEUE_MAX)
        self.oracle = FanoutOracle()
        for stream in (1, 2):
            self.fanout.open_stream(stream, term=1)
            self.oracle.last[stream] = 0
        for parent in PARENTS:
            self.fanout.open_link(parent, brings=Brings.PACKETS | Brings.INFO)
            self.oracle.children[parent] = Child()
        for child in CHILDREN:
            self.fanout.open_link(child)
            self.oracle.children[child] = Child()
        self.expected: dict[tuple[int, int], int] = {}
        """By child and leg that left live: the sequence up to which the child has everything."""
        self.left = 0
        self.fetched = 0

    def step(self) -> None:
        self.chance.choices([self.absorb, self.open, self.close, self.fetch, self.take], weights=[6, 1, 0.3, 2, 2])[0]()

    def absorb(self) -> None:
        source = self.chance.choice(PARENTS)
        packets = []
        next_sequences = dict(self.oracle.last)
        for _ in range(self.chance.randint(1, 12)):
            stream = self.chance.choice((1, 2))
            sequence = max(1, next_sequences[stream] + self.chance.choice((-2, 1, 1, 1, 2)))
            next_sequences[stream] = max(sequence, next_sequences[stream])
            topic = self.chance.choice(TOPICS)
            data = packet(sequence, topic, self.chance.randbytes(self.chance.randrange(40)), stream=stream)
            packets.append(data)
            self.absorb_in_oracle(Message(stream, sequence, topic, data), source)
        frames = block(*packets)
        cut = self.chance.randrange(len(frames) + 1)
        self.fanout.receive(source, frames[:cut])
        self.fanout.receive(source, frames[cut:])
        self.compare_those_that_left()

    def absorb_in_oracle(self, message: Message, source: int) -> None:
        """A child whose queue is full leaves live before the message is queued."""
        if message.sequence > self.oracle.last[message.stream]:
            for number, child in self.oracle.children.items():
                wants = any(
                    leg.is_live and leg.after < message.sequence and leg.wants(message) for leg in child.legs.values()
                )
                if number != source and wants and len(child.owed) == QUEUE_MAX:
                    self.expected |= {(number, leg): at for leg, at in self.oracle.leave_live(number).items()}
        self.oracle.absorb(message, source)

    def compare_those_that_left(self) -> None:
        notices = self.fanout.notices()
        left = {(each.link, each.leg): each.through for each in notices if isinstance(each, LeftLive)}
        assert len(left) == len(notices)
        assert left == self.expected
        self.left += len(left)
        self.expected = {}

    def open(self) -> None:
        child = self.chance.choice(CHILDREN)
        number = self.chance.randint(1, 4)
        if number in self.oracle.children[child].legs:
            return
        stream = self.chance.choice((1, 2))
        topics = tuple(self.chance.sample(INTERESTS, self.chance.randint(1, 2)))
        is_live = self.chance.random() < 0.5
        last = self.fanout.open_leg(child, number, stream, [((topic,), None) for topic in topics], is_live=is_live)
        assert last == self.oracle.last[stream]
        self.oracle.children[child].legs[number] = Leg(stream, topics, is_live, last)

    def close(self) -> None:
        child = self.chance.choice(CHILDREN)
        number = self.chance.randint(1, 4)
        self.fanout.close_leg(child, number)
        self.oracle.children[child].legs.pop(number, None)

    def fetch(self) -> None:
        child = self.chance.choice(CHILDREN)
        lagging = [number for number, leg in self.oracle.children[child].legs.items() if not leg.is_live]
        if not lagging:
            return
        number = self.chance.choice(lagging)
        after = self.chance.randrange(self.oracle.last[self.oracle.children[child].legs[number].stream] + 1)
        expected = [each.data for each in self.oracle.fetch(child, number, after)]
        got: list[bytes] = []
        is_live = False
        while not is_live:
            portion = self.fanout.fetch(child, number, after, self.chance.choice((1, 300, 100_000)))
            assert portion is not None
            got += split_packets(portion.packets)
            after, is_live = portion.through, portion.is_live
        assert got == expected
        self.fetched += len(got)

    def take(self) -> None:
        child = self.chance.choice(CHILDREN)
        got: list[bytes] = []
        while frames := self.fanout.take(child, self.chance.choice((1, 200, 100_000))):
            got += live_packets(frames)
        assert got == self.oracle.take(child)


@pytest.mark.spec("TREE-1", "TREE-5", "TREE-8", "TREE-10")
def test_the_same_as_the_oracle(soak: bool) -> None:
    left = fetched = 0
    for seed in range(300 if soak else 30):
        run = Run(seed)
        try:
            for _ in range(250):
                run.step()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
        left += run.left
        fetched += run.fetched
    assert left > 20
    assert fetched > 1_000
