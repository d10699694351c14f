"""Connections of a simulated tree: bytes both ways, in order, until one side ends it or dies."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.sim.randomness import SeededRandomness
from penstock.sim.world import World

WINDOW_SIZE = 16_384
"""Bytes that are on their way at most: what sockets buffer."""
CHUNK_SIZE = 4_096
DELAY_NS_MAX = 2 * NS_PER_MS
FAST_BYTES_PER_S = 50_000_000
CONNECT_NS_MAX = 3 * NS_PER_MS
TIMEOUT_NS = 100 * NS_PER_MS


class Party(Protocol):
    """A process at the end of a link."""

    name: str

    @property
    def is_up(self) -> bool: ...

    def send(self, link: int, size_max: int) -> bytes:
        """What is to be sent next."""
        ...

    def received(self, link: int, data: bytes) -> None: ...

    def ended(self, link: int) -> None:
        """The link is gone."""
        ...


class End:
    """One side of a link."""

    def __init__(self, link: "TreeLink", party: Party, number: int) -> None:
        self.link = link
        self.party = party
        self.number = number
        self.is_open = True
        self.is_reading = True
        self.bytes_sent = 0
        self._flying: deque[bytes] = deque()
        self._flying_size = 0
        self._busy_until_ns = 0
        self._last_ns = 0
        self._is_closing = False

    @property
    def other(self) -> "End":
        return self.link.ends[1] if self.link.ends[0] is self else self.link.ends[0]

    def pump(self) -> None:
        """Send what there is, as far as the other side takes it."""
        while self.is_open and self._flying_size < WINDOW_SIZE:
            data = self.party.send(self.number, CHUNK_SIZE)
            if not data:
                break
            self._send(data)
        if self._is_closing and self.is_open and not self._flying:
            self.link.break_off(self)

    def close(self) -> None:
        """When what waits is sent; the other side then finds it closed."""
        self._is_closing = True
        self.pump()
        if self.is_open:
            self.link.world.after(TIMEOUT_NS, lambda: self.link.break_off(self))

    def _send(self, data: bytes) -> None:
        world = self.link.world
        self.bytes_sent += len(data)
        self._flying.append(data)
        self._flying_size += len(data)
        begin_ns = max(world.now_ns(), self._busy_until_ns)
        self._busy_until_ns = begin_ns + len(data) * NS_PER_SECOND // self.link.bytes_per_s
        arrival_ns = self._busy_until_ns + self.link.randomness.below(self.link.delay_ns)
        self._last_ns = max(self._last_ns, arrival_ns)
        world.at(self._last_ns, self.deliver)

    def deliver(self) -> None:
        """The next bytes arrive, if they can: otherwise they wait."""
        other = self.other
        if self._flying and self.link.is_up and not self.link.is_cut() and other.is_reading:
            data = self._flying.popleft()
            self._flying_size -= len(data)
            other.party.received(other.number, data)
        self.pump()

    def resume(self) -> None:
        """What waited because it could not arrive arrives now."""
        for _ in range(len(self._flying)):
            self.link.world.after(0, self.deliver)


class TreeLink:
    def __init__(
        self,
        world: World,
        randomness: SeededRandomness,
        is_cut: Callable[[str, str], bool],
        delay_ns: int = DELAY_NS_MAX,
    ) -> None:
        self.world = world
        self.randomness = randomness
        self.bytes_per_s = FAST_BYTES_PER_S
        self.delay_ns = delay_ns
        self.is_up = True
        self.ends: tuple[End, End]
        self._is_cut = is_cut

    def is_cut(self) -> bool:
        return self._is_cut(self.ends[0].party.name, self.ends[1].party.name)

    def resume(self) -> None:
        for end in self.ends:
            end.resume()

    def break_off(self, by: End | None = None) -> None:
        """Both sides find the link gone: who ended it at once, the other when that gets there."""
        if not self.is_up:
            return
        self.is_up = False
        for end in self.ends:
            end.is_open = False
            delay_ns = 0 if end is by else self.randomness.below(self.delay_ns)
            self.world.after(delay_ns, partial(end.party.ended, end.number))


class Wires:
    """Who can connect to whom."""

    def __init__(self, world: World, delay_ns: int = DELAY_NS_MAX) -> None:
        self.world = world
        self.links: list[TreeLink] = []
        self._randomness = world.randomness.fork("wires")
        self._delay_ns = delay_ns
        self._cut: set[frozenset[str]] = set()
        self._number = 0

    def is_cut(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self._cut

    def cut(self, one: str, other: str) -> None:
        """Nothing gets from one host to the other, and nobody is told."""
        self._cut.add(frozenset((one, other)))

    def mend(self, one: str, other: str) -> None:
        self._cut.discard(frozenset((one, other)))
        for link in self.alive():
            if {end.party.name for end in link.ends} == {one, other}:
                link.resume()

    def heal(self) -> None:
        for pair in list(self._cut):
            one, other = pair
            self.mend(one, other)

    def alive(self) -> list[TreeLink]:
        self.links = [link for link in self.links if link.is_up]
        return self.links

    def connect(self, opener: Party, target: Party | None, done: Callable[[End | None, End | None], None]) -> None:
        """`done` has both ends, or None if nobody answers."""
        delay_ns = self._randomness.below(CONNECT_NS_MAX)
        if target is None or self.is_cut(opener.name, target.name):
            self.world.after(TIMEOUT_NS if target is not None else delay_ns, lambda: done(None, None))
            return

        def open_link() -> None:
            if not target.is_up or not opener.is_up or self.is_cut(opener.name, target.name):
                done(None, None)
                return
            link = TreeLink(self.world, self._randomness, self.is_cut, self._delay_ns)
            self._number += 2
            link.ends = (End(link, opener, self._number - 1), End(link, target, self._number))
            self.links.append(link)
            done(*link.ends)

        self.world.after(delay_ns, open_link)
