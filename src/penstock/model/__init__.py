"""Message models: a message is declared once, in a TOML document, from which all its other forms are derived.

The forms are the bytes of a record, the zero-copy Message over them, the numpy dtype, the Arrow and Spark schemas, and
JSON. This package knows nothing of packets, topics or transports. Read model.py first, then layout.py for the byte
layout.
"""

from typing import TYPE_CHECKING

from penstock.model.instruments import InstrumentDecimals, KnownInstruments
from penstock.model.layout import Field, Part
from penstock.model.library import shipped, shipped_names
from penstock.model.message import Message
from penstock.model.model import MessageModel

if TYPE_CHECKING:
    from penstock.model.message import TypedMessage as TypedMessage

__all__ = [
    "Field",
    "InstrumentDecimals",
    "KnownInstruments",
    "Message",
    "MessageModel",
    "Part",
    "shipped",
    "shipped_names",
]
