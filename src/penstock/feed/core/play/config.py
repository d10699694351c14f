"""Configuration of a player: the day to play, its speed, and its destination."""

from typing import Annotated, Literal

import msgspec

from penstock.base.config import Config
from penstock.base.errors import ConfigurationError
from penstock.feed.core.play.generator import GeneratorConfig
from penstock.feed.formats.mold import PACKET_SIZE_DEFAULT
from penstock.net.core.control import Name
from penstock.net.udp import Channel

Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
LINES_MAX = 8


class PlayerConfig(Config, frozen=True):
    name: Name = "exchange"
    protocol: Literal["moldudp64", "soupbintcp"] = "moldudp64"
    file: str = ""
    """An ITCH file, plain or compressed; empty: a generated day."""

    generate: GeneratorConfig = GeneratorConfig()
    speed: Annotated[float, msgspec.Meta(ge=0, le=1_000_000)] = 1.0
    """Multiple of the day's own speed; 0: as fast as possible."""

    rate: Annotated[float, msgspec.Meta(ge=0, le=100_000_000)] = 0.0
    """Messages per second, independent of the day's clock; 0: use `speed`."""

    session: Annotated[str, msgspec.Meta(min_length=1, max_length=10, pattern=r"^[\x21-\x7e]+\Z")] = "PENSTOCK"
    lines: Annotated[tuple[Channel, ...], msgspec.Meta(max_length=LINES_MAX)] = ()
    """The lines; each datagram is sent once to each line."""

    loss: Annotated[tuple[Annotated[float, msgspec.Meta(ge=0, le=1)], ...], msgspec.Meta(max_length=LINES_MAX)] = ()
    """Share of the datagrams dropped on each line, to test adapters."""

    seed: int = 1
    """Seed of the losses."""

    packet_size_max: Annotated[int, msgspec.Meta(ge=100, le=65_507)] = PACKET_SIZE_DEFAULT
    host: str = "127.0.0.1"
    port: Port = 0
    """Port for repair requests, or for SoupBinTCP clients; 0: any free port."""

    username: str = ""
    password_file: str = ""
    """The password file of SoupBinTCP clients."""

    kept_bytes_max: Annotated[int, msgspec.Meta(ge=0, le=2**40)] = 4 * 1024 * 1024 * 1024
    """Bytes of the day kept for repair requests; the oldest are dropped."""

    heartbeat_ms: Annotated[int, msgspec.Meta(ge=1, le=60_000)] = 1_000
    """Silence after which a heartbeat with the current position is sent."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol == "moldudp64" and not self.lines:
            raise ConfigurationError("a player over MoldUDP64 needs lines", where=f"player {self.name}: lines")
        if len(self.loss) > len(self.lines):
            raise ConfigurationError("loss has more entries than lines", where=f"player {self.name}: loss")
