"""The address, protection, counters and log of one service of a node."""

import ssl
from typing import NamedTuple

from penstock.base.counters import Counters
from penstock.base.log import Logger
from penstock.net.config import ControlConfig
from penstock.net.live.stream_server import Through
from penstock.net.secret import Secret
from penstock.security.core.access import ControlAccess


class ServiceSettings(NamedTuple):
    """A service that listens beyond the loopback address needs `tls` and `secret`."""

    node: str
    """The name of the node, as its peers see it."""

    control: ControlAccess
    secret: Secret | None
    tls: ssl.SSLContext | None
    limits: ControlConfig
    counters: Counters
    log: Logger
    through: Through | None = None
