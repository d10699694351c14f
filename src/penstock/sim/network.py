"""A datagram network that loses, repeats, delays, reorders, corrupts and cuts."""

from collections.abc import Callable

import msgspec

from penstock.middleware.core.events import Address
from penstock.sim.log import describe
from penstock.sim.world import World

Handler = Callable[[bytes, Address], None]
Tap = Callable[[bytes, Address, Address], None]


class LinkFaults(msgspec.Struct, kw_only=True):
    """Faults between any two hosts; each probability is per datagram and destination."""

    loss: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    reorder: float = 0.0
    delay_min_ns: int = 20_000
    delay_max_ns: int = 200_000
    reorder_delay_ns: int = 5_000_000


class NetworkStatistics(msgspec.Struct):
    sent: int = 0
    lost: int = 0
    duplicated: int = 0
    corrupted: int = 0
    delayed: int = 0
    cut: int = 0


class Network:
    """Unicast and multicast datagrams with loss, delay, duplication, reordering, corruption and partitions."""

    def __init__(self, world: World, faults: LinkFaults, name: str = "network") -> None:
        self.faults = faults
        self.statistics = NetworkStatistics()
        self._world = world
        self._randomness = world.randomness.fork(name)
        self._handlers: dict[Address, Handler] = {}
        self._members: dict[int, list[Address]] = {}
        self._cut: set[tuple[str, str]] = set()
        self._taps: list[Tap] = []

    def attach(self, address: Address, handler: Handler) -> None:
        """Pass datagrams to `address` to `handler` from now on."""
        self._handlers[address] = handler

    def tap(self, tap: Tap) -> None:
        """Call the observer with every unicast datagram, its source and destination."""
        self._taps.append(tap)

    def detach(self, address: Address) -> None:
        self._handlers.pop(address, None)
        for members in self._members.values():
            if address in members:
                members.remove(address)

    def join(self, address: Address, group: int) -> None:
        members = self._members.setdefault(group, [])
        if address not in members:
            members.append(address)

    def leave(self, address: Address, group: int) -> None:
        if address in self._members.get(group, ()):
            self._members[group].remove(address)

    def cut(self, source: str, destination: str) -> None:
        """Drop all datagrams from one host to another; the opposite direction is not changed."""
        self._cut.add((source, destination))

    def mend(self, source: str, destination: str) -> None:
        self._cut.discard((source, destination))

    def heal(self) -> None:
        """Remove all cuts and faults."""
        self._cut.clear()
        self.faults = LinkFaults()

    def unicast(self, source: Address, destination: Address, data: bytes) -> None:
        for tap in self._taps:
            tap(data, source, destination)
        self._transmit(source, destination, data)

    def multicast(self, source: Address, group: int, data: bytes) -> None:
        for member in list(self._members.get(group, ())):
            if member != source:
                self._transmit(source, member, data)

    def _transmit(self, source: Address, destination: Address, data: bytes) -> None:
        faults, randomness, statistics = self.faults, self._randomness, self.statistics
        statistics.sent += 1
        if (source[0], destination[0]) in self._cut:
            statistics.cut += 1
            self._log("cut", source, destination, data)
            return
        if randomness.chance(faults.loss):
            statistics.lost += 1
            self._log("lost", source, destination, data)
            return
        copies = 1
        if randomness.chance(faults.duplicate):
            statistics.duplicated += 1
            self._log("doubled", source, destination, data)
            copies = 2
        for _ in range(copies):
            delay_ns = randomness.between(faults.delay_min_ns, faults.delay_max_ns)
            if randomness.chance(faults.reorder):
                statistics.delayed += 1
                delay_ns += randomness.below(faults.reorder_delay_ns + 1)
            arriving = self._damaged(data)
            if arriving != data:
                self._log("damaged", source, destination, data)
            self._world.after(delay_ns, self._arrival(source, destination, arriving))

    def _log(self, fate: str, source: Address, destination: Address, data: bytes) -> None:
        self._world.log.write(
            self._world.now_ns(), "network", f"{fate}: {describe(data)} from {source[0]} to {destination[0]}"
        )

    def _damaged(self, data: bytes) -> bytes:
        if not data or not self._randomness.chance(self.faults.corrupt):
            return data
        self.statistics.corrupted += 1
        position = self._randomness.below(len(data))
        if self._randomness.chance(0.3):
            return data[:position]
        damaged = bytearray(data)
        damaged[position] ^= 1 << self._randomness.below(8)
        return bytes(damaged)

    def _arrival(self, source: Address, destination: Address, data: bytes) -> Callable[[], None]:
        def arrive() -> None:
            handler = self._handlers.get(destination)
            if handler is not None:
                handler(data, source)

        return arrive
