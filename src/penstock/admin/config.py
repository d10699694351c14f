"""The configuration of an administration server, with all its limits."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from penstock.base.config import Config, load_toml
from penstock.base.errors import ConfigurationError
from penstock.base.ids import format_group, parse_group
from penstock.net.page_access import PageTokenConfig, check_page_token
from penstock.net.place import is_loopback
from penstock.security.live.http import parse_addresses

Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
Count = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]


class AdminLimits(Config, frozen=True):
    token_s: Annotated[int, msgspec.Meta(ge=5, le=86_400)] = 600
    """Lifetime of a stream token; clients renew tokens before they expire."""

    session_s: Annotated[int, msgspec.Meta(ge=5, le=86_400)] = 600
    """Lifetime of a login session."""

    challenge_s: Seconds = 30.0
    """Time within which a challenge must be answered."""

    challenges_max: Count = 10_000
    """Maximum number of unanswered challenges; the oldest are dropped."""

    address_challenges_max: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 100
    """Maximum number of unanswered challenges of one address."""

    failures_max: Count = 10
    """Maximum number of failed logins of one client from one address within `failure_s`; further logins are refused
    unchecked."""

    address_failures_max: Count = 50
    """Maximum number of failed logins from one address within `failure_s`, for all clients together."""

    failure_s: Seconds = 60.0
    failure_entries_max: Count = 10_000
    """Maximum number of clients and addresses with recorded failures."""

    subscriptions_max: Count = 100_000
    client_subscriptions_max: Count = 1_000
    client_ended_max: Count = 10_000
    """Maximum number of a client's cancelled and revoked subscriptions whose tokens have not yet expired."""

    linger_s: Annotated[int, msgspec.Meta(ge=0, le=86_400)] = 60
    """Time after which a subscription with an expired token ends."""

    adapters_max: Count = 4_096
    publishers_max: Count = 10_000
    client_publishers_max: Count = 256
    """Maximal number of publisher names with an id: of all clients, and of one client."""

    publisher_wait_s: Annotated[float, msgspec.Meta(ge=0, le=4)] = 3.0
    """Maximum time that the answer to a claim of a publisher id waits for receivers to confirm the publisher.
    Below the timeout of clients, which is 5 s."""

    heartbeat_s: Seconds = 2.0
    """Interval between the reports of an adapter."""

    adapter_lost_s: Seconds = 10.0
    """An adapter that is silent for this time is left out of brokered addresses."""

    key_grace_s: Annotated[float, msgspec.Meta(ge=0, le=60)] = 1.0
    """Time that clients get to fetch a new stream or authentication key before adapters use it. A stream key is used
    earlier if all adapters and holders have confirmed it, at most one per such time."""

    key_rotation_s: Seconds = 10.0
    """A new stream or authentication key is used after this time even if an adapter or another holder has not
    confirmed that it has the key."""

    key_lease_s: Seconds = 600.0
    """Time for which an adapter without a reachable server continues to seal with its stream key, and a receiver
    continues to accept packets under its authentication keys; the default equals the lifetime of tokens. Longer than
    two
    heartbeats."""

    key_lifetime_s: Seconds = 300.0
    """Age at which a stream key is replaced; a leaked key opens only data that was sealed with it. Longer
    than key_grace_s and key_rotation_s together."""

    keys_kept: Annotated[int, msgspec.Meta(ge=2, le=16)] = 4
    """Number of stream keys of a feed that are distributed, old ones included."""

    events_kept: Count = 256
    """Number of events kept for each client."""

    changes_kept: Count = 100_000
    """Number of changes that a standby may lag behind; a standby that lags further receives the whole state."""

    connections_max: Count = 4_096
    body_size_max: Annotated[int, msgspec.Meta(ge=1_024, le=64 * 1024 * 1024)] = 2 * 1024 * 1024
    body_s: Seconds = 10.0
    """Maximum time for the body of a request to arrive."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.key_lease_s <= 2 * self.heartbeat_s:
            raise ConfigurationError(
                f"key_lease_s is {self.key_lease_s:g}, not longer than two heartbeats ({2 * self.heartbeat_s:g} s)",
                where="limits",
                hint="one lost heartbeat would stop sealed feeds; raise key_lease_s or lower heartbeat_s",
            )
        if self.key_lifetime_s <= self.key_grace_s + self.key_rotation_s:
            raise ConfigurationError(
                f"key_lifetime_s is {self.key_lifetime_s:g}, not longer than key_grace_s and key_rotation_s together "
                f"({self.key_grace_s + self.key_rotation_s:g} s)",
                where="limits",
                hint="a key would be replaced before adapters use it; raise key_lifetime_s",
            )


class PublishingConfig(Config, frozen=True):
    """The multicast groups of clients' publishers. Each publisher has a group of its own."""

    first_group: str = "239.255.76.0"
    """The first of `groups` consecutive groups, which nothing else uses."""

    groups: Annotated[int, msgspec.Meta(ge=1, le=4_096)] = 1_024
    """Maximal number of publishers at a time, those that ended within `linger_s` included."""

    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 7_445

    def __post_init__(self) -> None:
        super().__post_init__()
        first = parse_group(self.first_group)
        parse_group(format_group(min(first + self.groups - 1, 2**32 - 1)))


class PeerConfig(Config, frozen=True):
    """The other server of the pair."""

    address: str
    """penstocks://HOST:PORT"""

    credentials: str
    """Credentials of a client with the role `standby`."""

    check_s: Seconds = 2.0
    """Interval at which a primary checks if the other server took over."""

    primary_lost_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 0.0
    """A standby takes over when the primary has been silent for this time; 0: only an operator promotes it."""


class AdminConfig(Config, frozen=True):
    directory: str
    """Where the server keeps its state: a directory that only its owner can use."""

    policy: str
    """The policy document. A standby uses the policy of its primary, and reads this document on SIGHUP."""

    node: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] = "admin"
    signing_key: str = ""
    """PEM file with the signing key, by default signing.pem in the directory; created at the first start. Both servers
    of a pair have the same key."""

    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 7_400
    certificate: str = ""
    private_key: str = ""
    """PEM files for TLS. Without them the server listens on the loopback interface only."""

    metrics_access: PageTokenConfig = PageTokenConfig()
    """The token of /health and /metrics, required for a `host` that other machines reach."""

    models: str = ""
    """A directory of message models (TOML) besides those that come with Penstock."""

    role: Literal["primary", "standby"] = "primary"
    """Role at the first start; later the server reads its role from its database."""

    peer: PeerConfig | None = None
    publishing: PublishingConfig = PublishingConfig()
    limits: AdminLimits = AdminLimits()

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.certificate) != bool(self.private_key):
            raise ConfigurationError("certificate and private_key belong together", where="AdminConfig")
        if not self.certificate and not is_loopback(self.host):
            raise ConfigurationError(
                f"{self.host} is reachable from other machines, but TLS is not configured",
                where="AdminConfig: host",
                hint="give certificate and private_key, or listen on 127.0.0.1",
            )
        check_page_token(
            self.metrics_access,
            self.host,
            certificate=self.certificate,
            private_key=self.private_key,
            where="AdminConfig: host",
        )
        if self.role == "standby" and self.peer is None:
            raise ConfigurationError("a standby needs the address of its primary", where="AdminConfig: peer")
        if self.peer is not None:
            parse_addresses(self.peer.address)

    @staticmethod
    def load(path: Path) -> "AdminConfig":
        """Load a TOML file; relative paths in the file begin at its directory."""
        config = load_toml(path, AdminConfig)
        return config.beside(path.parent)

    def beside(self, directory: Path) -> "AdminConfig":
        """Return the configuration with relative paths resolved against `directory`."""
        names = ("directory", "policy", "signing_key", "certificate", "private_key", "models")
        paths = {name: str(directory / getattr(self, name)) for name in names if getattr(self, name)}
        peer = self.peer
        if peer is not None:
            peer = msgspec.structs.replace(peer, credentials=str(directory / peer.credentials))
        access = self.metrics_access
        if access.token_file:
            access = PageTokenConfig(token_file=str(directory / access.token_file))
        return msgspec.structs.replace(self, **paths, peer=peer, metrics_access=access)
