"""The stream administration server: who may see what, and where it flows. No application message passes through it.

It decides and remembers; what it issues (tokens, keys, documents) is in penstock.security and checked by others without
asking it. Read core.py first: every decision, without I/O; then server.py, which makes them durable, operations.py and
app.py for the HTTP API, standby.py for the pair of servers. driver.AdminServer runs it all.
"""

from penstock.admin.config import AdminConfig, AdminLimits, PeerConfig
from penstock.admin.core import Caller, StreamAdministration

__all__ = ["AdminConfig", "AdminLimits", "Caller", "PeerConfig", "StreamAdministration"]
