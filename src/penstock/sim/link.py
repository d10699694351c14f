"""Links between two processes: items arrive at the other end in order, until the link ends."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Self, TypeVar

from penstock.base.clock import NS_PER_SECOND
from penstock.sim.randomness import SeededRandomness
from penstock.sim.world import World

T = TypeVar("T")


class LinkEnd(Generic[T]):
    """One end of a link; it sends to the other end. `receive` is called with arriving items, `ended` when this end
    detects the end of the link.
    """

    def __init__(
        self,
        link: "OrderedLink[Any]",
        name: str,
        receive: Callable[[T], None] = lambda item: None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self.link = link
        self.name = name
        self.receive = receive
        self.ended = ended
        self.is_open = True
        """False once this end has learned that the link has ended."""
        self.is_reading = True
        """False: items wait until the other end calls `resume`."""
        self.bytes_sent = 0
        self.bytes_in_flight = 0
        self._in_flight: deque[tuple[T, int]] = deque()
        self._line_free_ns = 0
        self._last_arrival_ns = 0

    @property
    def other(self) -> Self:
        one, other = self.link.ends
        end: Self = other if one is self else one
        return end

    @property
    def has_in_flight(self) -> bool:
        return bool(self._in_flight)

    def send(self, item: T, size: int = 0, sent: Callable[[], None] | None = None) -> None:
        """Send an item of so many bytes; `sent` is called when the line is free again."""
        link, world = self.link, self.link.world
        if not link.is_up:
            return
        self.bytes_sent += size
        self.bytes_in_flight += size
        self._in_flight.append((item, size))
        begin_ns = max(world.now_ns(), self._line_free_ns)
        self._line_free_ns = begin_ns + (size * NS_PER_SECOND // link.bytes_per_s if link.bytes_per_s else 0)
        arrival_ns = self._line_free_ns + link.randomness.below(link.delay_ns)
        self._last_arrival_ns = max(self._last_arrival_ns, arrival_ns)
        if sent is not None:
            world.at(self._line_free_ns, sent)
        world.at(self._last_arrival_ns, self.deliver)

    def deliver(self) -> None:
        """Deliver the next item to the other end, unless that end has learned of the end of the link. The item waits
        during a cut, or while the other end does not read.
        """
        other = self.other
        if not self._in_flight or not other.is_open:
            return
        if self.link.is_cut():
            if self.link.poll_ns:
                self.link.world.after(self.link.poll_ns, self.deliver)
        elif other.is_reading:
            item, size = self._in_flight.popleft()
            self.bytes_in_flight -= size
            other.receive(item)

    def resume(self) -> None:
        """Deliver waiting items."""
        for _ in range(len(self._in_flight)):
            self.link.world.after(0, self.deliver)

    def end_later(self) -> None:
        """Learn of the end of the link after all items sent to this end have arrived."""
        world, link = self.link.world, self.link
        end_ns = max(self.other._last_arrival_ns, world.now_ns() + link.randomness.below(link.delay_ns))
        world.at(end_ns, self._end)

    def _end(self) -> None:
        self.is_open = False
        self.ended()


E = TypeVar("E", bound=LinkEnd[Any])


class OrderedLink(Generic[E]):
    """Two ends, and the line between them.

    An item takes up to `delay_ns`, after the time that its bytes take on the line (`bytes_per_s`; 0: none). `is_cut`
    returns whether the link between two named ends is cut; waiting items are then tried again every `poll_ns`, or, if
    that is 0, after `resume`.
    """

    ends: tuple[E, E]

    def __init__(
        self,
        world: World,
        randomness: SeededRandomness,
        delay_ns: int,
        *,
        bytes_per_s: int = 0,
        is_cut: Callable[[str, str], bool] = lambda one, other: False,
        poll_ns: int = 0,
    ) -> None:
        self.world = world
        self.randomness = randomness
        self.delay_ns = delay_ns
        self.bytes_per_s = bytes_per_s
        self.poll_ns = poll_ns
        self.is_up = True
        self._is_cut = is_cut
        self._cut_since_ns: int | None = None

    def is_cut(self) -> bool:
        return self._is_cut(self.ends[0].name, self.ends[1].name)

    def resume(self) -> None:
        for end in self.ends:
            end.resume()

    # Ending

    def end(self) -> None:
        """End the link. Each end detects this after the arrival of the items sent to it."""
        if self.is_up:
            self.is_up = False
            for end in self.ends:
                end.end_later()

    def drop(self) -> None:
        """Lose the items in flight, without a call to either end."""
        self.is_up = False
        for end in self.ends:
            end.is_open = False

    def break_off(self, by: E | None = None) -> None:
        """Lose the items in flight, and notify both ends: `by` at once, the other end after the delay of the line."""
        if not self.is_up:
            return
        self.drop()
        for end in self.ends:
            self.world.after(0 if end is by else self.randomness.below(self.delay_ns), end.ended)

    def watch(self, timeout_ns: int) -> None:
        """Simulate heartbeats: end a link that has been cut for longer than this; checked every `poll_ns`."""
        if not self.is_up:
            return
        now_ns = self.world.now_ns()
        self._cut_since_ns = (self._cut_since_ns or now_ns) if self.is_cut() else None
        if self._cut_since_ns is not None and now_ns - self._cut_since_ns > timeout_ns:
            self.end()
        self.world.after(self.poll_ns, partial(self.watch, timeout_ns))
