"""What one filter module is told: where it listens, whom it serves, and how its core behaves."""

import ipaddress
from typing import Annotated

import msgspec

from penstock.base.errors import ConfigurationError
from penstock.filter.config import FilterConfig
from penstock.filter.core.control import PORT_DEFAULT
from penstock.net.core.control import Name
from penstock.net.page_access import PageAccessConfig
from penstock.net.udp import Channel
from penstock.runtime.accounts import AccountsConfig
from penstock.security.core.access import AdminAccess, AnyPort, ControlAccess

RING_BYTES_MIN = 1024 * 1024


class FilterAccess(ControlAccess, frozen=True):
    """Where applications connect."""

    port: AnyPort = PORT_DEFAULT


class FilterModuleConfig(FilterConfig, frozen=True, kw_only=True):
    """One filter module: these keys, and those of its core (FilterConfig)."""

    name: Name
    interface: str = "127.0.0.1"
    """The address of the interface to the network and to the applications."""

    hops: Annotated[int, msgspec.Meta(ge=0, le=255)] = 1
    """How many routers a multicast packet of its own may pass, less one."""

    channels: tuple[str, ...] = ()
    """Where topics flow whose channels no application names, as group:port; or `map` says it."""

    map: str = ""
    """A topic-to-group map (docs/reference/protocol/group-map.md). It is read again when the file has changed."""

    map_check_ms: Annotated[int, msgspec.Meta(ge=10, le=3_600_000)] = 1_000
    """How often the map's file is looked at."""

    models: tuple[str, ...] = ()
    """Documents of message models that conditions may speak of, besides those shipped and those applications bring."""

    models_max: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 1_024
    control: FilterAccess = FilterAccess()
    hosts: tuple[str, ...] = ()
    """Other hosts whose applications may be served: addresses, or networks like 10.1.2.0/24."""

    controllers: tuple[Name, ...] = ()
    """Nodes that may register applications on their behalf."""

    admin: AdminAccess = AdminAccess()
    accounts: AccountsConfig = AccountsConfig()
    state_directory: str = ""
    """Where it keeps what tokens are checked with; empty: nowhere, so that after a restart it has to ask first."""

    handover: str = ""
    """The Unix socket at which rings are handed over; empty: a name of its own in the abstract namespace."""

    ring_bytes: Annotated[int, msgspec.Meta(ge=RING_BYTES_MIN, le=2**32)] = 8 * 1024 * 1024
    """Bytes of each application's ring."""

    publishers_max: Annotated[int, msgspec.Meta(ge=1, le=1_024)] = 64
    """Publishers of this host whose rings are read."""

    told_max: Annotated[int, msgspec.Meta(ge=16, le=2**20)] = 16_384
    """Messages that wait for one application on its control connection; one that lets more wait is cut off."""

    metrics_host: str = "127.0.0.1"
    metrics_port: AnyPort = 0
    metrics_access: PageAccessConfig = PageAccessConfig()
    spin: bool = False
    """Whether the data thread looks for datagrams all the time instead of being woken: quicker, and takes a core."""

    cpu: Annotated[int, msgspec.Meta(ge=-1, le=4_095)] = -1
    """The processor the data thread is bound to; -1 for none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        where = f"filter {self.name}"
        if self.map and self.channels:
            raise ConfigurationError("has both a map and channels", where=where, hint="say where topics flow once")
        self.own_channels()
        self.networks()
        self.admin.check(where)

    def own_channels(self) -> list[Channel]:
        return [Channel.parse(text, interface=self.interface) for text in self.channels]

    def networks(self) -> list[ipaddress.IPv4Network]:
        found = []
        for text in self.hosts:
            try:
                found.append(ipaddress.IPv4Network(text))
            except ValueError as error:
                raise ConfigurationError(str(error), where=f"filter {self.name}: hosts") from None
        return found
