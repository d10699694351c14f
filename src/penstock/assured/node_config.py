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
    """Where clients connect."""

    port: AnyPort = PORT_DEFAULT
    advertised: str = ""
    """host:port that is announced to others; empty: host and port."""


class PairAccess(ControlAccess, frozen=True):
    """Where the second router of a pair listens for the first one, which dials it. The secret is the pair's own:
    whoever has it can be either router."""

    port: AnyPort = PAIR_PORT_DEFAULT


class LeaseAccess(ControlAccess, frozen=True):
    """Where the routers of a pair connect, to ask for this voter's vote. The secret is that of all three voters."""

    port: AnyPort = LEASE_PORT_DEFAULT


class VotingConfig(Config, frozen=True):
    """Automatic switching (REPL-14): who is active is decided by a majority of the two routers and a witness."""

    witness: Name
    voters: dict[Name, str]
    """host:port of the other two, by name: where the other router and the witness listen for those who ask."""

    listen: LeaseAccess = LeaseAccess()
    """Where this router listens for the other one."""

    lease_ms: Annotated[int, msgspec.Meta(ge=50, le=600_000)] = 3_000
    drift_ppm: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 10_000
    """Both as LeaseConfig has them, and the same at all three voters."""

    def lease(self, routers: tuple[str, str]) -> LeaseConfig:
        return LeaseConfig(routers=routers, witness=self.witness, lease_ms=self.lease_ms, drift_ppm=self.drift_ppm)


class LivePairConfig(PairConfig, frozen=True, kw_only=True):
    """The other router of a pair: these keys, and those of the pair's core (PairConfig)."""

    link: PairAccess = PairAccess()
    clients: str = ""
    """host:port where the other router's clients connect: this one's are told of it."""

    silence_ms: Annotated[int, msgspec.Meta(ge=200, le=3_600_000)] = 5_000
    """Silence after which the other router is taken for dead, and dialled again."""

    voting: VotingConfig | None = None
    """Without, operators decide who is active."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clients:
            parse_place(self.clients)

    def check(self, name: str) -> None:
        """Whether a router of this name can be one of the pair."""
        where = f"router {name}: pair"
        if name not in self.routers:
            hint = " and ".join(self.routers)
            raise ConfigurationError(f"{name} is no router of its own pair", where=where, hint=hint)
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
    """Where its journal is, and what tokens are checked with."""

    control: RouterAccess = RouterAccess()
    pair: LivePairConfig | None = None
    """The other router that has copies, and takes over; without, this one runs alone."""

    models: tuple[str, ...] = ()
    """Documents of message models that conditions may speak of, besides those shipped."""

    operators: tuple[Name, ...] = ()
    """Who may define endpoints and give orders: clients of the administration server;
    without one, names; empty: whoever can connect and nobody asks for tokens."""

    admin: AdminAccess = AdminAccess()
    """By whose tokens it is known what a client may publish and consume; without, everybody may do everything."""

    journal: JournalConfig = JournalConfig(segment_bytes=64 * MIB, linger_us=100_000, preallocate_bytes=16 * MIB)
    """How it is written; what it keeps is the core's to say."""

    accounts: AccountsConfig = AccountsConfig()
    """Where it writes down what became of messages, for the pipeline's audit."""

    reserve_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**36)] = 64 * MIB
    """Of the disk, kept free for when it is full: so that settlements can be logged, and the journal cleaned, which
    makes room. A segment of the journal, or more; 0: none."""

    backlog_bytes_max: Annotated[int, msgspec.Meta(ge=MIB, le=2**32)] = 64 * MIB
    """Bytes that wait for the disk, above which nothing is taken from clients."""

    sends_bytes_max: Annotated[int, msgspec.Meta(ge=MIB, le=2**32)] = 64 * MIB
    """Bytes that wait for one client, above which its link ends."""

    silence_ms: Annotated[int, msgspec.Meta(ge=1_000, le=3_600_000)] = 30_000
    """Silence after which a client is taken for dead."""

    metrics_host: str = "127.0.0.1"
    metrics_port: AnyPort = 0
    metrics_access: PageAccessConfig = PageAccessConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        where = f"router {self.name}"
        self.admin.check(where)
        if not self.state_directory:
            raise ConfigurationError("a router keeps messages", where=where, hint="say state_directory")
        if self.journal.retention_bytes or self.journal.retention_seconds:
            hint = "retain_s says how long settled messages are kept"
            raise ConfigurationError("its journal would delete messages that live", where=where, hint=hint)
        if self.pair is not None:
            self.pair.check(self.name)
            if self.admin.url:
                self.pair.check_secrets(where)

    def known_models(self) -> dict[int, MessageModel]:
        """Those that conditions may speak of: the shipped ones, and the router's own documents."""
        models = [shipped(name) for name in shipped_names()] + [MessageModel.load(Path(name)) for name in self.models]
        return {model.id: model for model in models}


class WitnessConfig(Config, frozen=True):
    """One witness, of one pair."""

    name: Name
    routers: tuple[Name, Name]
    """The pair, in the order in which its routers have it."""

    state_directory: str
    """Where it keeps what it has promised."""

    lease_ms: Annotated[int, msgspec.Meta(ge=50, le=600_000)] = 3_000
    drift_ppm: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 10_000
    """Both as the routers have them."""

    control: LeaseAccess = LeaseAccess()
    metrics_host: str = "127.0.0.1"
    metrics_port: AnyPort = 0
    metrics_access: PageAccessConfig = PageAccessConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.state_directory:
            where = f"witness {self.name}"
            raise ConfigurationError("a witness keeps what it promised", where=where, hint="say state_directory")
        _ = self.lease  # refused where it is made, if these three are not

    @property
    def lease(self) -> LeaseConfig:
        return LeaseConfig(routers=self.routers, witness=self.name, lease_ms=self.lease_ms, drift_ppm=self.drift_ppm)
