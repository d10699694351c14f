"""Session connections of a simulated distribution plant."""

from collections import deque
from collections.abc import Callable

from penstock.base.clock import NS_PER_MS
from penstock.engine import SessionBuffer
from penstock.sim.link import LinkEnd, OrderedLink
from penstock.sim.randomness import SeededRandomness
from penstock.sim.world import World

TAKE_SIZE_MAX = 16_384
DELAY_NS_MAX = 2 * NS_PER_MS


class SessionLink(OrderedLink[LinkEnd[bytes]]):
    """Takes events out of a session's buffer at the rate of the line, and delivers them in order after a delay.

    `arrive` is called when `arrived` has data, `drained` when the buffer has room again, `observe` with data written
    into the buffer.
    """

    def __init__(
        self,
        world: World,
        randomness: SeededRandomness,
        buffer: SessionBuffer,
        bytes_per_s: int,
        arrive: Callable[[], None],
        drained: Callable[[], None],
        observe: Callable[[bytes], None] | None = None,
    ) -> None:
        super().__init__(world, randomness, DELAY_NS_MAX, bytes_per_s=bytes_per_s)
        self.ends = (LinkEnd(self, "node"), LinkEnd(self, "consumer", self._receive))
        self.buffer = buffer
        self.is_paused = False
        """True while the other side does not read."""
        self.arrived: deque[bytes] = deque()
        self._arrive = arrive
        self._drained = drained
        self._observe = observe
        self._observed_size = 0  # bytes in the buffer
        self._is_busy = False

    def is_congested(self) -> bool:
        return 2 * len(self.buffer) > self.buffer.capacity

    def observe(self) -> None:
        """Report the bytes that were written into the buffer since the last call."""
        if self._observe is not None and len(self.buffer) > self._observed_size:
            written = self.buffer.peek(self._observed_size)
            self._observed_size += len(written)
            self._observe(written)

    def wake(self) -> None:
        """Called when the buffer has data to send."""
        if self.is_up and not self.is_paused and not self._is_busy and len(self.buffer):
            self._send()

    def pause(self, is_paused: bool) -> None:
        self.is_paused = is_paused
        self.wake()

    def break_off(self, by: object = None) -> None:
        """Lose the data in flight; the caller notifies both sides."""
        self.drop()
        self.arrived.clear()

    def _send(self) -> None:
        self.observe()
        data = self.buffer.take(TAKE_SIZE_MAX)
        self._observed_size = max(0, self._observed_size - len(data))
        self._is_busy = True
        self.ends[0].send(data, len(data), self._sent)

    def _sent(self) -> None:
        self._is_busy = False
        if self.is_up:
            self._drained()
            self.wake()

    def _receive(self, data: bytes) -> None:
        self.arrived.append(data)
        self._arrive()
