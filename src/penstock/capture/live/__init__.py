"""Writing a capture from a receiver, and decoding messages with models that a server sends."""
