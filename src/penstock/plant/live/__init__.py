"""Running nodes: their data path, their control connections, sessions, datagrams, the upstream node."""
