"""Compatibility of a newer version of a model: it may only add, so that programs with the older version still work."""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from penstock.model.layout import Field

if TYPE_CHECKING:
    from penstock.model.model import MessageModel


def incompatibilities(newer: "MessageModel", older: "MessageModel") -> list[str]:
    return list(_differences(newer, older))


def _differences(newer: "MessageModel", older: "MessageModel") -> Iterator[str]:
    if newer.id != older.id:
        yield f"the model's id changed from {older.id} to {newer.id}"
    if newer.name != older.name:
        yield f"the model's name changed from {older.name!r} to {newer.name!r}"
    if newer.version < older.version:
        yield f"the version decreased from {older.version} to {newer.version}"
    if newer.version == older.version and _without_words(newer) != _without_words(older):
        yield f"the model has changed, but still has version {older.version}: increase the version"
    yield from _moved_parts(newer, older)
    for field in older.fields:
        if field.name in newer.fields_by_name:
            yield from _changes(newer.fields_by_name[field.name], field)
        else:
            yield f"field {field.name!r} was removed"
    for field in newer.fields:
        if field.name not in older.fields_by_name and field.since <= older.version:
            yield f"field {field.name!r} is new, but declares since = {field.since}"


def _without_words(model: "MessageModel") -> "MessageModel":
    """Return the model without descriptions, which have no effect on programs."""
    fields = tuple(msgspec.structs.replace(field, description="") for field in model.fields)
    return dataclasses.replace(model, fields=fields, description="")


def _moved_parts(newer: "MessageModel", older: "MessageModel") -> Iterator[str]:
    offsets = {part.name: part.offset for part in newer.parts}
    for part in older.parts:
        if part.name not in offsets:
            yield f"part {part.name!r} was removed"
        elif offsets[part.name] != part.offset:
            yield f"part {part.name!r} moved from byte {part.offset} to {offsets[part.name]}"


def _changes(newer: Field, older: Field) -> Iterator[str]:
    for what in ("type_text", "offset", "size", "since", "optional"):
        was, now = getattr(older, what), getattr(newer, what)
        if was != now:
            yield f"{what.removesuffix('_text')} of field {older.name!r} changed from {was} to {now}"
    for names in ("values", "bits"):
        numbers = getattr(newer, names)
        for name, number in getattr(older, names).items():
            if numbers.get(name) != number:
                yield f"field {older.name!r} no longer has {name} = {number}"
