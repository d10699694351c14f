"""The classes of the shipped models: `from penstock.models import Quote`.

    for quote in client.subscribe("md.us.eq.*.quote", model=Quote):
        print(quote.symbol, quote.bid_price)            # an editor completes the fields, and mypy checks them
    quote = Quote(symbol="AAPL", bid_price="187.25")    # a new message

The fields are declared in models.pyi. `penstock model stubs my-model.toml` writes such classes for other models.
"""

from typing import Any

from penstock.model.library import shipped, shipped_names
from penstock.model.model import class_name

MODELS = {class_name(name): name for name in shipped_names()}
"""Models by the names of their classes."""

__all__ = list(MODELS)


def __getattr__(name: str) -> Any:
    if name not in MODELS:
        raise AttributeError(f"module 'penstock.models' has no attribute {name!r}")
    return shipped(MODELS[name]).message_class
