"""What runs the cores of connections: streams, servers, clients, links, loops, handover of memory."""
