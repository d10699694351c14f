"""Convert messages to JSON and back without losing a digit.

Prices are decimal numbers without exponents, enums are names (a number without a name stays a number), flags are lists
of names, missing values are null; fields that the record's version lacks are left out. NaN and infinity, which JSON
lacks, are the texts "nan", "inf" and "-inf".
"""

import difflib
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.base.errors import ModelError

if TYPE_CHECKING:
    from penstock.model.instruments import InstrumentDecimals
    from penstock.model.layout import Field
    from penstock.model.message import Message
    from penstock.model.model import MessageModel

_decoder = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)


def encode(message: "Message", shown: "InstrumentDecimals | None" = None) -> str:
    return msgspec.json.encode(values(message, shown)).decode()


def values(message: "Message", shown: "InstrumentDecimals | None" = None) -> dict[str, Any]:
    """Return the object that msgspec encodes."""
    present = [field for field in message.model.fields if field.since <= message.version]
    return {field.name: _json_value(message, field, shown) for field in present}


def texts(message: "Message", shown: "InstrumentDecimals") -> dict[str, Any]:
    """Return the values by field name. Prices and decimal quantities are exact texts with the instrument's decimals; if
    these are unknown, with as many as needed, at least one.
    """
    found = message.to_dict()
    for field in message.model.fields:
        if field.is_decimal and found[field.name] is not None:
            scaled = message.scaled(field.name)
            assert scaled is not None
            decimals = _shown_decimals(field, shown)
            found[field.name] = decimal_text(scaled, field.decimals, 1 if decimals is None else decimals)
    return found


def decode(model: "MessageModel", text: str | bytes) -> "Message":
    try:
        given = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ModelError(f"the text is not a JSON object: {error}", where=f"a {model.name} in JSON") from None
    for name in given:
        if name not in model.fields_by_name:
            near = difflib.get_close_matches(name, model.fields_by_name, n=1)
            raise ModelError(
                f"model {model.name!r} has no field {name!r}", hint=f"did you mean {near[0]!r}?" if near else ""
            )
    return model.new(**given)


def decimal_text(scaled: int, decimals: int, shown: int | None = None) -> str:
    """Format a scaled integer as a decimal number: 123400 with 4 decimals is 12.3400. With `shown`, trailing zeros
    beyond that number of decimals are dropped: 12.34 with 2, 12.340 with 3, and 12.34 with 1, because no other digit is
    dropped.
    """
    while shown is not None and decimals > shown and scaled % 10 == 0:
        scaled, decimals = scaled // 10, decimals - 1
    digits = str(abs(scaled)).rjust(decimals + 1, "0")
    point = len(digits) - decimals
    return ("-" if scaled < 0 else "") + digits[:point] + ("." + digits[point:] if decimals else "")


def _shown_decimals(field: "Field", shown: "InstrumentDecimals | None") -> int | None:
    return None if shown is None else shown.quantity if field.type == "quantity" else shown.price


def _json_value(message: "Message", field: "Field", shown: "InstrumentDecimals | None") -> Any:
    if field.is_decimal:
        scaled = message.scaled(field.name)
        if scaled is None:
            return None
        return msgspec.Raw(decimal_text(scaled, field.decimals, _shown_decimals(field, shown)).encode())
    value = getattr(message, field.name)
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
