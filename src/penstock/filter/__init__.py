"""Filter modules: beside each host a process that passes on to the host's applications only what they want.

It receives the groups that its applications need, takes every packet in the order of its stream, and writes for every
consumer (an application, or a host with several) a packet that has only its messages; the packet's gap accounts for
what was removed. It is no broker: it keeps nothing but the newest packets for repairs, and publishers do not know it.
Read events.py first, then core.py; _forward.pyx for what happens to a packet, and control.py for what applications say.
What runs in applications and publishers is in application/.
"""

from penstock.filter._account import StreamAccount
from penstock.filter._consumers import Mode
from penstock.filter._forward import Forwarder
from penstock.filter.config import FilterConfig
from penstock.filter.control import PORT_DEFAULT, PROTOCOL
from penstock.filter.core import FilterModule
from penstock.wire import Outbox

__all__ = [
    "PORT_DEFAULT",
    "PROTOCOL",
    "FilterConfig",
    "FilterModule",
    "Forwarder",
    "Mode",
    "Outbox",
    "StreamAccount",
]
