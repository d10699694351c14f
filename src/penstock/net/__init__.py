"""Sockets: batched UDP multicast, TCP and WebSocket framing, control messages, the agent loop, clock offsets.

It knows how bytes travel and who may connect, not what the messages of a subsystem mean. The cores do no I/O:
framing.py, session.py (control connections), websocket.py, clock.py; events.py says what goes in and out of them.
stream.py runs the first two on TCP, control_driver.py and websocket_driver.py are the servers and clients that others
use, agent.py is the loop around it all. Read docs/network.md first. What is not named here is imported from its module:
WebSockets, which few processes need and which take long to import, from websocket_driver.
"""

from penstock.net.agent import CoreRunner, run_agent
from penstock.net.clock import ClockEstimate, ClockEstimator
from penstock.net.clock_driver import ClockClient, ClockServer
from penstock.net.control import ControlProtocol, Version
from penstock.net.control_driver import ControlConnection, ControlServer, connect_control
from penstock.net.framing import FrameDecoder, encode_frame
from penstock.net.secret import Secret, read_secret

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
    "connect_control",
    "encode_frame",
    "read_secret",
    "run_agent",
]
