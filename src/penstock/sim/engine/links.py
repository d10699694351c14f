"""Connections of a simulated distribution plant: what a session carries, in order, until it breaks."""

from collections import deque
from collections.abc import Callable

from penstock.base.clock import NS_PER_SECOND
from penstock.engine import SessionBuffer
from penstock.sim.randomness import SeededRandomness
from penstock.sim.world import World

TAKE_SIZE_MAX = 16_384


class SessionLink:
    """Takes events out of a session's buffer as fast as the line is, and hands them over after a delay, in order.

    `arrive` is called when there is something in `arrived`, `drained` when the buffer has room again,
    `observe` with what was written into it.
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
        self.world = world
        self.buffer = buffer
        self.bytes_per_s = bytes_per_s
        self.is_up = True
        self.is_paused = False
        """Whether the other side does not read."""
        self.arrived: deque[bytes] = deque()
        self._flying: deque[bytes] = deque()
        self._randomness = randomness
        self._arrive = arrive
        self._drained = drained
        self._observe = observe
        self._observed_size = 0  # of what is in the buffer
        self._is_busy = False
        self._last_ns = 0

    def is_congested(self) -> bool:
        return 2 * len(self.buffer) > self.buffer.capacity

    def observe(self) -> None:
        """What was written into the buffer since it was last observed, before it is taken out."""
        if self._observe is not None and len(self.buffer) > self._observed_size:
            written = self.buffer.peek(self._observed_size)
            self._observed_size += len(written)
            self._observe(written)

    def wake(self) -> None:
        """There is something to send."""
        if self.is_up and not self.is_paused and not self._is_busy and len(self.buffer):
            self._send()

    def pause(self, is_paused: bool) -> None:
        self.is_paused = is_paused
        self.wake()

    def break_off(self) -> None:
        """What is on its way is lost."""
        self.is_up = False
        self.arrived.clear()
        self._flying.clear()

    def _send(self) -> None:
        self.observe()
        data = self.buffer.take(TAKE_SIZE_MAX)
        self._observed_size = max(0, self._observed_size - len(data))
        self._flying.append(data)
        self._is_busy = True
        sent_ns = self.world.now_ns() + len(data) * NS_PER_SECOND // self.bytes_per_s
        self._last_ns = max(self._last_ns, sent_ns + self._randomness.below(2_000_000))
        self.world.at(sent_ns, self._sent)
        self.world.at(self._last_ns, self._hand_over)

    def _sent(self) -> None:
        self._is_busy = False
        if self.is_up:
            self._drained()
            self.wake()

    def _hand_over(self) -> None:
        if self.is_up:
            self.arrived.append(self._flying.popleft())
            self._arrive()
