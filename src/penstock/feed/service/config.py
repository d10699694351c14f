"""How an adapter's stream service behaves, and every bound it keeps."""

from typing import Annotated

import msgspec

from penstock.base.config import Config
from penstock.base.limits import PACKET_SIZE_DEFAULT, PACKET_SIZE_MAX
from penstock.net.config import TlsConfig
from penstock.wire import PACKET_SIZE_MIN

Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31)]


class ServiceConfig(Config, frozen=True):
    """The stream service: streams over TCP for each subscriber."""

    host: str = "127.0.0.1"
    port: Port = 0
    """0 takes a free one."""

    tls: TlsConfig | None = None
    secret_file: str = ""
    """TLS, and a secret shared with subscribers, are needed to listen beyond this machine."""

    open: bool = False
    """Whether everybody gets and sends everything without a token; only for a plant on one machine."""

    subscribers_max: Count = 1_024
    queue_bytes_max: Count = 16 * 1024 * 1024
    """Bytes that wait for one subscriber; one that has more is cut off."""

    packet_size_max: Annotated[int, msgspec.Meta(ge=PACKET_SIZE_MIN, le=PACKET_SIZE_MAX)] = 16_384
    """Bytes of a packet on TCP."""

    contribution_size_max: Count = PACKET_SIZE_DEFAULT - 128
    """Bytes of a contributed message with its topic: it must fit one packet of the adapter's."""
