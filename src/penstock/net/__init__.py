"""Sockets: batched UDP multicast, TCP and WebSocket framing, control messages, the agent loop, clock offsets."""
