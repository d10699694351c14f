"""The multi-class distribution engine: what a ticker plant, a multiplexer and an edge cache have in common.

What consumers and nodes say to each other is in control.py.
"""

from penstock.engine.control import PROTOCOL

__all__ = ["PROTOCOL"]
