"""Finds the node for an application: the one that it names, or one on its host."""

import os

from penstock.base.errors import UnreachableError
from penstock.engine.control import EDGE_PORT_DEFAULT, MUX_PORT_DEFAULT, PLANT_PORT_DEFAULT, ClassWish
from penstock.net.place import answers, parse_place
from penstock.net.udp import Address

VARIABLE = "PENSTOCK_NODE"
"""Environment variable: host:port."""

AUTO = "auto"
PORTS = (MUX_PORT_DEFAULT, PLANT_PORT_DEFAULT, EDGE_PORT_DEFAULT)
"""Ports to try on this host, beginning with the multiplexer's."""

METERED_PORTS = (EDGE_PORT_DEFAULT, PLANT_PORT_DEFAULT, MUX_PORT_DEFAULT)
"""The same for the metered class, which a multiplexer serves only if configured."""


def find_node(wish: str = AUTO, cls: ClassWish = "auto") -> Address:
    """Return the node's address: `wish` is host:port, or "auto" for the environment variable or else a node on this
    host, preferably one for the class."""
    said = os.environ.get(VARIABLE, "") if wish == AUTO else wish
    if said:
        return parse_place(said)
    for port in METERED_PORTS if cls == "metered" else PORTS:
        if answers(("127.0.0.1", port)):
            return "127.0.0.1", port
    raise UnreachableError(
        "no distribution node answers on this host",
        hint=f"start `penstock mux`, or set node=host:port or the environment variable {VARIABLE}",
    )
