"""Drivers of the connection cores: streams, servers, clients, links, event loops, handover of memory."""
