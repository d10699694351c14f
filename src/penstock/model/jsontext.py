"""Messages as JSON and back, without losing a digit.

Prices are decimal numbers written out in full, enums their names (a number without a name stays a number), flags lists
of names, missing values null; fields that the record's version does not have are left out. JSON has no NaN and no
infinity: they are the texts "nan", "inf" and "-inf".
"""

import difflib
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.base.errors import ModelError

if TYPE_CHECKING:
    from penstock.model.layout import Field
    from penstock.model.message import Message
    from penstock.model.model import MessageModel

_decoder = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)


def encode(message: "Message") -> str:
    return msgspec.json.encode(values(message)).decode()


def values(message: "Message") -> dict[str, Any]:
    """What msgspec writes as such an object."""
    present = [field for field in message.model.fields if field.since <= message.version]
    return {field.name: _json_value(message, field) for field in present}


def decode(model: "MessageModel", text: str | bytes) -> "Message":
    try:
        given = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ModelError(f"is not a JSON object: {error}", where=f"a {model.name} in JSON") from None
    for name in given:
        if name not in model.fields_by_name:
            near = difflib.get_close_matches(name, model.fields_by_name, n=1)
            raise ModelError(
                f"model {model.name!r} has no field {name!r}", hint=f"did you mean {near[0]!r}?" if near else ""
            )
    return model.new(**given)


def decimal_text(scaled: int, decimals: int) -> str:
    """A scaled integer as a decimal number: 123400 with 4 decimals is 12.3400."""
    digits = str(abs(scaled)).rjust(decimals + 1, "0")
    point = len(digits) - decimals
    return ("-" if scaled < 0 else "") + digits[:point] + ("." + digits[point:] if decimals else "")


def _json_value(message: "Message", field: "Field") -> Any:
    if field.is_decimal:
        scaled = message.scaled(field.name)
        return None if scaled is None else msgspec.Raw(decimal_text(scaled, field.decimals).encode())
    value = getattr(message, field.name)
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
