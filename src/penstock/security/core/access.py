"""Configuration shared by several kinds of nodes: their control listener, and their access to the administration
server."""

from typing import Annotated

import msgspec

from penstock.base.config import Config
from penstock.base.errors import ConfigurationError
from penstock.net.config import TlsConfig
from penstock.net.place import is_loopback

AnyPort = Annotated[int, msgspec.Meta(ge=0, le=65_535)]


class ControlAccess(Config, frozen=True):
    """The address on which a node accepts control connections."""

    host: str = "127.0.0.1"
    port: AnyPort = 0
    """0: any free port."""

    tls: TlsConfig | None = None
    secret_file: str = ""
    """A secret shared with the clients. TLS and a secret are required to listen beyond the loopback address."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_loopback(self.host) and (self.tls is None or not self.secret_file):
            raise ConfigurationError(
                f"{self.host} is not a loopback address: other addresses need tls and secret_file",
                where="control",
                hint="add both, or listen on 127.0.0.1",
            )


class AdminAccess(Config, frozen=True):
    """Access to the administration servers, which issue the tokens that this node checks."""

    url: str = ""
    """penstock://host:port,host:port, or penstocks:// with TLS; empty for none."""

    credentials: str = ""
    """Path of this node's credentials; their client needs the role `filter`."""

    def check(self, where: str) -> None:
        if bool(self.url) != bool(self.credentials):
            raise ConfigurationError("admin needs both url and credentials", where=where)
