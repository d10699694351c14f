"""Finds the filter module of an application: the configured one, or the one of its host."""

import os

from penstock.filter.core.control import PORT_DEFAULT
from penstock.net.place import answers, parse_place
from penstock.net.udp import Address

VARIABLE = "PENSTOCK_FILTER"
"""Environment variable: host:port, or "none"."""

AUTO, NONE = "auto", "none"


def find_filter(wish: str) -> Address | None:
    """Return the address for registration: `wish` is host:port, "none", or "auto" for the value of the environment
    variable, or else this host's filter module if there is one."""
    said = os.environ.get(VARIABLE, "") if wish == AUTO else wish
    if said == NONE:
        return None
    if said:
        return parse_place(said)
    place = ("127.0.0.1", PORT_DEFAULT)
    return place if answers(place) else None
