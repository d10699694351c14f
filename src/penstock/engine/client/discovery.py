"""Which node an application uses: the one it was told of, or its host's."""

import os

from penstock.base.errors import UnreachableError
from penstock.engine.control import EDGE_PORT_DEFAULT, MUX_PORT_DEFAULT, PLANT_PORT_DEFAULT, ClassWish
from penstock.net.place import answers, parse_place
from penstock.net.udp import Address

VARIABLE = "PENSTOCK_NODE"
"""Of the environment: host:port."""

AUTO = "auto"
PORTS = (MUX_PORT_DEFAULT, PLANT_PORT_DEFAULT, EDGE_PORT_DEFAULT)
"""Where a node of this host is looked for: the one that is made for consumers first."""

METERED_PORTS = (EDGE_PORT_DEFAULT, PLANT_PORT_DEFAULT, MUX_PORT_DEFAULT)
"""The same for the metered class, which a multiplexer serves only if it is told to."""


def find_node(wish: str = AUTO, cls: ClassWish = "auto") -> Address:
    """As `wish` says, host:port, or "auto" for what the environment says or else for this host's, one that is made for
    the class first."""
    said = os.environ.get(VARIABLE, "") if wish == AUTO else wish
    if said:
        return parse_place(said)
    for port in METERED_PORTS if cls == "metered" else PORTS:
        if answers(("127.0.0.1", port)):
            return "127.0.0.1", port
    raise UnreachableError(
        "no distribution node answers on this host",
        hint=f"start `penstock mux`, or say where one is: node=host:port, or {VARIABLE} in the environment",
    )
