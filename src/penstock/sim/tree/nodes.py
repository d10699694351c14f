"""Agents of a simulated tree: the production core, its links, and a disk for those that keep streams."""

from collections import deque
from typing import TYPE_CHECKING, Any

from penstock.net.core.framing import LENGTH_SIZE
from penstock.sim.node import Node
from penstock.sim.tree.disk import TreeDisk
from penstock.sim.tree.links import TreeEnd
from penstock.tree.config import TreeConfig
from penstock.tree.core.agent import DistributionAgent
from penstock.tree.core.control import TREE, Login
from penstock.tree.core.events import (
    Append,
    Arrived,
    Became,
    CheckToken,
    Close,
    Connect,
    Connected,
    ConnectFailed,
    DefineStream,
    Informed,
    LinkClosed,
    Noticed,
    Party,
    ReadJournal,
    Renewed,
    Start,
)

if TYPE_CHECKING:
    from penstock.sim.tree.plant import TreePlant


class AgentNode(Node):
    def __init__(self, plant: "TreePlant", config: TreeConfig) -> None:
        super().__init__(plant.world, config.name, "tree")
        self.plant = plant
        self.config = config
        self.ends: dict[int, TreeEnd] = {}
        self.became: Became | None = None
        self.disk = TreeDisk(
            plant.world, plant.world.randomness.fork(f"disk {config.name}"), is_synced=config.persist == "synced"
        )
        self._opening: dict[int, bytes] = {}
        """Bytes received on a link before its Login is complete."""
        self._late: deque[tuple[int, bytes]] = deque()
        """Data received while the process was stalled."""

    @property
    def place(self) -> str:
        return self.plant.place_of(self.name)

    @property
    def agent(self) -> DistributionAgent:
        assert isinstance(self.core, DistributionAgent)
        return self.core

    # The process

    def on_start(self) -> None:
        randomness = self.world.randomness.fork(f"{self.name} {self.incarnation}")
        self.run(DistributionAgent(self.config, randomness, self.counters, models=self.plant.models))
        now_ns = self.world.now_ns()
        is_keeper = self.config.role != "agent"
        if is_keeper:
            self.agent.sequencer.set_tail(self.disk.tail)
        self.handle(self.disk.recovered(self.place, now_ns) if is_keeper else Start(place=self.place, wall_ns=now_ns))
        for revocation in self.plant.revocations():
            self.handle(revocation)

    def on_crash(self) -> None:
        self.disk.crash()
        self.became = None
        self._opening.clear()
        self._late.clear()
        ends, self.ends = self.ends, {}
        for end in ends.values():
            end.link.break_off(end)

    def take(self, event: Any) -> None:
        super().take(event)
        if self.core is not None:
            for number in self.agent.fanout.ready():
                if number in self.ends:
                    self.ends[number].pump()

    # Links

    def send(self, link: int, size_max: int) -> bytes:
        if self.core is None or link not in self.ends or link in self._opening:
            return b""
        data = self.agent.fanout.take(link, size_max)
        if data:
            self.plant.sent(self, link, data)
        return data

    def accept(self, end: TreeEnd) -> None:
        self.ends[end.number] = end
        self._opening[end.number] = b""

    def received(self, link: int, data: bytes) -> None:
        if self.core is None or link not in self.ends:
            return
        if self.world.now_ns() < self.stalled_until_ns or self._late:
            incarnation = self.incarnation
            self._late.append((link, data))
            self.world.at(self.stalled_until_ns, lambda: self._received_late(incarnation))
            return
        self._take_in(link, data)

    def _received_late(self, incarnation: int) -> None:
        """Items in the order of arrival."""
        if self.incarnation == incarnation and self.world.now_ns() >= self.stalled_until_ns:
            while self._late:
                self._take_in(*self._late.popleft())

    def _take_in(self, link: int, data: bytes) -> None:
        if self.core is None or link not in self.ends:
            return
        if link in self._opening:
            data = self._open(link, data)
        if data and link in self.ends:
            self.agent.fanout.receive(link, data, self.world.now_ns())
            self.handle(Noticed())

    def _open(self, link: int, data: bytes) -> bytes:
        """The first frame is a Login; the rest is the fan-out's."""
        data = self._opening[link] + data
        self._opening[link] = data
        if len(data) < LENGTH_SIZE:
            return b""
        size = LENGTH_SIZE + int.from_bytes(data[:LENGTH_SIZE], "little")
        if len(data) < size:
            return b""
        del self._opening[link]
        login = TREE.decode(data[LENGTH_SIZE:size])
        assert isinstance(login, Login)
        party = Party(
            login.name, login.role, login.tree, login.place, login.home, login.publisher_id, login.cls, login.term,
            self.plant.grants_of(login.name),
        )  # fmt: skip
        self.log(f"link {link}: {login.role} {login.name}")
        self.handle(Arrived(link, party))
        return data[size:]

    def ended(self, link: int) -> None:
        if self.ends.pop(link, None) is not None and self.core is not None:
            is_known = self._opening.pop(link, None) is None
            if is_known:
                self.handle(LinkClosed(link))

    # Instructions

    def carry_out(self, instruction: Any) -> None:
        match instruction:
            case Connect():
                self._connect(instruction)
            case Close():
                self.log(f"close link {instruction.link}: {instruction.cause} {instruction.reason}")
                if instruction.link in self.ends:
                    self.ends[instruction.link].close()
            case Append():
                self.disk.append(instruction, self._from_disk)
            case DefineStream():
                self.disk.define(instruction.info)
            case ReadJournal():
                self._from_disk(self.disk.read(instruction))
            case CheckToken():
                self.handle(Renewed(instruction.link, self.plant.grants_of(instruction.token)))
            case Informed():
                self.log(f"{instruction.direction} {instruction.link} {instruction.info}")
                self.plant.informed(self, instruction)
            case Became():
                self.log(f"is {instruction}")
                self.became = instruction
                self.disk.is_root |= instruction.role == "root"

    def _from_disk(self, event: Any) -> None:
        incarnation = self.incarnation
        delay_ns = self.plant.disk_randomness.below(1_000_000)

        def answer() -> None:
            if self.incarnation == incarnation:
                self.handle(event)

        self.world.after(delay_ns, answer)

    def _connect(self, instruction: Connect) -> None:
        incarnation = self.incarnation
        target = self.plant.at_place(instruction.place)

        def done(own: TreeEnd | None, other: TreeEnd | None) -> None:
            if self.incarnation != incarnation or not self.is_up:
                if own is not None:
                    own.link.break_off()
            elif own is None or other is None or target is None:
                self.handle(ConnectFailed(instruction.attempt))
            else:
                self.ends[own.number] = own
                target.accept(other)
                self.handle(Connected(instruction.attempt, own.number, target.name))

        self.plant.network.connect(self, target, done)
