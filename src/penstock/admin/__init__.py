"""The stream administration server: entitlements of clients, and the addresses of streams. No application message
passes through it.

This package makes decisions and keeps their state. Tokens, keys and documents are in penstock.security; other nodes
check them without a request to the server. Read core/administration.py first: every decision, without I/O; then
live/server.py, which makes decisions
durable, core/operations.py and live/app.py for the HTTP API, live/standby.py for the pair of servers.
live.driver.AdminServer runs the whole server.
"""

from penstock.admin.config import AdminConfig, AdminLimits, PeerConfig
from penstock.admin.core.administration import Caller, StreamAdministration

__all__ = ["AdminConfig", "AdminLimits", "Caller", "PeerConfig", "StreamAdministration"]
