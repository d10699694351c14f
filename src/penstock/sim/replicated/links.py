"""Connections of simulated message routers: what is sent arrives in order, until the link ends."""

from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.base.clock import NS_PER_MS
from penstock.sim.randomness import SeededRandomness
from penstock.sim.world import World

TIMEOUT_NS = 150 * NS_PER_MS
"""A link on which nothing arrives for so long is given up."""

LOOK_NS = 10 * NS_PER_MS


class End:
    def __init__(
        self, link: "RouterLink", party: str, receive: Callable[[Any], None], ended: Callable[[], None]
    ) -> None:
        self.party = party
        self.ended = ended
        self._link = link
        self._receive = receive
        self._coming: deque[Any] = deque()
        self._last_ns = 0
        self._has_ended = False

    def send(self, what: Any) -> None:
        """To the other end."""
        if self._link.is_up:
            self._link.other(self)._take(what)

    def close(self) -> None:
        self._link.end()

    def _take(self, what: Any) -> None:
        world = self._link.world
        self._coming.append(what)
        self._last_ns = max(self._last_ns, world.now_ns() + self._link.randomness.below(self._link.delay_ns))
        world.at(self._last_ns, self._arrive)

    def end(self) -> None:
        """What was sent to it before still arrives."""
        world = self._link.world
        end_ns = max(self._last_ns, world.now_ns() + self._link.randomness.below(self._link.delay_ns))
        world.at(end_ns, self._end)

    def _end(self) -> None:
        self._has_ended = True
        self.ended()

    def _arrive(self) -> None:
        if not self._coming or self._has_ended:
            return
        if self._link.is_cut():
            self._link.world.after(LOOK_NS, self._arrive)
            return
        self._receive(self._coming.popleft())


class RouterLink:
    def __init__(
        self, world: World, randomness: SeededRandomness, is_cut: Callable[[str, str], bool], delay_ns: int
    ) -> None:
        self.world = world
        self.randomness = randomness
        self.delay_ns = delay_ns
        self.is_up = True
        self.ends: list[End] = []
        self._is_cut = is_cut
        self._cut_since_ns: int | None = None

    def is_cut(self) -> bool:
        return self._is_cut(self.ends[0].party, self.ends[1].party)

    def other(self, end: End) -> End:
        return self.ends[1] if self.ends[0] is end else self.ends[0]

    def end(self) -> None:
        """Both sides learn it, each in its time."""
        if self.is_up:
            self.is_up = False
            for end in self.ends:
                end.end()

    def watch(self) -> None:
        """Heartbeats: a link that is cut for long is given up."""
        if not self.is_up:
            return
        now_ns = self.world.now_ns()
        self._cut_since_ns = (self._cut_since_ns or now_ns) if self.is_cut() else None
        if self._cut_since_ns is not None and now_ns - self._cut_since_ns > TIMEOUT_NS:
            self.end()
        self.world.after(LOOK_NS, self.watch)
