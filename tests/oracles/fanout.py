"""Reference for the fan-out: everything is kept, and all interests are tried on every message.

It has no rings, runs or queues. A child has legs; its pending packets are a list. It shares no code with penstock.tree.
"""

from dataclasses import dataclass, field

from oracles.interests import matches


@dataclass
class Message:
    stream: int
    sequence: int
    topic: str
    data: bytes


@dataclass
class Leg:
    stream: int
    topics: tuple[str, ...]
    is_live: bool
    after: int

    def wants(self, message: Message) -> bool:
        return message.stream == self.stream and any(matches(topic, message.topic) for topic in self.topics)


@dataclass
class Child:
    legs: dict[int, Leg] = field(default_factory=dict)
    owed: list[Message] = field(default_factory=list)
    """Live messages that the child has not received yet."""


class FanoutOracle:
    def __init__(self) -> None:
        self.last: dict[int, int] = {}
        self.past: list[Message] = []
        self.children: dict[int, Child] = {}

    def absorb(self, message: Message, source: int) -> None:
        if message.sequence <= self.last[message.stream]:
            return
        self.last[message.stream] = message.sequence
        self.past.append(message)
        for number, child in self.children.items():
            if number != source and any(
                leg.is_live and leg.after < message.sequence and leg.wants(message) for leg in child.legs.values()
            ):
                child.owed.append(message)

    def fetch(self, child: int, leg: int, after: int) -> list[Message]:
        """Everything retained for the leg, which is live afterwards."""
        found = self.children[child].legs[leg]
        found.is_live = True
        found.after = max(after, self.last[found.stream])
        return [each for each in self.past if each.sequence > after and found.wants(each)]

    def take(self, child: int) -> list[bytes]:
        owed = [each.data for each in self.children[child].owed]
        self.children[child].owed.clear()
        return owed

    def leave_live(self, child: int) -> dict[int, int]:
        """By leg: the sequence number up to which the child has everything, if its queue is dropped."""
        left = {}
        for number, leg in self.children[child].legs.items():
            if leg.is_live:
                owed = [each.sequence for each in self.children[child].owed if each.stream == leg.stream]
                left[number] = max(leg.after, min(owed) - 1 if owed else self.last[leg.stream])
                leg.is_live = False
        self.children[child].owed.clear()
        return left
