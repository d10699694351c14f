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
    """Everything that comes from browsers is bounded."""

    connections_max: Count = 1_024
    body_size_max: Annotated[int, msgspec.Meta(ge=1_024, le=1024 * 1024)] = 16_384
    body_s: Seconds = 5.0
    frame_size_max: Annotated[int, msgspec.Meta(ge=1_024, le=1024 * 1024)] = 65_536
    """Of what a browser sends on a WebSocket."""

    sessions_max: Count = 256
    client_sessions_max: Count = 16
    """Of one client; a further login ends the one that was not used for the longest time."""

    session_s: Seconds = 43_200.0
    idle_s: Seconds = 900.0
    """How long a session lasts, and how long one that is not used."""

    failures_max: Count = 5
    """Failed logins of one name from one address within `failure_s`; further ones are refused unseen."""

    address_failures_max: Count = 20
    """The same for one address, whichever names it gives."""

    failure_s: Seconds = 60.0
    logins_at_once: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    """Each costs a while of a processor, on purpose."""

    sockets_max: Annotated[int, msgspec.Meta(ge=1, le=1_024)] = 8
    """WebSockets of one session."""

    stuck_s: Seconds = 20.0
    """A browser that takes nothing for so long, though there is something, is cut off."""

    subscriptions_max: Annotated[int, msgspec.Meta(ge=1, le=1_024)] = 64
    """Of one WebSocket."""

    topics_max: Annotated[int, msgspec.Meta(ge=1, le=1_024)] = 64
    """Of one subscription."""

    requests_per_s: Annotated[float, msgspec.Meta(gt=0, le=100_000)] = 50.0
    """Of one WebSocket, in the long run; twice as many at once."""

    roles_s: Seconds = 5.0
    """How often the administration server is asked for the roles of each session."""

    roles_lost_s: Seconds = 60.0
    """Time without an answer after which sessions lose their roles until the server answers."""

    actions_bytes_max: Annotated[int, msgspec.Meta(ge=65_536, le=2**40)] = 16 * 1024 * 1024
    actions_files_max: Annotated[int, msgspec.Meta(ge=2, le=1_000)] = 8
    """The action log: bytes per file, and number of files; the oldest file is removed."""

    queue_size_max: Annotated[int, msgspec.Meta(ge=16, le=1_000_000)] = 4_096
    """Messages that wait for one WebSocket."""


class ConsoleConfig(Config, frozen=True):
    name: Name = "console"
    host: str = "127.0.0.1"
    port: AnyPort = CONSOLE_PORT_DEFAULT
    """0 takes a free one."""

    certificate: str = ""
    private_key: str = ""
    """PEM files for TLS, without which the console listens on this machine only."""

    metrics_access: PageTokenConfig = PageTokenConfig()
    """The token of /health, /status and /metrics, required for a `host` that other machines reach."""

    hosts: tuple[str, ...] = ()
    """Further names by which browsers reach it, as "console.example" or "console.example:8443"; requests for others
    are refused."""

    admin_url: str = ""
    """The administration servers, against which people log in."""

    ca_file: str = ""
    """Certificates that the administration servers, and agents on other hosts, are checked with."""

    secret_file: str = ""
    """A secret shared with agents on other hosts."""

    agents: tuple[str, ...] = ()
    """host:port of agents of the tree that browsers' links go to, in this order; the document's leaves unless told."""

    state_directory: str = "console"
    """Where the log of operators' actions is kept."""

    interval_ms: Annotated[int, msgspec.Meta(ge=100, le=60_000)] = 1_000
    """Between two looks at the nodes."""

    limits: ConsoleLimits = ConsoleLimits()

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.certificate) != bool(self.private_key):
            raise ConfigurationError("certificate and private_key belong together", where=self.name)
        if not self.certificate and not is_loopback(self.host):
            raise ConfigurationError(
                f"{self.host} is reached from other machines, and there is no TLS",
                where=f"{self.name}: host",
                hint="give certificate and private_key, or listen on 127.0.0.1 behind a proxy that has them",
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
