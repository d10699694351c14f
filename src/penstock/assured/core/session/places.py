"""Where a session looks for the active router: in rounds over those that it knows, with pauses. It does no I/O."""

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
"""Links in a row that were lost soon, after which there are pauses although routers bid welcome."""

HINTS_MAX = 2
"""Times in a row that a router's word is followed at once: while the active one changes, each may name the other."""


class SessionConfig(Config, frozen=True):
    name: Name
    routers: tuple[str, ...]
    """host:port of the routers of a pair, in any order."""

    role: ClientRole = "client"
    backoff_ms: Milliseconds = 20
    backoff_ms_max: Milliseconds = 500
    """Pauses between rounds over the routers, growing up to this one; half of each is chance."""

    silence_ms: Milliseconds = 3_000
    """Silence of the router after which it is taken for dead; it is asked three times meanwhile."""

    welcome_ms: Milliseconds = 3_000
    """How long a router may take to answer at the beginning. One that was silent has an eighth of it, and twice as long
    each further time: the other one may be active meanwhile."""

    @property
    def wants_active(self) -> bool:
        """Only an operator who names one router means just that one, whatever it is."""
        return self.role != "operator" or len(self.routers) > 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.routers:
            raise ConfigurationError("no router is named", where="routers", hint="host:port")
        for place in self.routers:
            parse_place(place)


class Places:
    """The Addresses of a session. Operators give orders to the routers that they name, and go nowhere else."""

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
        """What the last attempt to connect came to, that failed."""
        self.is_hopeless = False
        """No router can be reached where it was named, as it seems: nobody need wait, though they are tried on."""
        self._hopeless: set[str] = set()
        self._silent: dict[str, int] = {}  # how often
        self._was_welcome = False
        self._welcome_ns = 0
        self._short_links = 0  # in a row

    def learn(self, places: tuple[str, ...]) -> None:
        new = [each for each in places if self._is_led and each and each not in self._known]
        self._known += new[: PLACES_MAX - len(self._known)]

    def succeed(self, now_ns: int) -> None:
        """It is welcome: pauses begin anew with the next loss."""
        self._welcome_ns = now_ns
        if self._short_links >= SHORT_LINKS_MAX:
            return
        self._rounds, self._hints, self._todo = 0, 0, []
        self._silent.clear()
        self._was_welcome, self.is_hopeless, self.why_not = True, False, ""

    def lose(self, now_ns: int) -> None:
        """The link to a router that bade welcome is lost."""
        is_short = now_ns - self._welcome_ns < self._config.backoff_ms_max * NS_PER_MS
        self._short_links = self._short_links + 1 if is_short else 0

    def fail(self, place: str, why: str, *, is_hopeless: bool) -> bool:
        """Nobody answers there; whether nobody will, anywhere."""
        self.why_not = why
        if is_hopeless:
            self._hopeless.add(place)
        self.is_hopeless = not self._was_welcome and self._hopeless.issuperset(self._config.routers)
        return self.is_hopeless

    def pass_over(self) -> None:
        """The one that was tried last is silent."""
        self._silent[self._last] = self._silent.get(self._last, 0) + 1

    @property
    def answer_ns(self) -> int:
        """How long the one that is tried may take to answer."""
        whole_ns = self._config.welcome_ms * NS_PER_MS
        silent = self._silent.get(self._last, 0)
        return min(whole_ns, whole_ns << min(silent, 8) >> SILENT_SHIFT) if silent else whole_ns

    def first(self) -> tuple[str, int]:
        return self.next("", "")

    def next(self, lost: str, hint: str) -> tuple[str, int]:
        """The place to try next, the one that a router named first; and how many nanoseconds to wait before."""
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
