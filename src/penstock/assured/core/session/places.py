"""The addresses that a session tries for the active router: in rounds, with pauses. No I/O."""

from typing import Annotated

import msgspec

from penstock.assured.wire.control import ClientRole
from penstock.base.backoff import BackoffPolicy, pause_ns
from penstock.base.clock import NS_PER_MS, Randomness
from penstock.base.config import Config
from penstock.base.errors import ConfigurationError
from penstock.net.core.control import Name
from penstock.net.place import parse_place

Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=3_600_000)]

SILENT_SHIFT = 4
PLACES_MAX = 32
SHORT_LINKS_MAX = 3
"""Number of consecutive short links after which pauses begin, although routers accept the login."""

HINTS_MAX = 2
"""Number of consecutive redirects that are followed at once: during a switch, each router may name the other one."""


class SessionConfig(Config, frozen=True):
    name: Name
    routers: tuple[str, ...]
    """host:port of the routers of a pair, in any order."""

    role: ClientRole = "client"
    backoff_ms: Milliseconds = 20
    backoff_ms_max: Milliseconds = 500
    """Maximum pause between rounds; pauses grow up to it, and half of each is random."""

    silence_ms: Milliseconds = 3_000
    """Silence after which the router counts as dead; it is pinged three times meanwhile."""

    welcome_ms: Milliseconds = 3_000
    """Time limit for the answer to a login. After a timeout, a router gets an eighth of it, doubled each time: the
    other one may be active meanwhile."""

    @property
    def wants_active(self) -> bool:
        """False only for an operator who names a single router, active or not."""
        return self.role != "operator" or len(self.routers) > 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.routers:
            raise ConfigurationError("no router is named", where="routers", hint="host:port")
        for place in self.routers:
            parse_place(place)


class Places:
    """The Addresses of a session. Operators give orders to the named routers, and are not redirected."""

    def __init__(self, config: SessionConfig, randomness: Randomness) -> None:
        self._config = config
        self._randomness = randomness
        self._growth = BackoffPolicy(base_ms=config.backoff_ms, max_ms=config.backoff_ms_max)
        self._known = list(dict.fromkeys(config.routers))
        self._todo: list[str] = []
        self._last = ""
        self._rounds = 0
        self._hints = 0
        self._is_led = config.role != "operator"
        self.why_not = ""
        """The error of the last failed attempt to connect."""
        self.is_hopeless = False
        """True if no router seems to be reachable at its address: callers need not wait, although attempts continue."""
        self._hopeless: set[str] = set()
        self._silent: dict[str, int] = {}  # number of timeouts
        self._was_welcome = False
        self._welcome_ns = 0
        self._short_links = 0  # consecutive

    def learn(self, places: tuple[str, ...]) -> None:
        new = [each for each in places if self._is_led and each and each not in self._known]
        self._known += new[: PLACES_MAX - len(self._known)]

    def succeed(self, now_ns: int) -> None:
        """The login was accepted: pauses start again with the next loss."""
        self._welcome_ns = now_ns
        if self._short_links >= SHORT_LINKS_MAX:
            return
        self._rounds, self._hints, self._todo = 0, 0, []
        self._silent.clear()
        self._was_welcome, self.is_hopeless, self.why_not = True, False, ""

    def lose(self, now_ns: int) -> None:
        """The link to a router that had accepted the login was lost."""
        is_short = now_ns - self._welcome_ns < self._config.backoff_ms_max * NS_PER_MS
        self._short_links = self._short_links + 1 if is_short else 0

    def fail(self, place: str, why: str, *, is_hopeless: bool) -> bool:
        """No router answers there. Return True if none will, at any address."""
        self.why_not = why
        if is_hopeless:
            self._hopeless.add(place)
        self.is_hopeless = not self._was_welcome and self._hopeless.issuperset(self._config.routers)
        return self.is_hopeless

    def pass_over(self) -> None:
        """The last router did not answer."""
        self._silent[self._last] = self._silent.get(self._last, 0) + 1

    @property
    def answer_ns(self) -> int:
        """Time limit for the current attempt."""
        whole_ns = self._config.welcome_ms * NS_PER_MS
        silent = self._silent.get(self._last, 0)
        return min(whole_ns, whole_ns << min(silent, 8) >> SILENT_SHIFT) if silent else whole_ns

    def first(self) -> tuple[str, int]:
        return self.next("", "")

    def next(self, lost: str, hint: str) -> tuple[str, int]:
        """Return the next address, beginning with a redirect, and the nanoseconds to wait before."""
        wait_ns = 0
        if hint and self._is_led and self._hints < HINTS_MAX:
            self._hints += 1
            self._last = hint
        else:
            if not self._todo:
                self._todo = sorted(self._known, key=lambda place: place == self._last)  # others are tried first
                wait_ns = pause_ns(self._growth, self._rounds, self._randomness) if self._rounds else 0
                self._rounds += 1
            self._last = self._todo.pop(0)
        return self._last, wait_ns
