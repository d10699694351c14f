"""Models of records whose prices were converted to floats."""

import dataclasses
from functools import lru_cache

import msgspec

from penstock.model import Field, MessageModel

MODELS_MAX = 256


@lru_cache(MODELS_MAX)
def converted_model(model: MessageModel) -> MessageModel:
    """The model with its prices as floats at the same offsets, for records made by FieldTable.converted(). Values
    are those of the original model; only the exact integers are lost."""
    return dataclasses.replace(model, fields=tuple(map(_converted, model.fields)))


def _converted(field: Field) -> Field:
    if not field.is_decimal:
        return field
    return msgspec.structs.replace(field, type="f64", storage="f8", decimals=0)
