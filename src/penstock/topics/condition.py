"""A parsed filter expression: a tree over a model's fields, independent of SQL.

Constants are exact: a number is a Fraction in the field's own unit (a price in its scaled integers), or a float for a
float field; a text is its UTF-8 bytes; an enum its number. BETWEEN, IN and flipped comparisons are already resolved.
"""

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from penstock.model import Field


class Operator(StrEnum):
    EQUAL = "="
    UNEQUAL = "<>"
    LESS = "<"
    LESS_EQUAL = "<="
    GREATER = ">"
    GREATER_EQUAL = ">="

    @property
    def negated(self) -> "Operator":
        return _NEGATED[self]

    @property
    def flipped(self) -> "Operator":
        """Return the equivalent operator for exchanged operands."""
        return _FLIPPED.get(self, self)


_NEGATED = {
    Operator.EQUAL: Operator.UNEQUAL,
    Operator.UNEQUAL: Operator.EQUAL,
    Operator.LESS: Operator.GREATER_EQUAL,
    Operator.LESS_EQUAL: Operator.GREATER,
    Operator.GREATER: Operator.LESS_EQUAL,
    Operator.GREATER_EQUAL: Operator.LESS,
}
_FLIPPED = {
    Operator.LESS: Operator.GREATER,
    Operator.LESS_EQUAL: Operator.GREATER_EQUAL,
    Operator.GREATER: Operator.LESS,
    Operator.GREATER_EQUAL: Operator.LESS_EQUAL,
}

Constant = Fraction | float | bytes


@dataclass(frozen=True)
class Truth:
    value: bool


@dataclass(frozen=True)
class All:
    items: tuple["Condition", ...]


@dataclass(frozen=True)
class Any:
    items: tuple["Condition", ...]


@dataclass(frozen=True)
class Not:
    item: "Condition"


@dataclass(frozen=True)
class Compare:
    field: Field
    operator: Operator
    constant: Constant


@dataclass(frozen=True)
class CompareFields:
    left: Field
    operator: Operator
    right: Field


@dataclass(frozen=True)
class Like:
    field: Field
    pattern: str
    """With % for any characters and _ for one."""


@dataclass(frozen=True)
class IsMissing:
    field: Field


@dataclass(frozen=True)
class HasFlag:
    field: Field
    mask: int


Condition = Truth | All | Any | Not | Compare | CompareFields | Like | IsMissing | HasFlag
