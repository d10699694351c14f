"""Connections of a simulated tree: byte streams between two parties."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from penstock.base.clock import NS_PER_MS
from penstock.sim.link import LinkEnd, OrderedLink
from penstock.sim.world import World

WINDOW_SIZE = 16_384
"""Maximum bytes in flight: the size of the socket buffers."""
CHUNK_SIZE = 4_096
DELAY_NS_MAX = 2 * NS_PER_MS
FAST_BYTES_PER_S = 50_000_000
CONNECT_NS_MAX = 3 * NS_PER_MS
TIMEOUT_NS = 100 * NS_PER_MS


class LinkedProcess(Protocol):
    """A process at the end of a link."""

    name: str

    @property
    def is_up(self) -> bool: ...

    def send(self, link: int, size_max: int) -> bytes:
        """The next bytes to send."""
        ...

    def received(self, link: int, data: bytes) -> None: ...

    def ended(self, link: int) -> None:
        """Called when the link has ended."""
        ...


class TreeEnd(LinkEnd[bytes]):
    """One end of a link between two parties: takes bytes from its party as long as the window has room."""

    def __init__(self, link: "OrderedLink[TreeEnd]", party: LinkedProcess, number: int) -> None:
        super().__init__(link, party.name, partial(party.received, number), partial(party.ended, number))
        self.party = party
        self.number = number
        self._is_closing = False

    def pump(self) -> None:
        """Send the party's data, as far as the other end has room."""
        while self.is_open and self.bytes_in_flight < WINDOW_SIZE:
            data = self.party.send(self.number, CHUNK_SIZE)
            if not data:
                break
            self.send(data, len(data))
        if self._is_closing and self.is_open and not self.has_in_flight:
            self.link.break_off(self)

    def close(self) -> None:
        """End the link after all data is sent."""
        self._is_closing = True
        self.pump()
        if self.is_open:
            self.link.world.after(TIMEOUT_NS, lambda: self.link.break_off(self))

    def deliver(self) -> None:
        super().deliver()
        self.pump()


class TreeNetwork:
    """All links of a tree, and the pairs of hosts that are cut off from each other."""

    def __init__(self, world: World, delay_ns: int = DELAY_NS_MAX) -> None:
        self.world = world
        self.links: list[OrderedLink[TreeEnd]] = []
        self._randomness = world.randomness.fork("wires")
        self._delay_ns = delay_ns
        self._cut: set[frozenset[str]] = set()
        self._number = 0

    def is_cut(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self._cut

    def cut(self, one: str, other: str) -> None:
        """Drop everything between two hosts without notice."""
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

    def alive(self) -> list[OrderedLink[TreeEnd]]:
        self.links = [link for link in self.links if link.is_up]
        return self.links

    def connect(
        self,
        opener: LinkedProcess,
        target: LinkedProcess | None,
        done: Callable[[TreeEnd | None, TreeEnd | None], None],
    ) -> None:
        """`done` is called with both ends, or with None if the peer does not answer."""
        delay_ns = self._randomness.below(CONNECT_NS_MAX)
        if target is None or self.is_cut(opener.name, target.name):
            self.world.after(TIMEOUT_NS if target is not None else delay_ns, lambda: done(None, None))
            return

        def open_link() -> None:
            if not target.is_up or not opener.is_up or self.is_cut(opener.name, target.name):
                done(None, None)
                return
            link = OrderedLink[TreeEnd](
                self.world, self._randomness, self._delay_ns, bytes_per_s=FAST_BYTES_PER_S, is_cut=self.is_cut
            )
            self._number += 2
            link.ends = (TreeEnd(link, opener, self._number - 1), TreeEnd(link, target, self._number))
            self.links.append(link)
            done(*link.ends)

        self.world.after(delay_ns, open_link)
