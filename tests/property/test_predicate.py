"""Random conditions over random records: the compiled predicate and the reference oracle agree."""

import itertools
import math
from decimal import Decimal
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from oracles.expression import (
    Between,
    Comparison,
    FieldName,
    Has,
    In,
    IsNull,
    Junction,
    Like,
    Literal,
    Not,
    Tree,
    Truth,
    evaluate,
    float_literal,
    number_literal,
    render,
    text_literal,
)
from oracles.models import models, models_with_rows
from penstock.model import Field, MessageModel
from penstock.topics import Predicate

RICH = MessageModel.parse("""
id = 1
name = "rich"
version = 2
field = [
    { name = "code", type = "text", size = 4 },
    { name = "note", type = "text", size = 7, optional = true },
    { name = "ratio", type = "f64" },
    { name = "share", type = "f32", optional = true },
    { name = "price", type = "price", decimals = 2, optional = true },
    { name = "cost", type = "price", decimals = 5 },
    { name = "count", type = "u64", optional = true },
    { name = "side", type = "enum", values = { buy = 1, sell = 2 }, optional = true },
    { name = "state", type = "flags", bits = { halted = 0, crossed = 9 } },
    { name = "delta", type = "i16", optional = true, since = 2 },
]
""")

Row = dict[str, Any]
OPERATORS = ["=", "<>", "!=", "<", "<=", ">", ">="]
INTEGERS = {"i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "timestamp"}
FLOATS = {"f32", "f64"}
CHARACTERS = st.characters(exclude_characters="\0'\"\\", exclude_categories=["Cs"])


def kind(field: Field) -> str:
    return "integer" if field.type in INTEGERS else "float" if field.type in FLOATS else field.type


def plain(text: str) -> bool:
    return not set(text) & set("'\"\\")


def literals(field: Field, rows: list[Row]) -> st.SearchStrategy[Literal]:
    """Literals that are often equal to a value in the record, or close to one."""
    seen = [row[field.name] for row in rows if row[field.name] is not None]
    if field.type == "enum":
        return st.sampled_from(list(field.values)).map(text_literal)
    if field.type == "text":
        texts = st.text(CHARACTERS, max_size=6)
        near = [text for text in seen if plain(text)]
        return (texts | st.sampled_from(near) if near else texts).map(text_literal)
    if field.type in FLOATS:
        finite = [number for number in seen if math.isfinite(number)]
        numbers = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, 0.1])
        return (numbers | st.sampled_from(finite) if finite else numbers).map(float_literal)
    near_numbers = st.builds(
        lambda value, step: Decimal(value) + step,
        st.sampled_from(seen or [0]),
        st.sampled_from([Decimal(0), Decimal(1), Decimal(-1), Decimal("0.5"), Decimal("-0.00001")]),
    )
    wild = st.decimals(min_value=-(10**20) + 1, max_value=10**20 - 1, places=3)
    fitting = (near_numbers | wild).filter(
        lambda number: abs(number) < 10**20 and -int(number.normalize().as_tuple().exponent) <= 18
    )
    return fitting.map(number_literal) | st.integers(-300, 70_000).map(number_literal)


@st.composite
def leaves_of(draw: st.DrawFn, model: MessageModel, rows: list[Row]) -> Tree:
    field = draw(st.sampled_from(model.fields))
    name, negated = FieldName(field.name), draw(st.booleans())
    if draw(st.integers(0, 5)) == 0:
        return IsNull(name, negated)
    if field.type == "flags":
        return Has(name, draw(st.sampled_from(list(field.bits))))
    literal = literals(field, rows)
    form = draw(st.sampled_from(["compare", "flipped", "in", "between", "like", "fields"]))
    if form == "in":
        return In(name, tuple(draw(st.lists(literal, min_size=1, max_size=4))), negated)
    if form == "between" and field.type != "enum":
        return Between(name, draw(literal), draw(literal), negated)
    if form == "like" and field.type == "text":
        pieces = st.sampled_from(["%", "_"]) | st.text(CHARACTERS, max_size=2) | literal.map(lambda item: item.value)
        return Like(name, "".join(draw(st.lists(pieces, max_size=4))), negated)
    operator = draw(st.sampled_from(OPERATORS[:3] if field.type == "enum" else OPERATORS))
    if form == "fields":
        kinds = {"integer": {"integer", "price", "float"}, "price": {"integer", "price"}, "float": {"integer", "float"}}
        others = [other for other in model.fields if kind(other) in kinds.get(kind(field), {field.type})]
        return Comparison(name, operator, FieldName(draw(st.sampled_from(others)).name))
    if form == "flipped":
        return Comparison(draw(literal), operator, name)
    return Comparison(name, operator, draw(literal))


@st.composite
def cases(draw: st.DrawFn, *, trees_max: int = 2) -> tuple[MessageModel, list[Row], list[Tree]]:
    model, rows = draw(models_with_rows(rows_max=6, chosen=st.just(RICH) | models()))
    leaf = leaves_of(model, rows)
    leaves = leaf | leaf | leaf | leaf | st.booleans().map(Truth)
    trees = st.recursive(
        leaves,
        lambda inner: (
            st.builds(Not, inner)
            | st.builds(Junction, st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3).map(tuple))
        ),
        max_leaves=8,
    )
    return model, rows, draw(st.lists(trees, min_size=1, max_size=trees_max))


@given(cases(trees_max=8))
def test_selects_what_is_definitely_true(case: tuple[MessageModel, list[Row], list[Tree]]) -> None:
    model, rows, trees = case
    records = [bytes(model.new(**row)) for row in rows]
    data = b"".join(records)
    offsets = np.arange(len(rows), dtype=np.uint32) * np.uint32(model.record_size)
    sizes = np.full(len(rows), model.record_size, np.uint32)
    for tree in trees:
        predicate = Predicate.compile(render(tree), model)
        expected = [evaluate(tree, row) is True for row in rows]
        assert [predicate(record) for record in records] == expected
        assert predicate.select(data).tolist() == expected
        assert predicate.select(np.frombuffer(data, model.dtype)).tolist() == expected
        assert predicate.select_at(data, offsets, sizes).tolist() == expected


@given(cases(), st.data())
def test_a_short_record_misses_what_it_does_not_reach(
    case: tuple[MessageModel, list[Row], list[Tree]], data: st.DataObject
) -> None:
    model, rows, trees = case
    size = data.draw(st.integers(0, model.record_size))
    for tree in trees:
        predicate = Predicate.compile(render(tree), model)
        for row in rows:
            seen = {field.name: row[field.name] if field.end <= size else None for field in model.fields}
            assert predicate(bytes(model.new(**row))[:size]) == (evaluate(tree, seen) is True)


@given(cases())
def test_a_record_of_an_older_version_misses_what_was_added_later(
    case: tuple[MessageModel, list[Row], list[Tree]],
) -> None:
    model, rows, trees = case
    for tree, version in itertools.product(trees, range(1, model.version + 1)):
        predicate = Predicate.compile(render(tree), model, version)
        for row in rows:
            seen = {field.name: row[field.name] if field.since <= version else None for field in model.fields}
            assert predicate(bytes(model.new(**row))) == (evaluate(tree, seen) is True)
