"""Sockets: batched UDP multicast, TCP and WebSocket framing, control messages, the agent loop, clock offsets.

It knows how bytes travel and who may connect, not what the messages of a subsystem mean. The cores do no I/O:
framing.py, session.py (control connections), websocket.py, clock.py; events.py says what goes in and out of them.
stream.py runs the first two on TCP, control_driver.py and websocket_driver.py are the servers and clients that others
use, agent.py is the loop around it all. Read docs/network.md first.
"""

import importlib
from typing import TYPE_CHECKING, Any

from penstock.net.agent import CoreRunner, run_agent
from penstock.net.clock import ClockEstimate, ClockEstimator
from penstock.net.clock_driver import ClockClient, ClockServer
from penstock.net.control import ControlProtocol, Version
from penstock.net.control_driver import ControlConnection, ControlServer, connect_control
from penstock.net.framing import FrameDecoder, encode_frame
from penstock.net.secret import Secret, read_secret

if TYPE_CHECKING:
    from penstock.net.websocket_driver import WebSocketConnection, WebSocketServer, connect_websocket

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
    """WebSockets, which few processes need, take long to import."""
    if name in ("WebSocketConnection", "WebSocketServer", "connect_websocket"):
        return getattr(importlib.import_module("penstock.net.websocket_driver"), name)
    raise AttributeError(f"module 'penstock.net' has no attribute {name!r}")
