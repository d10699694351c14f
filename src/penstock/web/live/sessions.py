"""Sessions of browsers: logins, their expiry, and a limit on failed logins."""

from collections.abc import Callable, Sequence

import msgspec

from penstock.admin.config import AdminLimits
from penstock.admin.core.logins import FailureTable
from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import RateLimitedError, TokenError
from penstock.model import MessageModel
from penstock.node.console_config import ConsoleLimits
from penstock.security.core.operating import Entitlements
from penstock.security.live.client import AdminClient

KEY_SIZE = 32
OPERATOR, AUDITOR = "administrator", "auditor"
FULL_RETRY_S = 30


class Session:
    """One login. `admin` makes requests to the administration server with this client's rights only."""

    def __init__(self, client: str, roles: frozenset[str], admin: AdminClient, address: str, now_ns: int) -> None:
        self.client = client
        self.roles = roles
        """The roles from the administration server's last answer; none if that answer is too old."""
        self.roles_ns = now_ns
        """Time of that answer, by the monotonic clock."""
        self.admin = admin
        self.address = address
        self.opened_ns = now_ns
        self.used_ns = now_ns
        self.is_over = False
        self.models: Sequence[MessageModel] | None = None
        """The models of its messages, loaded on first use."""
        self.sockets: set[Callable[[], object]] = set()
        """Functions that end its WebSockets."""

    def read_roles(self, now_ns: int) -> Entitlements:
        """Return the administration server's current answer about this client. Blocks: call it in a thread."""
        held = self.admin.entitlements()
        self.roles, self.roles_ns = frozenset(held.own.roles), now_ns
        return held

    @property
    def is_operator(self) -> bool:
        return OPERATOR in self.roles

    @property
    def may_audit(self) -> bool:
        return bool(self.roles & {OPERATOR, AUDITOR})


class SessionDocument(msgspec.Struct, frozen=True, kw_only=True):
    client: str
    roles: list[str]
    is_operator: bool
    expires_s: float
    idle_s: float
    has_stream: bool
    has_tree: bool
    plant: str
    can_control: bool
    version: str


class Sessions:
    """Times are arguments, from the monotonic clock. `ended(session)` is called for each session that ends."""

    def __init__(self, limits: ConsoleLimits, random: Callable[[int], bytes], ended: Callable[[Session], None]) -> None:
        self._limits = limits
        self._random = random
        self._ended = ended
        self._sessions: dict[str, Session] = {}
        self._failures = FailureTable(
            AdminLimits(
                failures_max=limits.failures_max,
                address_failures_max=limits.address_failures_max,
                failure_s=limits.failure_s,
            )
        )

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def sockets(self) -> int:
        """Number of WebSockets of all sessions."""
        return sum(len(session.sockets) for session in self._sessions.values())

    def check_patience(self, name: str, address: str, now_ns: int) -> None:
        """Raise RateLimitedError if too many logins failed."""
        self._failures.check(name, address, now_ns)

    def note_failure(self, name: str, address: str, now_ns: int) -> None:
        self._failures.note(name, address, now_ns)

    def open(self, session: Session, now_ns: int) -> str:
        """Open a session. Return its key, which only its browser gets."""
        self._failures.note_success(session.client, session.address, now_ns)
        own = [(each.used_ns, key) for key, each in self._sessions.items() if each.client == session.client]
        if len(own) >= self._limits.client_sessions_max:
            self.end(min(own)[1])
        if len(self._sessions) >= self._limits.sessions_max:
            raise RateLimitedError(
                "there are too many sessions", retry_after_s=FULL_RETRY_S, hint="sessions end after a while"
            )
        key = self._random(KEY_SIZE).hex()
        self._sessions[key] = session
        return key

    def find(self, key: str, now_ns: int) -> Session:
        """Return the session of this key and note its use. Raise TokenError if there is none or it has ended."""
        session = self._sessions.get(key)
        if session is None:
            raise TokenError("no session", hint="log in")
        if self._is_due(session, now_ns):
            self.end(key)
            raise TokenError("the session has ended", hint="log in again")
        session.used_ns = now_ns
        return session

    def expires_s(self, session: Session, now_ns: int) -> float:
        left_ns = session.opened_ns + int(self._limits.session_s * NS_PER_SECOND) - now_ns
        return max(0.0, left_ns / NS_PER_SECOND)

    def end(self, key: str) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            session.is_over = True
            self._ended(session)

    def tick(self, now_ns: int) -> None:
        """End expired sessions."""
        for key in [key for key, session in self._sessions.items() if self._is_due(session, now_ns)]:
            self.end(key)

    def all(self) -> list[tuple[str, Session]]:
        """Keys and sessions."""
        return list(self._sessions.items())

    def watched(self) -> list[tuple[str, Session]]:
        """Keys and sessions with an open WebSocket."""
        return [(key, session) for key, session in self._sessions.items() if session.sockets]

    def close(self) -> None:
        for key in list(self._sessions):
            self.end(key)

    def _is_due(self, session: Session, now_ns: int) -> bool:
        if session.sockets:
            session.used_ns = now_ns
        lived_ns, idle_ns = now_ns - session.opened_ns, now_ns - session.used_ns
        return lived_ns >= self._limits.session_s * NS_PER_SECOND or idle_ns >= self._limits.idle_s * NS_PER_SECOND
