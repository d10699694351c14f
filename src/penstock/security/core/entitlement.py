"""Checks grants per topic: adapters before they send, clients before they deliver to the application."""

from collections.abc import Iterable

import numpy
import numpy.typing as npt

from penstock.base.errors import NotEntitledError
from penstock.security.core.patterns import parse_pattern
from penstock.security.core.token import Action, Grant
from penstock.topics import InterestTable

CACHE_SIZE_MAX = 65_536
_NOT_ASKED = object()


class Entitlement:
    """The rights of one token. If several grants match a topic, the shortest delay counts; a negative grant
    overrides all others. Results are cached per topic, with a bound. `seed` is the seed of the interest tables; give
    it only to repeat a run."""

    def __init__(self, grants: Iterable[Grant], *, seed: bytes | None = None) -> None:
        self.grants = tuple(grants)
        self.delays_s = sorted({each.delay_s for each in self._of("receive") if not each.pattern.startswith("!")})
        """The distinct delays of the receive grants, shortest first."""

        self._seed = seed
        self._receive = self._table("receive", self.delays_s)
        self._send = self._table("send", [0])
        self._cache: dict[str, int | None] = {}

    def receive_delay_s(self, topic: str) -> int | None:
        """Return the minimum age of a message on this topic for this client (0: live), or None if it may not be
        received."""
        found = self._cache.get(topic, _NOT_ASKED)
        if found is _NOT_ASKED:
            classes = self._receive.match(topic)
            found = self.delays_s[min(classes)] if classes else None
            if len(self._cache) >= CACHE_SIZE_MAX:
                self._cache.clear()
            self._cache[topic] = found
        return found  # type: ignore[return-value]

    def may_send(self, topic: str) -> bool:
        return bool(self._send.match(topic))

    def check_send(self, topic: str) -> None:
        if not self.may_send(topic):
            raise NotEntitledError(f"sending on {topic!r} is not allowed", hint="the token has no grant for it")

    def live_mask(
        self, data: bytes | bytearray | memoryview, offsets: npt.NDArray[numpy.uint32], sizes: npt.NDArray[numpy.uint16]
    ) -> npt.NDArray[numpy.bool_]:
        """Return a mask of the topics that may be received live. The arguments are those of a packet decoder."""
        mask = numpy.zeros(len(offsets), dtype=numpy.bool_)
        if self.delays_s[:1] == [0]:
            ends, classes = self._receive.match_batch(data, offsets, sizes)
            counts = (ends[1:] - ends[:-1]).astype(numpy.int64)
            rows = numpy.repeat(numpy.arange(len(offsets)), counts)
            mask[rows[classes == 0]] = True
        return mask

    def _of(self, action: Action) -> list[Grant]:
        return [each for each in self.grants if each.action == action]

    def _table(self, action: Action, delays_s: list[int]) -> InterestTable:
        """Build a table whose subscribers are the delays; a negative grant is entered for every delay."""
        table = InterestTable(seed=self._seed)
        for grant in self._of(action):
            pattern = parse_pattern(grant.pattern)
            for number, delay_s in enumerate(delays_s):
                if pattern.negative or grant.delay_s == delay_s or action == "send":
                    table.add(pattern, number)
        return table
