"""Assured messaging: message routers that store what is published until everybody who wants it has acknowledged it.

A publisher's message is matched, stored in the journal, queued to every endpoint that wants it, and only then
acknowledged; consumers settle what they got, and a message that all endpoints have settled is deleted. A second router
mirrors the first and can take over. It is not a distribution tree (penstock.tree): nothing is conflated or expires
unless somebody says so.

core/      state machines and compiled kernels, no I/O
live/      routers and witnesses on sockets and disks
client/    what applications import
wire/      data frames and control messages
"""

from penstock.assured.config import EndpointConfig, RouterConfig, Want
from penstock.assured.core.router.router import MessageRouter
from penstock.assured.wire.frames import Delivered, Published

__all__ = ["Delivered", "EndpointConfig", "MessageRouter", "Published", "RouterConfig", "Want"]
