"""The state that the console's requests share: plant, sessions, picture and counters."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from penstock.base.clock import NS_PER_SECOND, SystemClock, random_bytes
from penstock.base.counters import Cause, Counters
from penstock.base.errors import (
    AuthenticationError,
    ConfigurationError,
    ConnectionLostError,
    PenstockError,
    RateLimitedError,
    StandbyError,
    UnreachableError,
)
from penstock.base.log import logger
from penstock.base.metrics import Metrics
from penstock.model import MessageModel, shipped, shipped_names
from penstock.node.console_config import ConsoleConfig
from penstock.node.plant import Plant
from penstock.security import Credentials
from penstock.security.core.brokering import Session as AdminSession
from penstock.security.core.policy import NAME
from penstock.security.live.client import AdminClient
from penstock.security.live.http import parse_addresses
from penstock.tree.config import AgentConfig
from penstock.web.core.entitlements import AuditDocument, EntitlementsDocument, audit_document, entitlements_document
from penstock.web.core.picture import Operator, PictureDocument, with_actions
from penstock.web.gateway.live.feed import FeedSource
from penstock.web.gateway.live.source import GatewaySource, Outlet
from penstock.web.gateway.live.tree import TreeSource
from penstock.web.live.actions import ActionLog, Actions
from penstock.web.live.login_links import LoginLinks
from penstock.web.live.sessions import Session, Sessions
from penstock.web.live.trees import guard_of, places_in
from penstock.web.live.watching import Watcher

COOKIE = "penstock_session"
LINK_NAME = "login link"
"""Stands for the client's name until the link is accepted; a client cannot have this name."""
TICK_S = 1.0
PUBLISHING_THREADS = 16
"""Threads in which messages of browsers wait for the root, so that a slow root blocks nothing else."""

log = logger("console")


class ConsoleStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The content of /status: numbers without names of users."""

    name: str
    kind: str
    sessions: int
    sockets: int
    picture: int


class ConsoleService:
    """Create and use the service in the thread of the running loop; only calls of the administration server run in
    other threads."""

    def __init__(self, plant: Plant, config: ConsoleConfig) -> None:
        self.plant = plant
        self.config = config
        self.is_secure = bool(config.certificate)
        self.cookie = f"__Host-{COOKIE}" if self.is_secure else COOKIE
        self.is_closing = False
        self.counters = Counters("console")
        self.metrics = Metrics()
        self.metrics.register(self.counters)
        self.metrics.show_gauges(self._gauges)
        self.watcher = Watcher(plant, config.interval_ms / 1_000)
        limits = config.limits
        self.action_log = ActionLog(
            Path(config.state_directory), size_max=limits.actions_bytes_max, files_max=limits.actions_files_max
        )
        self._guard = guard_of(config)
        self.actions = Actions(plant, self.action_log, self._guard)
        self._places = places_in(plant, config, self._guard)
        self.sessions = Sessions(config.limits, random_bytes, self._ended)
        self._clock = SystemClock()
        self._links = LoginLinks(Path(config.state_directory))
        self._logins = asyncio.Semaphore(config.limits.logins_at_once)
        self._addresses = parse_addresses(config.admin_url) if config.admin_url else []
        self._ca_file = Path(config.ca_file) if config.ca_file else None
        self._publishing = ThreadPoolExecutor(PUBLISHING_THREADS, "penstock-publishing")

    async def run(self) -> None:
        """Poll the plant, end expired sessions and reread the roles of the others, until cancelled."""
        await asyncio.gather(self.watcher.run(), self._tick(), self._follow_roles())

    def end_sessions(self) -> None:
        """The console is shutting down: end all sessions with a notice."""
        self.is_closing = True
        self.sessions.close()

    def close(self) -> None:
        """Release resources, after the last request."""
        self._publishing.shutdown(wait=False, cancel_futures=True)
        self.action_log.close()

    # Sessions

    def session(self, cookies: Mapping[str, str]) -> Session:
        return self.sessions.find(cookies.get(self.cookie, ""), self._clock.now_ns())

    async def login(self, name: str, secret: str, address: str) -> tuple[str, Session]:
        """Log in. Return the session and its key. Wrong names and wrong secrets get the same refusal."""
        return await self._open_session(name, address, lambda: _credentials(name, secret, self._ca_file))

    async def login_by_link(self, secret: str, address: str) -> tuple[str, Session]:
        """Log in with the secret of a one-time link, as the client for which the link was issued."""
        return await self._open_session(LINK_NAME, address, lambda: self._link_credentials(secret))

    async def _open_session(
        self, name: str, address: str, credentials: Callable[[], Credentials]
    ) -> tuple[str, Session]:
        if not self._addresses:
            raise ConfigurationError("this plant has no administration server, so nobody can log in")
        self.sessions.check_patience(name, address, self._clock.now_ns())
        try:
            async with self._logins:
                self.sessions.check_patience(name, address, self._clock.now_ns())
                admin, opened = await asyncio.to_thread(self._log_in, credentials)
        except AuthenticationError as error:
            self.sessions.note_failure(name, address, self._clock.now_ns())
            self.counters.add("requests_refused", cause=Cause.AUTHENTICATION)
            log.warning("login_failed", client=name if NAME.fullmatch(name) else "?", address=address, code=error.code)
            raise
        session = Session(opened.client, frozenset(opened.roles), admin, address, self._clock.now_ns())
        try:
            key = self.sessions.open(session, self._clock.now_ns())
        except PenstockError:
            admin.close()
            raise
        log.info("logged_in", client=session.client, address=address, by="link" if name == LINK_NAME else "secret")
        return key, session

    def _link_credentials(self, secret: str) -> Credentials:
        client = self._links.redeem(secret)
        credentials = Credentials.load(self.config.login_credentials) if self.config.login_credentials else None
        if credentials is None or credentials.client != client:
            raise AuthenticationError("the login link is for another client", hint="the configuration has changed")
        return credentials

    def _log_in(self, make_credentials: Callable[[], Credentials]) -> tuple[AdminClient, AdminSession]:
        admin = AdminClient(self._addresses, make_credentials())
        try:
            return admin, admin.login()
        except BaseException:
            admin.close()
            raise

    def logout(self, cookies: Mapping[str, str]) -> None:
        self.sessions.end(cookies.get(self.cookie, ""))

    def _ended(self, session: Session) -> None:
        for end in list(session.sockets):
            end()
        session.admin.close()
        log.info("session_over", client=session.client, address=session.address)

    def admin_of(self, session: Session) -> AdminClient:
        """Return a new connection to the administration server as the same client; the caller closes it."""
        return AdminClient(self._addresses, session.admin.credentials)

    async def open_source(self, session: Session, outlet: Outlet) -> GatewaySource:
        """Open a browser's source of messages: the tree or, without one, the plant's feeds."""
        if self._places is None:
            return FeedSource(self.admin_of(session), outlet)
        if session.models is None:
            session.models = await asyncio.to_thread(_fetch_models, session.admin)
        return TreeSource(self.admin_of(session), self._places, session.models, outlet, self._publishing)

    # Views

    def shown(self, picture: PictureDocument, session: Session) -> PictureDocument:
        """Return the picture that this session may see."""
        operator = Operator(
            session.client, session.is_operator, self.can_control, lambda agent: self._accepts(agent, session.client)
        )
        nodes = [with_actions(node, operator) for node in picture.nodes]
        return msgspec.structs.replace(picture, nodes=nodes)

    def _accepts(self, agent: str, client: str) -> bool:
        """False if this agent of the document names its operators, and the client is not one of them."""
        config = self.plant.nodes.get(agent)
        return not isinstance(config, AgentConfig) or not config.operators or client in config.operators

    async def entitlements(self, session: Session) -> EntitlementsDocument:
        return entitlements_document(await asyncio.to_thread(session.read_roles, self._clock.now_ns()))

    async def audit(self, session: Session, after: int) -> AuditDocument:
        return audit_document(await asyncio.to_thread(session.admin.audit, after))

    @property
    def has_stream(self) -> bool:
        return bool(self._addresses)

    @property
    def has_tree(self) -> bool:
        """True if browsers can publish and read history."""
        return self._places is not None

    @property
    def can_control(self) -> bool:
        return self.watcher.is_supervised

    @property
    def detail(self) -> str:
        return f"{len(self.sessions)} sessions"

    def status(self) -> ConsoleStatus:
        newest = self.watcher.newest()
        return ConsoleStatus(
            name=self.config.name,
            kind="console",
            sessions=len(self.sessions),
            sockets=self.sessions.sockets,
            picture=0 if newest is None else newest.number,
        )

    def _gauges(self) -> dict[str, float]:
        return {"console_sessions": len(self.sessions), "console_sockets": self.sessions.sockets}

    async def _follow_roles(self) -> None:
        """Reread the roles of all sessions regularly, so that a session has its current roles, and ends if its
        client was removed."""
        while True:
            await asyncio.sleep(self.config.limits.roles_s)
            await asyncio.gather(*(self._read_roles(key, session) for key, session in self.sessions.all()))

    async def _read_roles(self, key: str, session: Session) -> None:
        try:
            await asyncio.to_thread(session.read_roles, self._clock.now_ns())
        except (UnreachableError, ConnectionLostError, StandbyError, RateLimitedError) as error:
            unread_ns = self._clock.now_ns() - session.roles_ns
            if session.roles and unread_ns > self.config.limits.roles_lost_s * NS_PER_SECOND:
                session.roles = frozenset()
                log.warning("roles_lost", client=session.client, code=error.code, error=str(error))
        except PenstockError as error:  # the server no longer accepts its credentials
            log.warning("session_refused", client=session.client, code=error.code, error=str(error))
            self.sessions.end(key)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.sessions.tick(self._clock.now_ns())


def _credentials(name: str, secret: str, ca_file: Path | None) -> Credentials:
    try:
        if NAME.fullmatch(name) is None:
            raise ConfigurationError("is not a valid name")
        return Credentials(name, secret=secret.encode(), ca_file=ca_file)
    except (ConfigurationError, UnicodeEncodeError):
        raise AuthenticationError("unknown client or wrong secret") from None


def _fetch_models(admin: AdminClient) -> list[MessageModel]:
    """Return the models of the administration server and the shipped ones."""
    found = {model.id: model for model in map(shipped, shipped_names())}
    for reference in admin.models():
        found[reference.id] = admin.model(reference.id)
    return list(found.values())
