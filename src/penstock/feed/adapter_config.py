"""Configuration of one feed adapter: its sources, its channel, its peers, its journal and its stream service."""

from datetime import date
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from penstock.base.config import Config
from penstock.base.errors import ConfigurationError
from penstock.base.extensions import load_entry_points, load_modules
from penstock.convert import ConverterTable, Plan, TableChoice
from penstock.feed.config import LineConfig, ServiceConfig, SynchroniserConfig
from penstock.feed.formats import DATAGRAM_FORMATS
from penstock.journal import JournalConfig
from penstock.middleware import PublisherConfig
from penstock.net.config import TlsConfig
from penstock.net.core.control import Name
from penstock.net.page_access import PageAccessConfig
from penstock.net.udp import Channel

Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]

STREAM_FRAMINGS = ("soupbintcp", "file", "contribution")
"""Framings of source streams without datagrams."""


class LineAddress(Config, frozen=True):
    """One line of a source stream: a multicast group, or a unicast port of this machine."""

    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    group: str = ""
    """Empty: datagrams addressed to this machine."""

    interface: str = "127.0.0.1"


class AddressConfig(Config, frozen=True):
    host: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]


class SourceStreamConfig(Config, frozen=True):
    """One source stream, and its source: lines, a SoupBinTCP server, a file, or contributors."""

    id: Annotated[int, msgspec.Meta(ge=1, le=2**32 - 1)]
    name: Name
    framing: str = "moldudp64"
    """The name of a datagram format (feed.formats), or `soupbintcp`, `file` or `contribution`."""

    lines: tuple[LineAddress, ...] = ()
    request: AddressConfig | None = None
    """The address of the request server for lost messages."""

    arbitration: LineConfig = LineConfig()
    """Arbitration of the lines."""

    server: AddressConfig | None = None
    """For framing `soupbintcp`: the server; also set the user and a password file."""

    user: str = ""
    password_file: str = ""
    url: str = ""
    """For framing `file`: the path of the file to replay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_served = self.framing == "soupbintcp"
        is_given = (bool(self.lines), self.server is not None, bool(self.url))
        if is_given != (self.has_lines, is_served, self.framing == "file"):
            raise ConfigurationError(
                f"framing {self.framing} does not match the other keys",
                where=f"stream {self.name}",
                hint="datagram formats need lines, soupbintcp a server, file a url, contribution none of these",
            )

    @property
    def has_lines(self) -> bool:
        """True if the stream comes as datagrams, over lines."""
        return self.framing not in STREAM_FRAMINGS

    def check_framing(self) -> None:
        """Refuse an unregistered framing; modules are loaded before this check."""
        if self.has_lines and self.framing not in DATAGRAM_FORMATS:
            load_entry_points()
        known = (*DATAGRAM_FORMATS, *STREAM_FRAMINGS)
        if self.framing not in known:
            raise ConfigurationError(
                f"unknown framing {self.framing!r}",
                where=f"stream {self.name}",
                hint=f"known framings: {', '.join(known)}; the adapter's modules can add more",
            )


class PublishConfig(Config, frozen=True):
    """Publication of application messages. In either case they are also available over TCP."""

    transport: Literal["multicast", "tcp"] = "multicast"
    channel: Channel = Channel()
    sealed: bool = False
    """True: payloads are encrypted with the administration server's stream keys."""

    models_in_band: bool = False
    """True: the models of the table's outputs are sent in the stream itself, at its start and at intervals, for
    subscribers that cannot request them."""

    models_interval_s: Annotated[float, msgspec.Meta(ge=0.1, le=3_600)] = 10.0

    publisher_id: Annotated[int, msgspec.Meta(ge=0)] = 0
    """0: derived from the feed's name and the adapter's index, so that it is equal at every start."""

    publisher: PublisherConfig = PublisherConfig(repair_packets_max=64)
    """Repairs are limited to few packets at a time, so that new packets are not delayed; receivers repeat their
    requests."""


class PeerConfig(Config, frozen=True):
    """Another adapter of the feed."""

    index: Annotated[int, msgspec.Meta(ge=0, le=255)]
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    host: str = "127.0.0.1"


class PeersConfig(Config, frozen=True):
    """The channels between the adapters of a feed."""

    host: str = "127.0.0.1"
    port: Port = 0
    """The port for connections of other adapters. Without a port and without peers, the adapter does not listen."""

    others: tuple[PeerConfig, ...] = ()
    secret_file: str = ""
    """A secret shared by the adapters of a feed; required with an administration server, and beyond the loopback
    address, where TLS is required too."""

    tls: TlsConfig | None = None

    retry_ms: Annotated[int, msgspec.Meta(ge=1, le=60_000)] = 50

    @property
    def is_linked(self) -> bool:
        """False for the only adapter of a feed."""
        return bool(self.port or self.others)


class AdminConfig(Config, frozen=True):
    """The administration servers. Without them, subscribers need no token if the service is open."""

    url: str = ""
    """penstock://host:port,host:port, or penstocks:// with TLS; empty: none."""

    credentials: str = ""
    """Path of this adapter's credentials."""

    service_host: str = ""
    """The host announced to subscribers; empty: the host on which the service listens."""

    topics: tuple[str, ...] = (">",)
    """Patterns of the topics that this feed publishes."""

    contributions: tuple[str, ...] = ()
    """Patterns of the topics that subscribers may contribute."""


class JournalCaptureConfig(Config, frozen=True):
    """The adapter's own capture of its published packets; delayed streams are served from it."""

    path: str = ""
    """A directory; empty: no capture."""

    journal: JournalConfig = JournalConfig()


class AdapterConfig(Config, frozen=True):
    """One adapter."""

    name: Name
    feed: Name
    table: str | TableChoice
    """A shipped converter table by name, or the path of one (ending in .toml); with parameters, a TableChoice: `{
    name = "itch", venue = "XBOS", prefix = "md.us.bx" }`."""

    streams: tuple[SourceStreamConfig, ...]
    state_directory: str
    """Directory of terms and epochs, which must never be used twice."""

    modules: tuple[str, ...] = ()
    """Python files or modules with custom feeds: framings and converter functions."""

    index: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0
    trading_date: str = ""
    """The trading date of the first session, as 2026-01-30, for replays. Each session of another name then has the
    next trading date. Empty: the trading date of the calendar when the session begins."""

    calendar: str = ""
    """A shipped trading calendar by name, or the path of a TOML file. Empty: that of the table's venue."""

    publish: PublishConfig = PublishConfig()
    peers: PeersConfig = PeersConfig()
    sync: SynchroniserConfig = SynchroniserConfig()
    journal: JournalCaptureConfig = JournalCaptureConfig()
    service: ServiceConfig = ServiceConfig()
    admin: AdminConfig = AdminConfig()
    metrics_host: str = "127.0.0.1"
    metrics_port: Port = 0
    metrics_access: PageAccessConfig = PageAccessConfig()
    spin: bool = False
    """True: the data thread polls continuously instead of blocking, which is faster and occupies a core."""

    cpu: Annotated[int, msgspec.Meta(ge=-1, le=4_095)] = -1
    """The processor that the data thread is bound to; -1: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.trading_day()
        self.table_choice()
        ids = [stream.id for stream in self.streams]
        names = [stream.name for stream in self.streams]
        if len(set(ids)) != len(ids) or len(set(names)) != len(names):
            raise ConfigurationError("two source streams have the same id or name", where=f"adapter {self.name}")
        if not self.admin.url and not self.service.open:
            raise ConfigurationError(
                "no subscriber could connect: there is no administration server, and the service is not open",
                where=f"adapter {self.name}",
                hint="set admin.url and admin.credentials, or service.open = true if only this machine is used",
            )
        if self.admin.url and self.peers.is_linked and not self.peers.secret_file:
            raise ConfigurationError(
                "peers has no secret_file: any process of this machine could impersonate another adapter of the feed",
                where=f"adapter {self.name}",
                hint="with an administration server, name a file that all adapters of the feed read (mode 600, 16 or "
                "more bytes); `penstock up` and `penstock node` make one for a plant.toml that names none",
            )
        if self.publish.sealed and not self.admin.url:
            raise ConfigurationError("a sealed feed needs an administration server", where=f"adapter {self.name}")

    def load(self, beside: Path = Path()) -> Plan:
        """Load the modules, compile the table and find the framings, so that missing ones are reported at the start."""
        load_modules(self.modules, beside)
        plan = ConverterTable.find(self.table_choice(), beside).compile()
        for stream in self.streams:
            stream.check_framing()
        return plan

    def table_choice(self) -> TableChoice:
        """The table with its parameters, among them `calendar` of the adapter."""
        choice = TableChoice(name=self.table) if isinstance(self.table, str) else self.table
        if self.calendar and choice.calendar:
            raise ConfigurationError(
                f"the calendar is given twice: {self.calendar!r} and {choice.calendar!r} of the table",
                where=f"adapter {self.name}: calendar",
                hint="set only one of them",
            )
        return msgspec.structs.replace(choice, calendar=self.calendar) if self.calendar else choice

    def sync_config(self) -> SynchroniserConfig:
        """With this adapter's index."""
        return msgspec.structs.replace(self.sync, index=self.index)

    def trading_day(self) -> date | None:
        """The configured trading date; None: the calendar's."""
        if not self.trading_date:
            return None
        try:
            return date.fromisoformat(self.trading_date)
        except ValueError:
            raise ConfigurationError(
                f"{self.trading_date!r} is not a date",
                where=f"adapter {self.name}: trading_date",
                hint="write it as 2026-01-30",
            ) from None
