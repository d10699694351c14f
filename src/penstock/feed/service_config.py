"""How an adapter's stream service behaves, and every bound it keeps."""

import ssl
from pathlib import Path
from typing import Annotated

import msgspec

from penstock.base.config import Config
from penstock.base.errors import ConfigurationError
from penstock.base.limits import PACKET_SIZE_DEFAULT, PACKET_SIZE_MAX
from penstock.net.secret import Secret, read_private, read_secret
from penstock.net.stream import is_loopback
from penstock.wire import PACKET_SIZE_MIN

KEY_SIZE_MAX = 65_536

Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31)]


class ServiceConfig(Config, frozen=True):
    """The stream service: streams over TCP for each subscriber."""

    host: str = "127.0.0.1"
    port: Port = 0
    """0 takes a free one."""

    certificate: str = ""
    private_key: str = ""
    """PEM files for TLS; needed beyond this machine."""

    secret_file: str = ""
    """The secret that subscribers' programs share with the service; needed beyond this machine, besides the tokens."""

    open: bool = False
    """Whether everybody gets and sends everything without a token; only for a plant on one machine."""

    subscribers_max: Count = 1_024
    queue_bytes_max: Count = 16 * 1024 * 1024
    """Bytes that wait for one subscriber; one that has more is cut off."""

    packet_size_max: Annotated[int, msgspec.Meta(ge=PACKET_SIZE_MIN, le=PACKET_SIZE_MAX)] = 16_384
    """Bytes of a packet on TCP."""

    contribution_size_max: Count = PACKET_SIZE_DEFAULT - 128
    """Bytes of a contributed message with its topic: it must fit one packet of the adapter's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.certificate) != bool(self.private_key):
            raise ConfigurationError("certificate and private_key belong together", where="service")
        if not is_loopback(self.host) and not (self.certificate and self.secret_file):
            raise ConfigurationError(
                f"the stream service on {self.host} needs TLS and a secret",
                where="service",
                hint="give certificate, private_key and secret_file, or listen on 127.0.0.1",
            )

    def tls(self) -> ssl.SSLContext | None:
        """The server's side of TLS; None without a certificate."""
        if not self.certificate:
            return None
        read_private(Path(self.private_key), KEY_SIZE_MAX)  # refuses a key that others can read
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.certificate, self.private_key)
        except OSError as error:
            raise ConfigurationError(f"TLS cannot be used: {error}", where=self.certificate) from None
        return context

    def secret(self) -> Secret | None:
        return read_secret(Path(self.secret_file)) if self.secret_file else None
