"""The offload engine: a process of its own does a consumer's work, the application keeps a thin layer.

    with NodeMessages(offloaded_events(request), request.topics) as messages: ...

The process owns the connection to the node, the ring, the regions and the notices. It checks events and records, keeps
what was read, filters, compares, and converts prices; the application asks for what it wants and gets results, both
through rings in shared memory. It ends with its application, however that ends; an application whose process is gone
is told so with a ProcessError. Read calls.py for what they say to each other, then process.py; engine.py is the
application's side.
"""

from penstock.engine.client.offload.sources import offloaded_events, offloaded_records

__all__ = ["offloaded_events", "offloaded_records"]
