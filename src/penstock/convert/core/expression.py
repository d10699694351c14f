"""The two small languages inside a converter table: values and conditions.

A value is where it comes from and the functions it goes through, from left to right:

    price                           a field of the source message
    time | since_midnight           through a function
    side | map(side)                with arguments
    order.price    day.volume       a value of the conversion state
    constant(add)                   always the same

A condition is one or more comparisons joined by `and`; each compares a value with a number or a word, tests bits with
`&`, or asks for a mark: `printable = N and flags & 1`, `book.changed`.
"""

import re
from typing import NamedTuple

from penstock.base.errors import TableError

_WORD = r"[A-Za-z_][\w.]*"
_CALL = re.compile(rf"\s*({_WORD})\s*(?:\(([^()]*)\))?\s*")
_COMPARISON = re.compile(r"^(.*?)\s*(<=|>=|!=|=|<|>|&)\s*([^<>=!&|]+)$")

HINT = "like 'price', 'side | map(side)' or 'constant(add)'"


class Call(NamedTuple):
    """A name, and what stands in its parentheses; None without them."""

    name: str
    arguments: tuple[str, ...] | None

    @property
    def text(self) -> str:
        return self.name if self.arguments is None else f"{self.name}({', '.join(self.arguments)})"


class Expression(NamedTuple):
    """Where a value comes from, and the functions it goes through."""

    head: Call
    functions: tuple[Call, ...]

    @property
    def text(self) -> str:
        return " | ".join(call.text for call in (self.head, *self.functions))


class Comparison(NamedTuple):
    """One term of a condition; a mark has the operator `&` and the literal -1: any bit will do."""

    value: Expression
    operator: str
    literal: str

    @property
    def text(self) -> str:
        return self.value.text if self.literal == "-1" else f"{self.value.text} {self.operator} {self.literal}"


def parse_value(given: object, where: str) -> Expression:
    """A value as a table gives it: a string in the language above, or a number, which is a constant."""
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise TableError(f"expected a value, got {given!r}", where=where, hint=HINT)
    if not isinstance(given, str):
        return Expression(Call("constant", (str(given),)), ())
    calls = [_parse_call(part, given, where) for part in given.split("|")]
    return Expression(calls[0], tuple(calls[1:]))


def parse_condition(given: object, where: str) -> tuple[Comparison, ...]:
    """A condition as a table gives it."""
    if not isinstance(given, str) or not given.strip():
        raise TableError(f"expected a condition, got {given!r}", where=where, hint="like 'printable = N'")
    return tuple(_parse_term(term.strip(), where) for term in re.split(r"\s+and\s+", given.strip()))


def _parse_term(term: str, where: str) -> Comparison:
    found = _COMPARISON.match(term)
    if found is None:
        return Comparison(parse_value(term, where), "&", "-1")
    return Comparison(parse_value(found[1], where), found[2], found[3].strip())


def _parse_call(part: str, given: str, where: str) -> Call:
    found = _CALL.fullmatch(part)
    if found is None:
        raise TableError(f"{part.strip()!r} in {given!r} is not a value or a function", where=where, hint=HINT)
    if found[2] is None:
        return Call(found[1], None)
    arguments = tuple(argument.strip() for argument in found[2].split(",")) if found[2].strip() else ()
    return Call(found[1], arguments)
