"""Reference for filter expressions: a separate tree, rendered to SQL text, evaluated over plain values.

Three-valued: True, False, or None for unknown. Numbers are compared as Spark compares them: exactly, or as doubles when
one side is a float, with NaN equal to itself and above all numbers.
"""

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

Value = Any
Row = dict[str, Value]


@dataclass(frozen=True)
class FieldName:
    name: str


@dataclass(frozen=True)
class Literal:
    sql: str
    value: Value


@dataclass(frozen=True)
class Comparison:
    left: FieldName | Literal
    operator: str
    right: FieldName | Literal


@dataclass(frozen=True)
class Between:
    field: FieldName
    low: Literal
    high: Literal
    negated: bool


@dataclass(frozen=True)
class In:
    field: FieldName
    literals: tuple[Literal, ...]
    negated: bool


@dataclass(frozen=True)
class Like:
    field: FieldName
    pattern: str
    negated: bool


@dataclass(frozen=True)
class IsNull:
    field: FieldName
    negated: bool


@dataclass(frozen=True)
class Has:
    field: FieldName
    flag: str


@dataclass(frozen=True)
class Truth:
    value: bool


@dataclass(frozen=True)
class Not:
    item: "Tree"


@dataclass(frozen=True)
class Junction:
    word: str
    items: tuple["Tree", ...]


Tree = Comparison | Between | In | Like | IsNull | Has | Truth | Not | Junction


def render(tree: Tree) -> str:
    match tree:
        case Comparison(left, operator, right):
            return f"{_operand(left)} {operator} {_operand(right)}"
        case Between(field, low, high, negated):
            return f"{field.name} {'NOT ' * negated}BETWEEN {low.sql} AND {high.sql}"
        case In(field, literals, negated):
            return f"{field.name} {'not ' * negated}in ({', '.join(literal.sql for literal in literals)})"
        case Like(field, pattern, negated):
            return f"{field.name} {'NOT ' * negated}LIKE '{pattern}'"
        case IsNull(field, negated):
            return f"{field.name} IS {'NOT ' * negated}NULL"
        case Has(field, flag):
            return f"has({field.name}, '{flag}')"
        case Truth(value):
            return str(value).upper()
        case Not(item):
            return f"NOT ({render(item)})"
        case Junction(word, items):
            return f" {word} ".join(f"({render(item)})" for item in items)


def _operand(operand: FieldName | Literal) -> str:
    return operand.name if isinstance(operand, FieldName) else operand.sql


def evaluate(tree: Tree, row: Row) -> bool | None:
    match tree:
        case Comparison(left, operator, right):
            return _compare(_value(left, row), operator, _value(right, row))
        case Between(field, low, high, negated):
            value = row[field.name]
            inside = _junction("and", [_compare(value, ">=", low.value), _compare(value, "<=", high.value)])
            return _not(inside) if negated else inside
        case In(field, literals, negated):
            among = _junction("or", [_compare(row[field.name], "=", literal.value) for literal in literals])
            return _not(among) if negated else among
        case Like(field, pattern, negated):
            if row[field.name] is None:
                return None
            parts = [{"%": ".*", "_": "."}.get(character, re.escape(character)) for character in pattern]
            return (re.fullmatch("".join(parts), row[field.name], re.DOTALL) is not None) != negated
        case IsNull(field, negated):
            return (row[field.name] is None) != negated
        case Has(field, flag):
            return None if row[field.name] is None else flag in row[field.name]
        case Truth(value):
            return value
        case Not(item):
            return _not(evaluate(item, row))
        case Junction(word, items):
            return _junction(word, [evaluate(item, row) for item in items])


def _value(operand: FieldName | Literal, row: Row) -> Value:
    return row[operand.name] if isinstance(operand, FieldName) else operand.value


def _not(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


def _junction(word: str, truths: list[bool | None]) -> bool | None:
    decisive = word == "or"
    if decisive in truths:
        return decisive
    return None if None in truths else not decisive


def _compare(left: Value, operator: str, right: Value) -> bool | None:
    if left is None or right is None:
        return None
    if isinstance(left, str):
        a, b = left.encode(), right.encode()
        sign = (a > b) - (a < b)
    elif isinstance(left, float) or isinstance(right, float):
        sign = _compare_floats(float(left), float(right))
    else:
        exact_left, exact_right = Fraction(left), Fraction(right)
        sign = (exact_left > exact_right) - (exact_left < exact_right)
    return {
        "=": sign == 0,
        "<>": sign != 0,
        "!=": sign != 0,
        "<": sign < 0,
        "<=": sign <= 0,
        ">": sign > 0,
        ">=": sign >= 0,
    }[operator]


def _compare_floats(left: float, right: float) -> int:
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) - math.isnan(right)
    return (left > right) - (left < right)


def number_literal(value: int | Decimal) -> Literal:
    return Literal(format(value, "f") if isinstance(value, Decimal) else str(value), value)


def float_literal(value: float) -> Literal:
    return Literal(repr(value), value)


def text_literal(value: str) -> Literal:
    return Literal(f"'{value}'", value)
