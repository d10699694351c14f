"""Which filter module an application uses: the one it was told of, or its host's."""

import os
import socket

from penstock.base.errors import ConfigurationError
from penstock.filter.control import PORT_DEFAULT
from penstock.net.udp import Address

VARIABLE = "PENSTOCK_FILTER"
"""Of the environment: host:port, or "none"."""

AUTO, NONE = "auto", "none"
PROBE_WAIT_S = 0.5


def parse_place(text: str) -> Address:
    """host:port."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) <= 65_535):
        raise ConfigurationError(f"{text!r} is not an address", hint="write host:port, like 127.0.0.1:7402")
    return host, int(port)


def find_filter(wish: str) -> Address | None:
    """Where to register: as `wish` says, host:port, "none", or "auto" for what the environment says or else for this
    host's filter module if it has one."""
    said = os.environ.get(VARIABLE, "") if wish == AUTO else wish
    if said == NONE:
        return None
    if said:
        return parse_place(said)
    place = ("127.0.0.1", PORT_DEFAULT)
    return place if _answers(place) else None


def _answers(place: Address) -> bool:
    try:
        socket.create_connection(place, PROBE_WAIT_S).close()
    except OSError:
        return False
    return True
