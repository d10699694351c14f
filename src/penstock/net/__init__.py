"""Sockets: batched UDP multicast, TCP and WebSocket framing, control messages, the agent loop, clock offsets."""

from penstock.net.framing import FrameDecoder, encode_frame

__all__ = ["FrameDecoder", "encode_frame"]
