"""Configuration of a console; penstock.web implements the console."""

from typing import Annotated

import msgspec

from penstock.base.config import Config
from penstock.base.errors import ConfigurationError
from penstock.net.core.control import Name
from penstock.net.page_access import PageTokenConfig, check_page_token
from penstock.net.place import is_loopback, parse_place
from penstock.security.core.access import AnyPort
from penstock.security.live.http import parse_addresses

CONSOLE_PORT_DEFAULT = 7430

Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class ConsoleLimits(Config, frozen=True):
    """Limits for everything that comes from browsers."""

    connections_max: Count = 1_024
    body_size_max: Annotated[int, msgspec.Meta(ge=1_024, le=1024 * 1024)] = 16_384
    body_s: Seconds = 5.0
    frame_size_max: Annotated[int, msgspec.Meta(ge=1_024, le=1024 * 1024)] = 65_536
    """Maximum size of a message from a browser on a WebSocket."""

    sessions_max: Count = 256
    client_sessions_max: Count = 16
    """Maximum number of sessions of one client; a further login ends the least recently used session."""

    session_s: Seconds = 43_200.0
    idle_s: Seconds = 900.0
    """Maximum duration of a session, and of an idle session."""

    failures_max: Count = 5
    """Failed logins of one name from one address within `failure_s` before further logins are refused without a
    check."""

    address_failures_max: Count = 20
    """The same for all logins from one address."""

    failure_s: Seconds = 60.0
    logins_at_once: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    """Logins that are checked at once. Each check is deliberately expensive."""

    link_s: Seconds = 600.0
    """Time for which a one-time login link is valid."""

    sockets_max: Annotated[int, msgspec.Meta(ge=1, le=1_024)] = 8
    """Maximum number of WebSockets of one session."""

    stuck_s: Seconds = 20.0
    """A browser that accepts no data for this time although data waits is cut off."""

    subscriptions_max: Annotated[int, msgspec.Meta(ge=1, le=1_024)] = 64
    """Maximum number of subscriptions of one WebSocket."""

    topics_max: Annotated[int, msgspec.Meta(ge=1, le=1_024)] = 64
    """Maximum number of topics of one subscription."""

    requests_per_s: Annotated[float, msgspec.Meta(gt=0, le=100_000)] = 50.0
    """Average rate of requests on one WebSocket; bursts have twice as many."""

    roles_s: Seconds = 5.0
    """Interval at which the console asks the administration server for the roles of each session."""

    roles_lost_s: Seconds = 60.0
    """Time without an answer after which sessions lose their roles until the server answers."""

    actions_bytes_max: Annotated[int, msgspec.Meta(ge=65_536, le=2**40)] = 16 * 1024 * 1024
    actions_files_max: Annotated[int, msgspec.Meta(ge=2, le=1_000)] = 8
    """Size of each file of the action log, and number of files; the oldest file is removed."""

    queue_size_max: Annotated[int, msgspec.Meta(ge=16, le=1_000_000)] = 4_096
    """Maximum number of messages that wait for one WebSocket."""


class ConsoleConfig(Config, frozen=True):
    name: Name = "console"
    host: str = "127.0.0.1"
    port: AnyPort = CONSOLE_PORT_DEFAULT
    """0: any free port."""

    certificate: str = ""
    private_key: str = ""
    """PEM files for TLS. Without them the console listens on loopback addresses only."""

    metrics_access: PageTokenConfig = PageTokenConfig()
    """The token of /health, /status and /metrics, required if `host` is not a loopback address."""

    hosts: tuple[str, ...] = ()
    """Additional host names of the console, as "console.example" or "console.example:8443"; requests for other names
    are refused."""

    admin_url: str = ""
    """The administration servers, which check logins."""

    ca_file: str = ""
    """CA certificates for the administration servers, and for agents on other hosts."""

    secret_file: str = ""
    """A secret shared with agents on other hosts."""

    agents: tuple[str, ...] = ()
    """host:port of the agents that links of browsers use, in this order; default: the document's leaves."""

    login_credentials: str = ""
    """Credentials file of the client that one-time login links log in; without it there are no such links."""

    state_directory: str = "console"
    """Directory of the action log, which records the actions of operators, and of open login links."""

    interval_ms: Annotated[int, msgspec.Meta(ge=100, le=60_000)] = 1_000
    """Interval between polls of the nodes."""

    limits: ConsoleLimits = ConsoleLimits()

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.certificate) != bool(self.private_key):
            raise ConfigurationError("certificate and private_key require each other", where=self.name)
        if not self.certificate and not is_loopback(self.host):
            raise ConfigurationError(
                f"{self.host} is not a loopback address, which needs TLS",
                where=f"{self.name}: host",
                hint="set certificate and private_key, or listen on 127.0.0.1 behind a proxy that has them",
            )
        check_page_token(
            self.metrics_access,
            self.host,
            certificate=self.certificate,
            private_key=self.private_key,
            where=f"{self.name}: host",
        )
        if self.admin_url:
            parse_addresses(self.admin_url)
        for agent in self.agents:
            parse_place(agent)
