"""Sockets: batched UDP multicast, TCP and WebSocket framing, control messages, the event loop, clock offsets.

The package knows how bytes travel and who may connect, not what the messages of a subsystem mean. core/ does no I/O:
framing.py, control_session.py (control connections), websocket.py, clock.py; events.py has the events and instructions
of these cores. live/ runs them: stream.py on TCP; control_driver.py, websocket_driver.py and link.py are servers and
clients; control_client.py and dialling.py reconnect; event_loop.py is the loop of a process. Read
docs/how-to/network.md first.
"""

import importlib
from typing import TYPE_CHECKING, Any

from penstock.net.core.clock import ClockEstimate, ClockEstimator
from penstock.net.core.control import ControlProtocol, Version
from penstock.net.core.framing import FrameDecoder, encode_frame
from penstock.net.live.clock_driver import ClockClient, ClockServer
from penstock.net.live.control_driver import ControlConnection, ControlServer, connect_control
from penstock.net.live.event_loop import CoreRunner, run_agent
from penstock.net.secret import Secret, read_secret

if TYPE_CHECKING:
    from penstock.net.live.websocket_driver import WebSocketConnection, WebSocketServer, connect_websocket

__all__ = [
    "ClockClient",
    "ClockEstimate",
    "ClockEstimator",
    "ClockServer",
    "ControlConnection",
    "ControlProtocol",
    "ControlServer",
    "CoreRunner",
    "FrameDecoder",
    "Secret",
    "Version",
    "WebSocketConnection",
    "WebSocketServer",
    "connect_control",
    "connect_websocket",
    "encode_frame",
    "read_secret",
    "run_agent",
]


def __getattr__(name: str) -> Any:
    """Load WebSocket support on first use: few processes need it, and it takes long to import."""
    if name in ("WebSocketConnection", "WebSocketServer", "connect_websocket"):
        return getattr(importlib.import_module("penstock.net.live.websocket_driver"), name)
    raise AttributeError(f"module 'penstock.net' has no attribute {name!r}")
