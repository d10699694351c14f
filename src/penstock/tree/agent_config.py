"""What a node that is an agent is told: where it listens, whom it serves, where it keeps its streams."""

from typing import Annotated

import msgspec

from penstock.base.errors import ConfigurationError
from penstock.capture.accounts import AccountsConfig
from penstock.journal import JournalConfig
from penstock.security.access import AdminAccess, AnyPort, ControlAccess
from penstock.tree.config import PORT_DEFAULT, TreeConfig


class AgentAccess(ControlAccess, frozen=True):
    """Where children connect."""

    port: AnyPort = PORT_DEFAULT


class AgentConfig(TreeConfig, frozen=True, kw_only=True):
    """One agent: these keys, and those of its core (TreeConfig)."""

    control: AgentAccess = AgentAccess()
    ca_file: str = ""
    secret_file: str = ""
    """TLS and a secret, to reach parents and peers on other hosts."""

    subscribe: tuple[str, ...] = ()
    """At the root: topics of the plant's feeds that are published in the tree, by the administration server; with
    credentials of a client with the role `filter` that may receive them."""

    models: tuple[str, ...] = ()
    """Documents of message models that conditions may speak of, besides those shipped."""

    admin: AdminAccess = AdminAccess()
    """By whose tokens it is known what a subscriber or publisher may have; without, everybody may have everything."""

    accounts: AccountsConfig = AccountsConfig()
    state_directory: str = ""
    """Where the root keeps its streams, and every agent what tokens are checked with. A root needs one."""

    journal: JournalConfig = JournalConfig(segment_bytes=16 * 1024 * 1024)
    """How the root writes its streams' journals; retention is each stream's own."""

    sends_bytes_max: Annotated[int, msgspec.Meta(ge=65_536, le=2**30)] = 1024 * 1024
    """Bytes that wait in a child's socket buffers of this process, above which its messages wait in the queue."""

    metrics_host: str = "127.0.0.1"
    metrics_port: AnyPort = 0
    cpu: Annotated[int, msgspec.Meta(ge=-1, le=4_095)] = -1
    """The processor the data thread is bound to; -1 for none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        where = f"agent {self.name}"
        self.admin.check(where)
        if self.role != "agent" and not self.state_directory:
            raise ConfigurationError(f"a {self.role} keeps its streams", where=where, hint="say state_directory")
        if self.subscribe and self.role == "agent":
            raise ConfigurationError("feeds come into the tree at its root", where=where)
        if self.subscribe and not self.admin.url:
            raise ConfigurationError("subscribes without an administration server", where=where)
