"""How a node is reached, and how it reaches the administration server: parts of several nodes' configurations."""

from typing import Annotated

import msgspec

from penstock.base.config import Config
from penstock.base.errors import ConfigurationError
from penstock.net.config import TlsConfig

AnyPort = Annotated[int, msgspec.Meta(ge=0, le=65_535)]


class ControlAccess(Config, frozen=True):
    """Where those whom a node serves connect."""

    host: str = "127.0.0.1"
    port: AnyPort = 0
    """0 takes a free one."""

    tls: TlsConfig | None = None
    secret_file: str = ""
    """TLS, and a secret shared with those who connect, are needed to listen beyond this machine."""


class AdminAccess(Config, frozen=True):
    """The administration servers, by whose tokens it is known what somebody may have."""

    url: str = ""
    """penstock://host:port,host:port, or penstocks:// with TLS; empty for none."""

    credentials: str = ""
    """Path of this node's credentials, of a client with the role `filter`."""

    def check(self, where: str) -> None:
        if bool(self.url) != bool(self.credentials):
            raise ConfigurationError("admin has not both url and credentials", where=where)
