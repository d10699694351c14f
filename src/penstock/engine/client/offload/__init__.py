"""Offload processes: a separate process does a consumer's work, and the application keeps a thin layer.

    with NodeMessages(offloaded_events(request), request.topics) as messages: ...

The process owns the connection to the node, the ring, the regions and the notices. It checks events and records, keeps
what was read, filters, compares, and converts prices; the application asks for what it wants and gets results, both
through rings in shared memory. It ends with its application, however that ends; an application whose process is gone
gets a ProcessError. calls.py has the messages, process.py and dispatch.py the process, sources.py the application's
side.
"""

from penstock.engine.client.offload.sources import offloaded_events, offloaded_records

__all__ = ["offloaded_events", "offloaded_records"]
