"""Which filter module an application uses: the one it was told of, or its host's."""

import os

from penstock.filter.core.control import PORT_DEFAULT
from penstock.net.place import answers, parse_place
from penstock.net.udp import Address

VARIABLE = "PENSTOCK_FILTER"
"""Of the environment: host:port, or "none"."""

AUTO, NONE = "auto", "none"


def find_filter(wish: str) -> Address | None:
    """Where to register: as `wish` says, host:port, "none", or "auto" for what the environment says or else for this
    host's filter module if it has one."""
    said = os.environ.get(VARIABLE, "") if wish == AUTO else wish
    if said == NONE:
        return None
    if said:
        return parse_place(said)
    place = ("127.0.0.1", PORT_DEFAULT)
    return place if answers(place) else None
