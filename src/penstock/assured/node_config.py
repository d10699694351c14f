"""Configuration of the processes of a message router and of a witness; that of the router's core is in config.py."""

from pathlib import Path
from typing import Annotated

import msgspec

from penstock.assured.config import MIB, RouterConfig
from penstock.assured.core.lease.protocol import LeaseConfig
from penstock.assured.core.pair.protocol import PairConfig
from penstock.base.config import Config
from penstock.base.errors import ConfigurationError
from penstock.journal import JournalConfig
from penstock.model import MessageModel, shipped, shipped_names
from penstock.net.core.control import Name
from penstock.net.page_access import PageAccessConfig
from penstock.net.place import parse_place
from penstock.runtime.accounts import AccountsConfig
from penstock.security.core.access import AdminAccess, AnyPort, ControlAccess

PORT_DEFAULT = 7460
PAIR_PORT_DEFAULT = 7465
LEASE_PORT_DEFAULT = 7470


class RouterAccess(ControlAccess, frozen=True):
    """The address where clients connect."""

    port: AnyPort = PORT_DEFAULT
    advertised: str = ""
    """host:port that is announced to others; empty: host and port."""


class PairAccess(ControlAccess, frozen=True):
    """The address where the second router of a pair listens for the first one, which dials. The secret is that of the
    pair: a holder of the secret can be either router."""

    port: AnyPort = PAIR_PORT_DEFAULT


class LeaseAccess(ControlAccess, frozen=True):
    """The address where the other voters request this voter's vote. The secret is shared by all three voters."""

    port: AnyPort = LEASE_PORT_DEFAULT


class VotingConfig(Config, frozen=True):
    """Automatic switching (REPL-14): a majority of the two routers and a witness selects the active router."""

    witness: Name
    voters: dict[Name, str]
    """host:port of the other two voters, by name: their listeners for requests."""

    listen: LeaseAccess = LeaseAccess()
    """The listener of this voter for requests of the other router."""

    lease_ms: Annotated[int, msgspec.Meta(ge=50, le=600_000)] = 3_000
    drift_ppm: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 10_000
    """Both as in LeaseConfig, and equal at all three voters."""

    def lease(self, routers: tuple[str, str]) -> LeaseConfig:
        return LeaseConfig(routers=routers, witness=self.witness, lease_ms=self.lease_ms, drift_ppm=self.drift_ppm)


class LivePairConfig(PairConfig, frozen=True, kw_only=True):
    """The other router of a pair: these keys, and those of the pair's core (PairConfig)."""

    link: PairAccess = PairAccess()
    clients: str = ""
    """host:port where clients connect to the other router. This router sends the address to its clients."""

    silence_ms: Annotated[int, msgspec.Meta(ge=200, le=3_600_000)] = 5_000
    """Silence after which the other router counts as dead and is dialled again."""

    voting: VotingConfig | None = None
    """Without it, operators decide which router is active."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clients:
            parse_place(self.clients)

    def check(self, name: str) -> None:
        """Raise an error unless a router of this name can be one of the pair."""
        where = f"router {name}: pair"
        if name not in self.routers:
            hint = " and ".join(self.routers)
            raise ConfigurationError(f"{name} is not in the routers of its own pair", where=where, hint=hint)
        if self.lease is not None:
            raise ConfigurationError("the voters of a lease must be found", where=where, hint="say `voting`")
        if self.voting is not None:
            lease = self.voting.lease(self.routers)
            others = set(lease.voters) - {name}
            if set(self.voting.voters) != others:
                what = f"voting.voters has places of {', '.join(sorted(self.voting.voters)) or 'nobody'}"
                raise ConfigurationError(what, where=where, hint=f"of {' and '.join(sorted(others))}")
            for place in self.voting.voters.values():
                parse_place(place)

    def check_secrets(self, where: str) -> None:
        """If clients authenticate with tokens, the links between routers and voters need a secret on this machine as
        well."""
        accesses = {"pair.link": self.link.secret_file}
        if self.voting is not None:
            accesses["pair.voting.listen"] = self.voting.listen.secret_file
        for place, secret_file in accesses.items():
            if not secret_file:
                raise ConfigurationError(
                    f"{place} has no secret_file: any process of this machine could pass for the other router",
                    where=where,
                    hint="with an administration server, name a file that both routers (and the witness) read",
                )


class RouterNodeConfig(RouterConfig, frozen=True, kw_only=True):
    """One router: these keys, and those of its core (RouterConfig)."""

    state_directory: str
    """Directory of its journal and its token state."""

    control: RouterAccess = RouterAccess()
    pair: LivePairConfig | None = None
    """The other router, which has copies and takes over; without it, this router runs alone."""

    models: tuple[str, ...] = ()
    """Documents of message models that conditions may refer to, in addition to the shipped ones."""

    operators: tuple[Name, ...] = ()
    """Who may define endpoints and give orders: clients of the administration server, or names without one. Empty:
    every client that can connect, if no tokens are required."""

    admin: AdminAccess = AdminAccess()
    """The administration server whose tokens grant rights to publish and consume; without it, every client has all
    rights."""

    journal: JournalConfig = JournalConfig(segment_bytes=64 * MIB, linger_us=100_000, preallocate_bytes=16 * MIB)
    """How the journal is written; the core decides which records are kept."""

    accounts: AccountsConfig = AccountsConfig()
    """The journal for accounts of messages, for the pipeline's audit."""

    reserve_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**36)] = 64 * MIB
    """Size of the reserve on the disk, used when the disk is full: settlements can then be logged, and cleaning the
    journal frees space. At least a segment of the journal; 0: none."""

    backlog_bytes_max: Annotated[int, msgspec.Meta(ge=MIB, le=2**32)] = 64 * MIB
    """Maximum number of bytes that wait for the disk; above it, reading from clients pauses."""

    sends_bytes_max: Annotated[int, msgspec.Meta(ge=MIB, le=2**32)] = 64 * MIB
    """Maximum number of bytes that wait for one client; above it, its link ends."""

    silence_ms: Annotated[int, msgspec.Meta(ge=1_000, le=3_600_000)] = 30_000
    """Silence after which a client counts as dead."""

    metrics_host: str = "127.0.0.1"
    metrics_port: AnyPort = 0
    metrics_access: PageAccessConfig = PageAccessConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        where = f"router {self.name}"
        self.admin.check(where)
        if not self.state_directory:
            raise ConfigurationError("state_directory is missing", where=where, hint="name a directory for the journal")
        if self.journal.retention_bytes or self.journal.retention_seconds:
            hint = "use retain_s, the time that settled messages are kept"
            raise ConfigurationError("retention of the journal would delete live messages", where=where, hint=hint)
        if self.pair is not None:
            self.pair.check(self.name)
            if self.admin.url:
                self.pair.check_secrets(where)

    def known_models(self) -> dict[int, MessageModel]:
        """The models that conditions may refer to: the shipped ones, and the router's own documents."""
        models = [shipped(name) for name in shipped_names()] + [MessageModel.load(Path(name)) for name in self.models]
        return {model.id: model for model in models}


class WitnessConfig(Config, frozen=True):
    """A witness of one pair."""

    name: Name
    routers: tuple[Name, Name]
    """The pair, in the same order as at the routers."""

    state_directory: str
    """Directory of its promises."""

    lease_ms: Annotated[int, msgspec.Meta(ge=50, le=600_000)] = 3_000
    drift_ppm: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 10_000
    """Both as at the routers."""

    control: LeaseAccess = LeaseAccess()
    metrics_host: str = "127.0.0.1"
    metrics_port: AnyPort = 0
    metrics_access: PageAccessConfig = PageAccessConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.state_directory:
            where = f"witness {self.name}"
            raise ConfigurationError("state_directory is missing", where=where, hint="name a directory")
        _ = self.lease  # raises an error unless these three are valid

    @property
    def lease(self) -> LeaseConfig:
        return LeaseConfig(routers=self.routers, witness=self.name, lease_ms=self.lease_ms, drift_ppm=self.drift_ppm)
