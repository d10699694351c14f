"""Configuration of ticker plants and multiplexers: listeners, limits, upstream, and what is distributed."""

from typing import Annotated, ClassVar, Literal, TypeAlias

import msgspec

from penstock.base.config import Config
from penstock.base.errors import ConfigurationError, PenstockError
from penstock.engine.config import EngineConfig
from penstock.engine.control import MUX_PORT_DEFAULT, PLANT_PORT_DEFAULT, ClassWish
from penstock.engine.core.metering_limits import MeteringLimits
from penstock.engine.core.signals import SignalThresholds
from penstock.net.core.control import Name
from penstock.net.page_access import PageAccessConfig
from penstock.net.udp import Channel
from penstock.plant.core.status import NodeKind
from penstock.plant.core.views import ViewName
from penstock.runtime.accounts import AccountsConfig
from penstock.security.core.access import AdminAccess, AnyPort, ControlAccess
from penstock.topics import Interest

RING_BYTES_MIN = 1024 * 1024
OWN_GROUPS = SURE, FRESH = "239.255.74.10", "239.255.74.11"
"""Placeholder groups in the packets of the two unicast streams to a downstream node."""

AccessMode: TypeAlias = Literal["open", "local", "forward", "plant"]
"""Where a consumer's rights are checked: nowhere, at this node, or at the upstream node, once or for each request."""

ALL_CLASSES = EngineConfig(classes=("critical", "adaptive", "metered"))


def check_topics(topics: tuple[str, ...], where: str) -> None:
    for topic in topics:
        try:
            Interest.parse(topic)
        except PenstockError as error:
            raise ConfigurationError(error.what, where=where, hint=error.hint) from None


class DatagramsConfig(Config, frozen=True):
    """Events by UDP, for downstream nodes."""

    interface: str = ""
    """The address that datagrams are sent from; empty: no datagrams."""

    missed: Literal["resend", "resend_all", "wait"] = "resend"
    """Handling of lost adaptive updates: they are sent again to the node that missed them, or to the whole group, or
    not at all, because the next update replaces them. Critical and metered updates are always sent again."""

    group: str = ""
    """A multicast channel, as group:port, through which nodes with equal rights get adaptive updates, each in one
    datagram for all of them; empty: each node gets its own datagrams."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group and not self.interface:
            raise ConfigurationError("group needs an interface to send from", where="datagrams")
        if self.missed == "resend_all" and not self.group:
            raise ConfigurationError('missed = "resend_all" needs a group', where="datagrams", hint="set group")
        if self.group and Channel.parse(self.group).group in OWN_GROUPS:
            raise ConfigurationError(f"{self.group} is reserved for unicast streams", where="datagrams.group")


class NodeConfig(Config, frozen=True, kw_only=True):
    """Keys that all these nodes have."""

    name: Name
    control: ControlAccess = ControlAccess()
    engine: EngineConfig = ALL_CLASSES
    classes: str = ""
    """A document with rules that assign delivery classes to updates (docs/how-to/plant-nodes.md); read again on
    SIGHUP."""

    signals: SignalThresholds = SignalThresholds()
    """Load thresholds above which updates that allow conflation leave the critical class."""

    metering: MeteringLimits = MeteringLimits()
    """The highest rates of the metered class."""

    models: tuple[str, ...] = ()
    """Documents of message models, in addition to the shipped ones."""

    admin: AdminAccess = AdminAccess()
    accounts: AccountsConfig = AccountsConfig()
    state_directory: str = ""
    """Directory of the stored token state. Empty: nowhere, so a restarted node refuses tokens until a server
    answers."""

    handover: str = ""
    """The Unix socket at which shared memory is handed over; empty: a generated name in the abstract namespace."""

    ring_bytes: Annotated[int, msgspec.Meta(ge=RING_BYTES_MIN, le=2**32)] = 8 * 1024 * 1024
    """Bytes of each local consumer's ring."""

    notices_bytes: Annotated[int, msgspec.Meta(ge=RING_BYTES_MIN, le=2**32)] = RING_BYTES_MIN
    """Size in bytes of each local consumer's ring of notices, which name the changed records of its regions."""

    shared_regions: bool = False
    """True if local consumers with equal rights share regions of records (engine.offsets = "common")."""

    datagrams: DatagramsConfig = DatagramsConfig()
    """Events by UDP for downstream nodes."""

    session_bytes: Annotated[int, msgspec.Meta(ge=65_536, le=2**32)] = 4 * 1024 * 1024
    """Maximum number of bytes of events that wait for each consumer on a connection."""

    told_max: Annotated[int, msgspec.Meta(ge=16, le=2**20)] = 16_384
    """Maximum number of messages that wait for one consumer on its control connection; above it, the consumer is cut
    off."""

    snapshot_items_max: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] = 100_000
    """Maximum number of records in one snapshot."""

    metrics_host: str = "127.0.0.1"
    metrics_port: AnyPort = 0
    metrics_access: PageAccessConfig = PageAccessConfig()
    cpu: Annotated[int, msgspec.Meta(ge=-1, le=4_095)] = -1
    """The processor that the data thread is bound to; -1: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.admin.check(self.name)
        if self.datagrams.group and self.engine.keeps != "all":
            raise ConfigurationError(
                "only a node that keeps all items can send to a group",
                where=self.name,
                hint="item numbers must not change",
            )


class PlantAccess(ControlAccess, frozen=True):
    port: AnyPort = PLANT_PORT_DEFAULT


class PlantConfig(NodeConfig, frozen=True, kw_only=True):
    """A ticker plant: these keys, and those that all nodes have."""

    kind: ClassVar[NodeKind] = "plant"
    control: PlantAccess = PlantAccess()
    subscribe: tuple[str, ...] = ()
    """Topics to receive from feeds of the administration server. The node's client needs the role `filter` and
    grants for these topics."""

    channels: tuple[str, ...] = ()
    """Multicast channels, as group:port, that the plant receives without an administration server; for trials."""

    interface: str = "127.0.0.1"
    """Address of the interface on which the channels are received."""

    views: tuple[ViewName, ...] = ()
    """Derived items (docs/how-to/plant-nodes.md)."""

    view_instruments_max: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] = 65_536
    view_trades_max: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] = 50_000_000
    """Maximum number of the day's trades that the view `day` keeps so that they can be corrected."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.subscribe and not self.admin.url:
            raise ConfigurationError("subscribe needs an administration server", where=f"plant {self.name}")
        check_topics(self.subscribe, f"plant {self.name}: subscribe")
        self.own_channels()

    @property
    def access(self) -> AccessMode:
        return "local" if self.admin.url else "open"

    def own_channels(self) -> list[Channel]:
        return [Channel.parse(text, interface=self.interface) for text in self.channels]


class UpstreamConfig(Config, frozen=True):
    """The upstream node."""

    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = PLANT_PORT_DEFAULT
    interface: str = ""
    """Address of the interface that receives events by UDP. Empty: events come by TCP."""

    cls: ClassWish = "critical"
    """The delivery class in which this node subscribes for its consumers."""

    per_second: Annotated[float, msgspec.Meta(ge=0, le=1_000)] = 0.0
    """Rate of the metered class."""

    ca_file: str = ""
    secret_file: str = ""
    """TLS and a secret are required for an upstream node on another host."""

    topics: tuple[str, ...] = (">",)
    """Topics of the token with which this node logs in to the upstream node."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_topics(self.topics, "upstream: topics")


class MuxAccess(ControlAccess, frozen=True):
    port: AnyPort = MUX_PORT_DEFAULT


class MuxConfig(NodeConfig, frozen=True, kw_only=True):
    """A connection multiplexer: these keys, and those that all nodes have."""

    kind: ClassVar[NodeKind] = "mux"
    control: MuxAccess = MuxAccess()
    engine: EngineConfig = EngineConfig(classes=("critical", "adaptive"), keeps="wanted", has_upstream=True)
    upstream: UpstreamConfig = UpstreamConfig()
    access: AccessMode = "forward"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.access == "open" and self.admin.url:
            raise ConfigurationError(
                'access = "open" would serve every process of this machine without a token, although there is an '
                "administration server",
                where=f"mux {self.name}",
                hint='access = "forward" (the default), "plant" or "local"',
            )
        if self.access == "local" and not self.admin.url:
            raise ConfigurationError(
                "this node checks tokens, but has no administration server", where=f"mux {self.name}"
            )


AnyNodeConfig: TypeAlias = PlantConfig | MuxConfig
