"""Configuration of one filter module: its addresses, clients and core."""

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
    """The listener for applications."""

    port: AnyPort = PORT_DEFAULT


class FilterModuleConfig(FilterConfig, frozen=True, kw_only=True):
    """One filter module: these keys, and those of its core (FilterConfig)."""

    name: Name
    interface: str = "127.0.0.1"
    """Address of the interface towards the network and the applications."""

    hops: Annotated[int, msgspec.Meta(ge=0, le=255)] = 1
    """Time to live of the module's own multicast packets: 1 stays in the local network."""

    channels: tuple[str, ...] = ()
    """Default channels, as group:port, of topics without a named channel; alternatively set `map`."""

    map: str = ""
    """A topic-to-group map (docs/reference/protocol/group-map.md). It is read again when the file has changed."""

    map_check_ms: Annotated[int, msgspec.Meta(ge=10, le=3_600_000)] = 1_000
    """Interval of checks for a changed map file."""

    models: tuple[str, ...] = ()
    """Documents of message models that conditions may refer to, in addition to shipped ones and those that
    applications register."""

    models_max: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 1_024
    control: FilterAccess = FilterAccess()
    hosts: tuple[str, ...] = ()
    """Other hosts whose applications are served: addresses, or networks like 10.1.2.0/24."""

    controllers: tuple[Name, ...] = ()
    """Nodes that may register applications on behalf of others."""

    admin: AdminAccess = AdminAccess()
    accounts: AccountsConfig = AccountsConfig()
    state_directory: str = ""
    """Directory of the stored token state. Empty: nowhere, so a restarted module refuses tokens until a server
    answers."""

    handover: str = ""
    """The Unix socket at which rings are handed over; empty: a generated name in the abstract namespace."""

    ring_bytes: Annotated[int, msgspec.Meta(ge=RING_BYTES_MIN, le=2**32)] = 8 * 1024 * 1024
    """Size in bytes of each application's ring."""

    publishers_max: Annotated[int, msgspec.Meta(ge=1, le=1_024)] = 64
    """Maximum number of publishers on this host whose rings are read."""

    told_max: Annotated[int, msgspec.Meta(ge=16, le=2**20)] = 16_384
    """Maximum number of messages that wait for one application on its control connection; above it, the application
    is cut off."""

    metrics_host: str = "127.0.0.1"
    metrics_port: AnyPort = 0
    metrics_access: PageAccessConfig = PageAccessConfig()
    spin: bool = False
    """True: the data thread polls continuously instead of blocking, which is faster and occupies a core."""

    cpu: Annotated[int, msgspec.Meta(ge=-1, le=4_095)] = -1
    """The processor that the data thread is bound to; -1: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        where = f"filter {self.name}"
        if self.map and self.channels:
            raise ConfigurationError("has both a map and channels", where=where, hint="use only one of them")
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
