"""Records whose prices are floats already, for whoever computes with them."""

import dataclasses
from functools import lru_cache

import msgspec

from penstock.model import Field, MessageModel

MODELS_MAX = 256


@lru_cache(MODELS_MAX)
def converted_model(model: MessageModel) -> MessageModel:
    """The model with its prices as floats at the same places: what FieldTable.converted() makes of a record is read by
    it. The values are the same as those of the model itself; only their exact integers are gone."""
    return dataclasses.replace(model, fields=tuple(map(_converted, model.fields)))


def _converted(field: Field) -> Field:
    if not field.is_decimal:
        return field
    return msgspec.structs.replace(field, type="f64", storage="f8", decimals=0)
