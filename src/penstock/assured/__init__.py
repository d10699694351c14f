"""Assured messaging: message routers store published messages until all matching endpoints have settled them.

A message is matched, stored in the journal, queued to every endpoint whose interests match, and then acknowledged.
Consumers settle deliveries, and a message that all endpoints have settled is deleted. A second router mirrors the first
and can take over. Unlike in a distribution tree (penstock.tree), messages are not conflated, and expire only if
configured.

core/      state machines and compiled kernels, no I/O
live/      routers and witnesses on sockets and disks
client/    the interface for applications
wire/      data frames and control messages
"""

from penstock.assured.config import EndpointConfig, RouterConfig, Want
from penstock.assured.core.router.router import MessageRouter
from penstock.assured.wire.frames import Delivered, Published

__all__ = ["Delivered", "EndpointConfig", "MessageRouter", "Published", "RouterConfig", "Want"]
