"""Every decision of the server without I/O: who may log in, subscribe, publish and receive which keys.

administration.py is the way in; state.py is what it remembers, as records.py writes it. operations.py lists the
operations of the HTTP API, each with its documents.
"""
