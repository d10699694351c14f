"""Every decision of the server without I/O: who may log in, subscribe, publish and receive which keys.

administration.py is the entry point; state.py has the state, and records.py its durable form. operations.py lists the
operations of the HTTP API, each with its documents.
"""
