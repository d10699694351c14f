"""Penstock: low-latency distribution of market data.

    import penstock

    with penstock.connect("penstock://127.0.0.1:7400", credentials="alice.toml") as client:
        for message in client.subscribe("md.us.eq.AAPL.>"): ...

Start with docs/ARCHITECTURE.md, which follows one tick through the code. Importing this package starts nothing: it
opens no socket, no file and no thread, and loads nothing else until connect() is called.
"""

import importlib
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "connect":
        return importlib.import_module("penstock.client").connect
    if name == "spark":  # a package of its own, imported when it is used
        return importlib.import_module("penstock.spark")
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")
