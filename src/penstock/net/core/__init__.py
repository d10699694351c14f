"""Connections and clocks without I/O: framing, sessions, heartbeat, WebSockets, clock offsets."""
