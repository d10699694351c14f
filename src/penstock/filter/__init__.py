"""Filter modules: a process per host that forwards to the host's applications only the messages they subscribe to.

The module joins the groups that its applications need, takes every packet in the order of its stream, and writes for
every consumer (an application, or a host with several) a packet that has only the consumer's messages; the gap of the
packet accounts for removed messages. The module is no broker: it keeps only the newest packets for repairs, and
publishers do not know it. Read core/events.py first, then core/module.py; core/kernel/_forward.pyx rewrites packets,
core/control.py has the messages of applications. live/ runs a module, client/ is for applications and publishers.
"""

from penstock.filter.config import FilterConfig
from penstock.filter.core.control import PORT_DEFAULT, PROTOCOL
from penstock.filter.core.kernel._account import StreamAccount
from penstock.filter.core.kernel._consumers import Mode
from penstock.filter.core.kernel._forward import Forwarder
from penstock.filter.core.module import FilterModule
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
