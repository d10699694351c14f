"""Reference for the model's conflation: every update is kept, and each field is computed separately."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy

from penstock.model import Field, MessageModel

Update = tuple[int, bytes]
"""The model version that a record was written with, and the record."""


def may_conflate(model: MessageModel) -> bool:
    return model.conflate and "never" not in {field.conflate for field in model.fields}


def conflated(model: MessageModel, updates: Sequence[Update]) -> Update:
    """The one record that stands for all of these, in their order."""
    version, newest = updates[-1]
    record = bytearray(newest)
    for field in model.fields:
        if field.conflate == "last" or field.since > version:
            continue
        kept = _kept(field, _since_all_have_it(field, updates))
        if kept is not None:
            record[field.offset : field.end] = kept
    return version, bytes(record)


def _since_all_have_it(field: Field, updates: Sequence[Update]) -> list[bytes]:
    places: list[bytes] = []
    for version, record in updates:
        if field.since > version:
            places = []
        else:
            places.append(record[field.offset : field.end])
    return places


def _kept(field: Field, places: list[bytes]) -> bytes | None:
    present = [place for place in places if not _is_missing(field, place)]
    if not present:
        return None
    if field.conflate == "first":
        return present[0]
    values = [_value(field, place) for place in present]
    if field.conflate in ("max", "min"):
        best = (max if field.conflate == "max" else min)(values)
        return present[values.index(best)]
    return _total(field, values)


def _is_missing(field: Field, place: bytes) -> bool:
    if field.type in ("f32", "f64"):
        return math.isnan(_value(field, place))
    if not field.optional:
        return False
    return not place.rstrip(b"\0") if field.type == "text" else _value(field, place) == field.missing


def _value(field: Field, place: bytes) -> Any:
    return numpy.frombuffer(place, f"<{field.storage}")[0].item()


def _total(field: Field, values: list[Any]) -> bytes:
    if field.storage[0] == "f":
        kind = numpy.float32 if field.storage == "f4" else numpy.float64
        with numpy.errstate(all="ignore"):
            total = kind(values[0])
            for value in values[1:]:
                if math.isnan(total):  # infinities of both signs: the value is reset
                    total = kind(value)
                else:
                    total = kind(_rounded_once(total, value))
        return total.tobytes()
    low, high = field.bounds
    total = values[0]
    for value in values[1:]:
        total = min(max(total + value, low), high)
    return int(total).to_bytes(field.size, "little", signed=field.storage[0] == "i")


def _rounded_once(left: float, right: float) -> float:
    if not (math.isfinite(left) and math.isfinite(right)):
        return float(left) + float(right)
    try:
        return float(Fraction(float(left)) + Fraction(float(right)))
    except OverflowError:
        return math.inf if left > 0 else -math.inf
