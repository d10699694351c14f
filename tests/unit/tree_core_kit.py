"""A single distribution agent's core: frames on its links in and out."""

from typing import Any

from penstock.base.clock import NS_PER_MS, SystemRandomness
from penstock.base.core import Tick
from penstock.base.counters import Counters
from penstock.net.core.framing import encode_frame
from penstock.tree.config import StreamConfig, TreeConfig
from penstock.tree.core.agent import DistributionAgent
from penstock.tree.core.control import MESSAGE_SIZE_MAX, TREE, Message
from penstock.tree.core.events import Append, Appended, Arrived, Close, Event, Instruction, Noticed, Party, Start
from penstock.tree.core.kernel._frame import FRAME_LENGTH_SIZE, KIND_CONTROL, KIND_PUBLISHED, encode_block
from penstock.tree.core.kernel._number import encode_published
from penstock.tree.core.kernel._tail import TailMemory


class RootCore:
    """A root with the stream s; its appends are on disk at once while `is_disk_quick`. With a tail, the root has an
    intake."""

    def __init__(self, tail: TailMemory | None = None, **config: Any) -> None:
        stream = StreamConfig(name="s", topics=("s.>",))
        self.counters = Counters("tree")
        self.core = DistributionAgent(
            TreeConfig(**{"name": "root", "role": "root", "streams": (stream,), **config}),
            SystemRandomness(),
            self.counters,
        )
        self.now_ns = 0
        self.closed: set[int] = set()
        self.appended: list[tuple[int, int]] = []
        """First and last sequence number of each append."""
        self.is_disk_quick = True
        if tail is not None:
            self.core.sequencer.set_tail(tail)
        self.handle(Start(place="here:1"))

    def handle(self, event: Event) -> list[Instruction]:
        """Handle an event and the immediate work of the core after it."""
        self.now_ns += NS_PER_MS
        out = self.core.handle(event, self.now_ns)
        while (deadline_ns := self.core.next_deadline_ns()) is not None and deadline_ns <= self.now_ns:
            out += self.core.handle(Tick(), self.now_ns)
        for each in out:
            if isinstance(each, Close):
                self.closed.add(each.link)
            if isinstance(each, Append):
                self.appended.append((each.through - len(each.sizes) + 1, each.through))
                if self.is_disk_quick:
                    out += self.handle(Appended(each.stream, each.through))
        return out

    def arrive(self, link: int, name: str, role: Any = "subscriber", **party: Any) -> list[Instruction]:
        return self.handle(Arrived(link, Party(name, role, **party)))

    def receive(self, link: int, *messages: Message) -> list[Instruction]:
        frames = b"".join(encode_frame(TREE.encode(each, MESSAGE_SIZE_MAX)) for each in messages)
        return self.receive_bytes(link, frames)

    def receive_bytes(self, link: int, data: bytes) -> list[Instruction]:
        self.core.fanout.receive(link, data, self.now_ns)
        return self.handle(Noticed())

    def publish(self, link: int, publisher_id: int, *numbers: int) -> list[Instruction]:
        packets = b"".join(encode_published(publisher_id, number, 0, "s.a", b"x") for number in numbers)
        return self.receive_bytes(link, encode_block(packets, kind=KIND_PUBLISHED))

    def said(self, link: int) -> list[Any]:
        """Take all control messages that wait for a link."""
        data = self.core.fanout.take(link, 1 << 30)
        found = []
        while data:
            size = FRAME_LENGTH_SIZE + int.from_bytes(data[:FRAME_LENGTH_SIZE], "little")
            if data[FRAME_LENGTH_SIZE] >= KIND_CONTROL:
                found.append(TREE.decode(data[FRAME_LENGTH_SIZE:size]))
            data = data[size:]
        return found

    @property
    def role(self) -> str:
        return self.core.membership.role
