"""What an edge cache is told."""

from typing import Annotated

import msgspec

from penstock.base.config import Config
from penstock.base.errors import ConfigurationError
from penstock.engine.config import EngineConfig
from penstock.engine.control import EDGE_PORT_DEFAULT
from penstock.net.config import Milliseconds, TlsConfig
from penstock.net.place import is_loopback
from penstock.plant.config import MuxAccess, MuxConfig
from penstock.security.core.access import AnyPort

WEBSOCKET_PORT_DEFAULT = 7413


class EdgeAccess(MuxAccess, frozen=True):
    port: AnyPort = EDGE_PORT_DEFAULT


class WebSocketAccess(Config, frozen=True):
    """Where pages and programs connect by WebSocket."""

    host: str = "127.0.0.1"
    port: AnyPort = WEBSOCKET_PORT_DEFAULT
    """0 takes a free one."""

    origins: tuple[str, ...] = ()
    """Web sites whose pages may connect, as https://host:port; pages of others are refused."""

    takes_programs: bool = True
    """Whether those may connect that are no page, and so name no origin."""

    tls: TlsConfig | None = None
    """Needed to listen beyond this machine."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_loopback(self.host) and self.tls is None:
            raise ConfigurationError(
                f"{self.host} is beyond this machine: that needs tls", where="websocket", hint="or listen on 127.0.0.1"
            )


class EdgeConfig(MuxConfig, frozen=True, kw_only=True):
    """An edge cache: these keys, and those of a multiplexer."""

    control: EdgeAccess = EdgeAccess()
    websocket: WebSocketAccess = WebSocketAccess()
    engine: EngineConfig = EngineConfig(
        classes=("critical", "metered"), keeps="wanted", has_upstream=True, consumers_max=16_384
    )
    session_bytes: Annotated[int, msgspec.Meta(ge=65_536, le=2**32)] = 256 * 1024
    """Bytes of events that wait for each session; memory is taken when they do."""

    gather_ms: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 100
    """Updates of the metered class that come in this time after a session was sent something go in one message."""

    stuck_ms: Milliseconds = 30_000
    """A session whose connection takes nothing for so long, though there is something, is ended."""

    ping_ms: Milliseconds = 20_000
    silence_ms: Milliseconds = 60_000
    """Heartbeat of WebSockets: between two pings, and silence after which a client is taken for dead."""
