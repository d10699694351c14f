"""The decimals of instruments, for showing values as text. A record is always in the units of its model.

    known = KnownInstruments()
    for message in subscription:
        print(message.to_json(known.of(message)))       # 0.0046, not 0.00460000

A definition is a message of the shipped model `instrument`. No digit is ever dropped: a value that needs more decimals
than its instrument has is shown with all of them.
"""

from typing import TYPE_CHECKING, NamedTuple

from penstock.model.library import shipped

if TYPE_CHECKING:
    from penstock.model.message import Message

INSTRUMENTS_MAX = 65_536
"""Maximum number of definitions; further instruments are ignored."""

MODEL_ID = shipped("instrument").id


class InstrumentDecimals(NamedTuple):
    """Decimals of an instrument's prices and quantities; None if unknown."""

    price: int | None = None
    quantity: int | None = None


UNKNOWN = InstrumentDecimals()


class KnownInstruments:
    """The decimals of instruments by venue and symbol, learned from their definitions."""

    def __init__(self) -> None:
        self._decimals: dict[tuple[str, str], InstrumentDecimals] = {}

    def of(self, message: "Message") -> InstrumentDecimals:
        """Return the decimals of the message's instrument. A definition is learned."""
        fields = message.model.fields_by_name
        if "symbol" not in fields or "venue" not in fields:
            return UNKNOWN
        key = (message.venue, message.symbol)
        if message.model.id == MODEL_ID and (key in self._decimals or len(self._decimals) < INSTRUMENTS_MAX):
            self._decimals[key] = InstrumentDecimals(message.price_decimals, message.quantity_decimals)
        return self._decimals.get(key, UNKNOWN)
