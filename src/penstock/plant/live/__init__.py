"""Drivers of nodes: data path, control connections, sessions, datagrams, and the link to the upstream node."""
