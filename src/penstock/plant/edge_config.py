"""Configuration of an edge cache."""

from typing import Annotated, ClassVar

import msgspec

from penstock.base.config import Config
from penstock.base.errors import ConfigurationError
from penstock.engine.config import EngineConfig
from penstock.engine.control import EDGE_PORT_DEFAULT
from penstock.net.config import Milliseconds, TlsConfig
from penstock.net.place import is_loopback
from penstock.plant.config import MuxAccess, MuxConfig
from penstock.plant.core.status import NodeKind
from penstock.security.core.access import AnyPort

WEBSOCKET_PORT_DEFAULT = 7413


class EdgeAccess(MuxAccess, frozen=True):
    port: AnyPort = EDGE_PORT_DEFAULT


class WebSocketAccess(Config, frozen=True):
    """The listener for WebSockets of pages and programs."""

    host: str = "127.0.0.1"
    port: AnyPort = WEBSOCKET_PORT_DEFAULT
    """0: any free port."""

    origins: tuple[str, ...] = ()
    """Origins of web pages that may connect, as https://host:port; other pages are refused."""

    takes_programs: bool = True
    """True if programs may connect, which send no origin."""

    tls: TlsConfig | None = None
    """Required to listen beyond the loopback address."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_loopback(self.host) and self.tls is None:
            raise ConfigurationError(
                f"{self.host} is not a loopback address, which needs tls",
                where="websocket",
                hint="or listen on 127.0.0.1",
            )


class EdgeConfig(MuxConfig, frozen=True, kw_only=True):
    """An edge cache: these keys, and those of a multiplexer."""

    kind: ClassVar[NodeKind] = "edge"
    control: EdgeAccess = EdgeAccess()
    websocket: WebSocketAccess = WebSocketAccess()
    engine: EngineConfig = EngineConfig(
        classes=("critical", "metered"), keeps="wanted", has_upstream=True, consumers_max=16_384
    )
    session_bytes: Annotated[int, msgspec.Meta(ge=65_536, le=2**32)] = 256 * 1024
    """Maximum number of bytes of events that wait for each session. The memory is allocated when events wait."""

    gather_ms: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 100
    """Metered updates within this time after a session's last message are sent together in one message."""

    stuck_ms: Milliseconds = 30_000
    """A session is ended if its connection accepts no data for this time although data waits."""

    ping_ms: Milliseconds = 20_000
    silence_ms: Milliseconds = 60_000
    """Interval of WebSocket pings, and the silence after which a client is considered dead."""
