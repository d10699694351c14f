"""The stream administration server: who may see what, and where it flows. No application message passes through it.

It decides and remembers; what it issues (tokens, keys, documents) is in penstock.security and checked by others without
asking it. Read core/administration.py first: every decision, without I/O; then live/server.py, which makes decisions
durable, core/operations.py and live/app.py for the HTTP API, live/standby.py for the pair of servers.
live.driver.AdminServer runs it all.
"""

from penstock.admin.config import AdminConfig, AdminLimits, PeerConfig
from penstock.admin.core.administration import Caller, StreamAdministration

__all__ = ["AdminConfig", "AdminLimits", "Caller", "PeerConfig", "StreamAdministration"]
