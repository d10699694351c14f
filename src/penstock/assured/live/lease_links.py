"""The lease's messages between its three voters, on control connections (protocol/lease.md).

Each router connects to both other voters and asks them there; a voter answers on the connection on which it was asked.
Nothing waits: a message to a voter that cannot be reached is dropped, and the next round sends it again.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from penstock.assured.core.lease.protocol import LEASE, Ask, Denied, Granted, LeaseConfig, LeaseTerms, Message, Released
from penstock.assured.node_config import LeaseAccess
from penstock.base.backoff import Backoff, BackoffPolicy
from penstock.base.clock import NS_PER_MS, SystemRandomness
from penstock.base.counters import Cause, Counters
from penstock.base.errors import AuthenticationError, ConfigurationError, PenstockError, RemoteProtocolError
from penstock.base.log import logger
from penstock.net.config import ControlConfig
from penstock.net.core.clock import ClockEstimate
from penstock.net.guard import Guard
from penstock.net.live.control_driver import ControlConnection, ControlServer, connect_control
from penstock.net.live.dialling import redial
from penstock.net.live.outbox import Outbox
from penstock.net.place import parse_place
from penstock.net.secret import read_secret
from penstock.net.tls import client_context, server_context

CONNECTIONS_MAX = 64
MESSAGE_SIZE_MAX = 1_024
WAITING_MAX = 8
"""Messages for one voter; older messages are obsolete."""

PATIENCE_MS_MIN = 1_000
PINGS = 3
"""Number of pings sent to a silent voter before the voter counts as dead."""

CLOCKS_APART_MS = 1_000
"""A difference of wall clocks that is logged."""

log = logger("assured.lease")

Connection: TypeAlias = ControlConnection[Message | LeaseTerms]
HeardBy: TypeAlias = Callable[[str, Message], None]


def apart_ms(estimate: ClockEstimate | None) -> int:
    return 0 if estimate is None else max(0, abs(estimate.offset_ns) - estimate.error_ns) // NS_PER_MS


class _Line(NamedTuple):
    """A connection to one other voter, whose terms are known to be the same."""

    connection: Connection
    outbox: Outbox[Message]


class LeaseLinks:
    """The links of one voter. `heard` is called in the loop's thread with messages of other voters. `places` has the
    addresses of the voters that this voter asks: a router asks both others, a witness asks none. `reached` is called
    when a connection to one of these voters is established."""

    def __init__(
        self,
        lease: LeaseConfig,
        name: str,
        access: LeaseAccess,
        heard: HeardBy,
        counters: Counters,
        places: Mapping[str, str],
        *,
        reached: Callable[[str], None] = lambda voter: None,
    ) -> None:
        expected = {each for each in lease.voters if each != name} if name in lease.routers else set()
        if set(places) != expected:
            raise ConfigurationError(
                f"{name} asks {', '.join(sorted(expected)) or 'nobody'}, has addresses of {', '.join(sorted(places))}",
                where="lease",
            )
        self._lease = lease
        self._name = name
        self._heard = heard
        self._reached = reached
        self._counters = counters
        self._places = {voter: parse_place(place) for voter, place in places.items()}
        self._askers = frozenset(lease.routers) - {name}
        self._apart: set[str] = set()
        self._asked: dict[str, _Line] = {}
        self._asking: dict[str, _Line] = {}
        patience_ms = max(lease.lease_ms, PATIENCE_MS_MIN)
        self._config = ControlConfig(
            connections_max=CONNECTIONS_MAX,
            message_size_max=MESSAGE_SIZE_MAX,
            handshake_ms=patience_ms,
            silence_ms=patience_ms,
            ping_ms=patience_ms // PINGS,
            write_ms=patience_ms,
        )
        secret = read_secret(Path(access.secret_file)) if access.secret_file else None
        self._guard = Guard(secret, client_context(access.tls), is_needed_here=access.tls is not None)
        self._server = ControlServer(
            LEASE,
            self._serve,
            node=name,
            host=access.host,
            port=access.port,
            secret=secret,
            tls=server_context(access.tls),
            config=self._config,
            counters=counters,
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self._server.start()
        self._tasks = [asyncio.ensure_future(self._dial(voter)) for voter in self._places]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.close()

    @property
    def port(self) -> int:
        return self._server.port

    def in_touch(self) -> list[str]:
        """The voters that are connected."""
        return sorted({*self._asked, *self._asking})

    @property
    def tasks(self) -> list["asyncio.Task[None]"]:
        """The tasks that keep the connections on which this voter asks others."""
        return self._tasks

    def clocks_apart_ms(self) -> int:
        """Minimum difference between another voter's wall clock and this one's, as far as is known."""
        lines = [*self._asked.values(), *self._asking.values()]
        return max((apart_ms(line.connection.clock_estimate()) for line in lines), default=0)

    def tell(self, to: str, message: Message) -> None:
        lines = self._asked if isinstance(message, Ask | Released) else self._asking
        line = lines.get(to)
        if line is None:
            self._counters.add("votes_unsent")
        else:
            line.outbox.put(message)

    # Connections

    async def _serve(self, connection: Connection) -> None:
        """Handle a connection on which another voter asks for this voter's vote."""
        if connection.peer.node not in self._askers:
            error = AuthenticationError(f"{connection.peer.node} may not request this lease")
            raise self._refused(Cause.AUTHENTICATION, error)
        await self._converse(connection, self._asking, (Ask, Released))

    async def _dial(self, voter: str) -> None:
        """Keep a connection to a voter that this one asks."""
        host, port = self._places[voter]
        pause_ms = 2 * max(1, self._lease.lease_ms // 6)
        policy = BackoffPolicy(base_ms=pause_ms, factor=1.0, max_ms=pause_ms, absent_max_ms=pause_ms)

        def report(error: PenstockError, is_news: bool) -> None:
            say = log.warning if is_news else log.debug
            say("voter_not_reached", voter=voter, place=f"{host}:{port}", code=error.code, error=str(error))

        await redial(lambda: self._ask_at(voter, host, port), Backoff(SystemRandomness(), policy), report)

    async def _ask_at(self, voter: str, host: str, port: int) -> bool:
        connection = await connect_control(
            LEASE,
            host,
            port,
            node=self._name,
            secret=self._guard.secret,
            tls=self._guard.tls_for(host),
            config=self._config,
            counters=self._counters,
        )
        async with connection:
            if connection.peer.node != voter:
                error = AuthenticationError(f"{connection.peer.node} answers instead of {voter}")
                raise self._refused(Cause.AUTHENTICATION, error)
            await self._converse(connection, self._asked, (Granted, Denied))
        return True

    async def _converse(
        self, connection: Connection, lines: dict[str, _Line], expected: tuple[type[Message], ...]
    ) -> None:
        """Use the connection until it ends; the newest connection of a voter counts."""
        voter = connection.peer.node
        await connection.send(self._lease.terms)
        self._compare(voter, await connection.receive())
        line = lines[voter] = _Line(connection, Outbox(WAITING_MAX, "drop_oldest"))
        if lines is self._asked:
            self._reached(voter)
        log.info("voter_reached", voter=voter, address=connection.address)
        sending = asyncio.ensure_future(line.outbox.send_to(connection))
        try:
            async for message in connection:
                if not isinstance(message, expected):
                    error = RemoteProtocolError(f"unexpected {type(message).__name__}")
                    raise self._refused(Cause.MESSAGE, error)
                self._heard(voter, message)
                self._compare_clocks(voter, connection)
        finally:
            sending.cancel()
            if lines.get(voter) is line:
                del lines[voter]

    def _compare(self, voter: str, theirs: Message | LeaseTerms | None) -> None:
        """Voters with different terms do not vote together."""
        if theirs is None:
            raise RemoteProtocolError(f"{voter} ended the connection", hint="its log says why")
        if not isinstance(theirs, LeaseTerms):
            error = RemoteProtocolError(f"a {type(theirs).__name__} before the terms")
            raise self._refused(Cause.MESSAGE, error)
        if theirs != self._lease.terms:
            log.error("terms_differ", voter=voter, here=str(self._lease.terms), there=str(theirs))
            hint = "routers, witness, lease_ms and drift_ppm must be equal"
            raise self._refused(Cause.REFUSED, ConfigurationError(f"{voter} has other terms", hint=hint))

    def _compare_clocks(self, voter: str, connection: Connection) -> None:
        """Warn of clocks that differ. The lease does not depend on wall clocks, but a message expires by the wall clock
        of the router that has the message."""
        apart = apart_ms(connection.clock_estimate())
        if apart > CLOCKS_APART_MS and voter not in self._apart:
            log.warning("clocks_differ", voter=voter, ms=apart, hint="messages expire by the active router's clock")
            self._apart.add(voter)
        elif apart < CLOCKS_APART_MS // 2:
            self._apart.discard(voter)

    def _refused(self, cause: Cause, error: PenstockError) -> PenstockError:
        self._counters.add("requests_refused", cause=cause)
        return error
