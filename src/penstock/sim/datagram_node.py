"""A node with a socket: datagrams wait in it until the process wakes, and are then read many at a time."""

from collections import deque
from collections.abc import Sequence

import msgspec

from penstock.middleware import Address, DatagramsReceived
from penstock.sim.network import Network
from penstock.sim.node import Node
from penstock.sim.world import World
from penstock.wire import DatagramBatch

BATCH_CAPACITY = 16
WAKE_DELAY_NS = 300_000


class Viewer(msgspec.Struct, frozen=True):
    """A receiver, from its start to its crash."""

    name: str
    incarnation: int


class DatagramNode(Node):
    """Listens to multicast groups; a subclass chooses the core for the datagrams. Every start has its own socket."""

    def __init__(self, world: World, name: str, component: str, network: Network, groups: Sequence[int]) -> None:
        super().__init__(world, name, component)
        self.network = network
        self._groups = groups
        self._randomness = world.randomness.fork(self.name)
        self._batch = DatagramBatch(BATCH_CAPACITY)
        self._waiting: deque[tuple[bytes, Address]] = deque()
        self._is_waking = False

    def address(self) -> Address:
        return (self.name, 2_000 + self.incarnation)

    def viewer(self) -> Viewer:
        return Viewer(self.name, self.incarnation)

    def listens_to(self, group: int) -> bool:
        return group in self._groups

    def listen(self) -> None:
        self.network.attach(self.address(), self._arrive)
        for group in self._groups:
            self.network.join(self.address(), group)

    def on_crash(self) -> None:
        self.network.detach(self.address())
        self._waiting.clear()
        self._is_waking = False

    def _arrive(self, data: bytes, source: Address) -> None:
        self._waiting.append((data, source))
        if not self._is_waking:
            self._is_waking = True
            incarnation = self.incarnation
            self.world.after(self._randomness.below(WAKE_DELAY_NS), lambda: self._wake(incarnation))

    def _wake(self, incarnation: int) -> None:
        if self.incarnation != incarnation or not self.is_up:
            return
        if self.world.now_ns() < self.stalled_until_ns:
            self.world.at(self.stalled_until_ns, lambda: self._wake(incarnation))
            return
        self._is_waking = False
        while self._waiting:
            self._batch.clear()
            while self._waiting and len(self._batch) < self._batch.capacity:
                self._batch.append(*self._waiting.popleft())
            self.handle(DatagramsReceived(self._batch))
