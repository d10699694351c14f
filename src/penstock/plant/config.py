"""What the nodes around a distribution engine are told: where they listen, whom they serve, what they distribute."""

from typing import Annotated, Literal, TypeAlias

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
from penstock.plant.core.views import ViewName
from penstock.runtime.accounts import AccountsConfig
from penstock.security.core.access import AdminAccess, AnyPort, ControlAccess
from penstock.topics import Interest

RING_BYTES_MIN = 1024 * 1024
OWN_GROUPS = SURE, FRESH = "239.255.74.10", "239.255.74.11"
"""What stands for the two streams to one node in their packets: they are sent to it, and to no group."""

AccessMode: TypeAlias = Literal["open", "local", "forward", "plant"]
"""Who judges what a consumer may have: nobody, this node, or the node above, once or for every request."""

ALL_CLASSES = EngineConfig(classes=("critical", "adaptive", "metered"))


def check_topics(topics: tuple[str, ...], where: str) -> None:
    for topic in topics:
        try:
            Interest.parse(topic)
        except PenstockError as error:
            raise ConfigurationError(error.what, where=where, hint=error.hint) from None


class DatagramsConfig(Config, frozen=True):
    """Events by UDP, to nodes below."""

    interface: str = ""
    """The address they are sent from; empty: there are none."""

    missed: Literal["resend", "resend_all", "wait"] = "resend"
    """What becomes of adaptive updates that are lost on the way: they are sent again to whoever missed them, or to the
    whole group, or the next update is waited for. Critical and metered ones are always sent again."""

    group: str = ""
    """A multicast channel, as group:port, by which nodes that may have the same get adaptive updates, all of them by
    one datagram; empty: each gets its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group and not self.interface:
            raise ConfigurationError("there is a group but no interface to send to it", where="datagrams")
        if self.missed == "resend_all" and not self.group:
            raise ConfigurationError(
                "updates are sent to all again only by a group", where="datagrams", hint="name one"
            )
        if self.group and Channel.parse(self.group).group in OWN_GROUPS:
            raise ConfigurationError(f"{self.group} stands for streams to one node", where="datagrams.group")


class NodeConfig(Config, frozen=True, kw_only=True):
    """What all of them have."""

    name: Name
    control: ControlAccess = ControlAccess()
    engine: EngineConfig = ALL_CLASSES
    classes: str = ""
    """A document of rules by which updates are classed (docs/how-to/plant-nodes.md); read again on SIGHUP."""

    signals: SignalThresholds = SignalThresholds()
    """When what may be conflated is no longer critical."""

    metering: MeteringLimits = MeteringLimits()
    """The highest rates of the metered class."""

    models: tuple[str, ...] = ()
    """Documents of message models, besides those shipped."""

    admin: AdminAccess = AdminAccess()
    accounts: AccountsConfig = AccountsConfig()
    state_directory: str = ""
    """Where it keeps what tokens are checked with; empty: nowhere, so that after a restart it has to ask first."""

    handover: str = ""
    """The Unix socket at which segments are handed over; empty: a name of its own in the abstract namespace."""

    ring_bytes: Annotated[int, msgspec.Meta(ge=RING_BYTES_MIN, le=2**32)] = 8 * 1024 * 1024
    """Bytes of each local consumer's ring."""

    notices_bytes: Annotated[int, msgspec.Meta(ge=RING_BYTES_MIN, le=2**32)] = RING_BYTES_MIN
    """Bytes of its ring of notices, which say what of its regions was written."""

    shared_regions: bool = False
    """Whether local consumers that may have the same share regions of records (engine.offsets = "common")."""

    datagrams: DatagramsConfig = DatagramsConfig()
    """Whether and how nodes below can have their events by UDP."""

    session_bytes: Annotated[int, msgspec.Meta(ge=65_536, le=2**32)] = 4 * 1024 * 1024
    """Bytes of events that wait for each consumer on a connection."""

    told_max: Annotated[int, msgspec.Meta(ge=16, le=2**20)] = 16_384
    """Messages that wait for one consumer on its control connection; one that lets more wait is cut off."""

    snapshot_items_max: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] = 100_000
    """Records of one snapshot."""

    metrics_host: str = "127.0.0.1"
    metrics_port: AnyPort = 0
    metrics_access: PageAccessConfig = PageAccessConfig()
    cpu: Annotated[int, msgspec.Meta(ge=-1, le=4_095)] = -1
    """The processor its own thread is bound to; -1 for none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.admin.check(self.name)
        if self.datagrams.group and self.engine.keeps != "all":
            raise ConfigurationError(
                "only a node that keeps all items can multicast", where=self.name, hint="their numbers never change"
            )


class PlantAccess(ControlAccess, frozen=True):
    port: AnyPort = PLANT_PORT_DEFAULT


class PlantConfig(NodeConfig, frozen=True, kw_only=True):
    """A ticker plant: these keys, and those that all nodes have."""

    control: PlantAccess = PlantAccess()
    subscribe: tuple[str, ...] = ()
    """Topics of the plant's feeds, by the administration server; with credentials of a client with the role `filter`
    that may receive them."""

    channels: tuple[str, ...] = ()
    """Multicast channels that are listened to without an administration server, as group:port; for trials."""

    interface: str = "127.0.0.1"
    """Of the network that the channels are on."""

    views: tuple[ViewName, ...] = ()
    """Items that are derived from others (docs/how-to/plant-nodes.md)."""

    view_instruments_max: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] = 65_536
    view_trades_max: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] = 50_000_000
    """Trades of the day that `day` keeps, so that they can be corrected."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.subscribe and not self.admin.url:
            raise ConfigurationError("subscribes without an administration server", where=f"plant {self.name}")
        check_topics(self.subscribe, f"plant {self.name}: subscribe")
        self.own_channels()

    def own_channels(self) -> list[Channel]:
        return [Channel.parse(text, interface=self.interface) for text in self.channels]


class UpstreamConfig(Config, frozen=True):
    """The node above."""

    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = PLANT_PORT_DEFAULT
    interface: str = ""
    """To take events by UDP: the address of the interface that they come in on. Empty: they come by TCP."""

    cls: ClassWish = "critical"
    """In which class this node takes what its consumers want."""

    per_second: Annotated[float, msgspec.Meta(ge=0, le=1_000)] = 0.0
    """Of the metered class."""

    ca_file: str = ""
    secret_file: str = ""
    """TLS and a secret, to reach another host."""

    topics: tuple[str, ...] = (">",)
    """What this node asks the administration server for, to be let in by the node above."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_topics(self.topics, "upstream: topics")


class MuxAccess(ControlAccess, frozen=True):
    port: AnyPort = MUX_PORT_DEFAULT


class MuxConfig(NodeConfig, frozen=True, kw_only=True):
    """A connection multiplexer: these keys, and those that all nodes have."""

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
                "access is judged here, but there is no administration server", where=f"mux {self.name}"
            )


AnyNodeConfig: TypeAlias = PlantConfig | MuxConfig
