"""How a node is reached, and how it reaches the administration server: parts of several nodes' configurations."""

from typing import Annotated

import msgspec

from penstock.base.config import Config
from penstock.base.errors import ConfigurationError
from penstock.net.config import TlsConfig
from penstock.net.place import is_loopback

AnyPort = Annotated[int, msgspec.Meta(ge=0, le=65_535)]


class ControlAccess(Config, frozen=True):
    """Where those whom a node serves connect."""

    host: str = "127.0.0.1"
    port: AnyPort = 0
    """0 takes a free one."""

    tls: TlsConfig | None = None
    secret_file: str = ""
    """TLS, and a secret shared with those who connect, are needed to listen beyond this machine."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_loopback(self.host) and (self.tls is None or not self.secret_file):
            raise ConfigurationError(
                f"{self.host} is beyond this machine: that needs tls and secret_file",
                where="control",
                hint="add both, or listen on 127.0.0.1",
            )


class AdminAccess(Config, frozen=True):
    """The administration servers, by whose tokens it is known what somebody may have."""

    url: str = ""
    """penstock://host:port,host:port, or penstocks:// with TLS; empty for none."""

    credentials: str = ""
    """Path of this node's credentials, of a client with the role `filter`."""

    def check(self, where: str) -> None:
        if bool(self.url) != bool(self.credentials):
            raise ConfigurationError("admin has not both url and credentials", where=where)
