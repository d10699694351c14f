"""Random models: values, record, numpy, Arrow and JSON all agree."""

from decimal import Decimal
from typing import Any

import numpy as np
from hypothesis import given

from oracles.models import models, models_with_rows, same
from penstock.model import Field, Message, MessageModel


def exact(message: Message, field: Field) -> Any:
    if field.type == "price":
        scaled = message.scaled(field.name)
        return None if scaled is None else Decimal(f"{scaled}e-{field.decimals}")
    return getattr(message, field.name)


def from_arrow(field: Field, value: Any) -> Any:
    if field.type == "timestamp" and value is not None:
        return value
    if field.type == "flags":
        return frozenset(name for name, bit in field.bits.items() if value >> bit & 1)
    return value


@given(models_with_rows())
def test_values_survive_every_form(case: tuple[MessageModel, list[dict[str, Any]]]) -> None:
    model, rows = case
    messages = [model.new(**row) for row in rows]
    data = b"".join(bytes(message) for message in messages)
    records = np.frombuffer(data, model.dtype)
    batch = model.to_arrow(records)
    batch.validate(full=True)
    for index, row in enumerate(rows):
        viewed = model.view(data[index * model.record_size : (index + 1) * model.record_size], model.version)
        again = model.from_json(viewed.to_json())
        for field in model.fields:
            column = batch.column(field.name)
            if field.type == "timestamp":
                column = column.cast("int64")
            expected = row[field.name]
            assert same(exact(viewed, field), expected)
            assert same(exact(again, field), expected)
            assert same(from_arrow(field, column[index].as_py()), expected)
            assert bytes(viewed)[field.offset : field.end] == records[field.name][index : index + 1].tobytes()


@given(models_with_rows(rows_max=1))
def test_prices_read_as_the_nearest_float_and_can_be_written_back(
    case: tuple[MessageModel, list[dict[str, Any]]],
) -> None:
    model, (row,) = case
    message = model.new(**row)
    for field in model.fields:
        if field.type == "price" and row[field.name] is not None:
            number = getattr(message, field.name)
            assert number == float(row[field.name])
            scaled = message.scaled(field.name)
            assert scaled is not None
            if abs(scaled) < 10**15:
                copy = message.copy()
                setattr(copy, field.name, number)
                assert copy.scaled(field.name) == scaled


@given(models())
def test_fields_lie_apart_aligned_and_inside_their_parts(model: MessageModel) -> None:
    end = 0
    for field in model.fields:
        assert field.offset >= end
        assert field.type == "text" or field.offset % field.size == 0
        end = field.end
    assert model.record_size % 8 == 0
    assert end <= model.record_size < end + 8
    assert model.incompatibilities(model) == []


@given(models_with_rows(rows_max=1))
def test_a_record_of_each_older_version_reads_as_far_as_it_goes(
    case: tuple[MessageModel, list[dict[str, Any]]],
) -> None:
    model, (row,) = case
    record = bytes(model.new(**row))
    for version in range(1, model.version + 1):
        ends = [field.end for field in model.fields if field.since <= version]
        message = model.view(record[: max(ends, default=0)], version)
        for field in model.fields:
            expected = row[field.name] if field.since <= version else None
            assert same(exact(message, field), expected)
