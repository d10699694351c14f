"""Penstock: low-latency distribution of market data.

Start with docs/ARCHITECTURE.md, which follows one tick through the code. Importing this package starts nothing: it
opens no socket, no file and no thread.
"""

__version__ = "0.1.0"
