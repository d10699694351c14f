"""Lower a condition to a decision graph of tests over bytes.

Three-valued logic without a third value: NOT is pushed down to the tests, where it becomes the opposite comparison. The
remaining AND and OR combine tests, and a test on a missing value may simply fail, because false and unknown both mean
that the record is not selected.
"""

import math
import struct
from dataclasses import dataclass
from fractions import Fraction

from penstock.base.errors import FilterExpressionError
from penstock.model import Field
from penstock.topics import _predicate as c
from penstock.topics._predicate import Program, key_of_float
from penstock.topics.condition import (
    All,
    Any,
    Compare,
    CompareFields,
    Condition,
    HasFlag,
    IsMissing,
    Like,
    Not,
    Operator,
    Truth,
)

NODES_MAX = 4_096
"""Maximum number of tests of a predicate."""

SIGNS = {
    Operator.EQUAL: c.SIGN_EQUAL,
    Operator.UNEQUAL: c.SIGN_LESS | c.SIGN_GREATER,
    Operator.LESS: c.SIGN_LESS,
    Operator.LESS_EQUAL: c.SIGN_LESS | c.SIGN_EQUAL,
    Operator.GREATER: c.SIGN_GREATER,
    Operator.GREATER_EQUAL: c.SIGN_GREATER | c.SIGN_EQUAL,
}
SIGNS_ALL = c.SIGN_LESS | c.SIGN_EQUAL | c.SIGN_GREATER


@dataclass(frozen=True)
class Test:
    """The operands of one node of the graph; the fields are those of _predicate.pxd."""

    kind: int
    field: Field
    right: Field | None = None
    signs: int = 0
    low: int = 0
    high: int = 0
    constant: bytes = b""


@dataclass(frozen=True)
class Leaf:
    """A test, or its negation; `when_missing` is the result for a record too short for the field."""

    test: Test
    opposite: bool = False
    when_missing: bool = False


@dataclass(frozen=True)
class Node:
    """A test and its position in the graph."""

    test: Test
    on_true: int
    on_false: int
    on_missing: int
    constant: int
    constant_size: int


Tree = Truth | Leaf | tuple[str, list["Tree"]]


def compile_program(condition: Condition, version: int) -> Program:
    """Compile the program for records of a model version."""
    graph = _Graph()
    entry = graph.add(_Lowering(version).tree(condition, negated=False), c.ACCEPT, c.REJECT)
    return graph.program(entry)


class _Lowering:
    def __init__(self, version: int) -> None:
        self._version = version

    def tree(self, condition: Condition, negated: bool) -> Tree:
        match condition:
            case Truth(value):
                return Truth(value != negated)
            case Not(item):
                return self.tree(item, not negated)
            case All(items):
                return "or" if negated else "and", [self.tree(item, negated) for item in items]
            case Any(items):
                return "and" if negated else "or", [self.tree(item, negated) for item in items]
            case IsMissing(field):
                if self._absent(field):
                    return Truth(not negated)
                return Leaf(_present(field), opposite=not negated, when_missing=not negated)
            case CompareFields(left, operator, right):
                if self._absent(left) or self._absent(right):
                    return Truth(False)
                return _compare_fields(left, operator.negated if negated else operator, right)
            case Compare(field, operator, constant):
                if self._absent(field):
                    return Truth(False)
                operator = operator.negated if negated else operator
                if isinstance(constant, bytes):
                    # Padded like the field, they can be compared at once.
                    padded = constant.ljust(field.size, b"\0")
                    return _if_present(field, Test(c.KIND_TEXT, field, signs=SIGNS[operator], constant=padded))
                return _compare_number(field, operator, constant)
            case Like(field, pattern):
                if self._absent(field):
                    return Truth(False)
                return _if_present(field, Test(c.KIND_LIKE, field, constant=_tokens(pattern)), negated)
            case HasFlag(field, mask):
                if self._absent(field):
                    return Truth(False)
                return Leaf(Test(c.KIND_BITS, field, low=mask), negated)

    def _absent(self, field: Field) -> bool:
        return field.since > self._version


def _present(field: Field) -> Test:
    """Return a test that holds if the field has a value."""
    if field.type == "text":
        # An empty text counts as missing if the field is optional.
        return Test(c.KIND_TEXT, field, signs=c.SIGN_GREATER if field.optional else SIGNS_ALL)
    low, high = _bounds(field)
    return _range(field, low, high)


def _if_present(field: Field, test: Test, opposite: bool = False) -> Tree:
    leaf = Leaf(test, opposite)
    return ("and", [Leaf(_present(field)), leaf]) if field.optional else leaf


def _compare_number(field: Field, operator: Operator, constant: Fraction | float) -> Tree:
    """Return one range of integers, or two for <>, without the integer that represents a missing value."""
    if isinstance(constant, float):
        floor = ceiling = key_of_float(constant)
    else:
        floor, ceiling = math.floor(constant), math.ceil(constant)
    low, high = _bounds(field)
    below, above = (low, min(high, ceiling - 1)), (max(low, floor + 1), high)
    ranges = {
        Operator.EQUAL: [(max(low, ceiling), min(high, floor))],
        Operator.UNEQUAL: [below, above] if floor == ceiling else [(low, high)],
        Operator.LESS: [below],
        Operator.LESS_EQUAL: [(low, min(high, floor))],
        Operator.GREATER: [above],
        Operator.GREATER_EQUAL: [(max(low, ceiling), high)],
    }[operator]
    return "or", [Leaf(_range(field, first, last)) for first, last in ranges if first <= last]


def _compare_fields(left: Field, operator: Operator, right: Field) -> Tree:
    signs = SIGNS[operator]
    if left.type == "text":
        test = Test(c.KIND_FIELDS_TEXT, left, right, signs)
    elif "f" in (left.storage[0], right.storage[0]):
        test = Test(c.KIND_FIELDS_FLOAT, left, right, signs)
    else:
        # Scaled to the same number of decimals: 64 bits times 10**18 fit in 128.
        decimals = max(left.decimals, right.decimals)
        low, high = 10 ** (decimals - left.decimals), 10 ** (decimals - right.decimals)
        test = Test(c.KIND_FIELDS_NUMBER, left, right, signs, low, high)
    present: list[Tree] = [Leaf(_present(field)) for field in (left, right) if field.optional]
    return "and", [*present, Leaf(test)]


def _bounds(field: Field) -> tuple[int, int]:
    """Return the keys of all values; NaN, the missing value of a float, has the highest key."""
    if field.storage[0] == "f":
        return key_of_float(-math.inf), key_of_float(math.inf if field.optional else math.nan)
    return field.bounds


def _range(field: Field, low: int, high: int) -> Test:
    moved = 2**63 if field.storage == "u8" else 0
    return Test(c.KIND_RANGE, field, low=low - moved, high=high - moved)


def _tokens(pattern: str) -> bytes:
    tokens: list[int] = []
    for character in pattern:
        if character == "%":
            tokens.append(c.ANY_CHARACTERS)
        elif character == "_":
            tokens.append(c.ANY_CHARACTER)
        else:
            tokens += character.encode("utf-8")
    return struct.pack(f"<{len(tokens)}H", *tokens)


class _Graph:
    """Builds the graph from its ends to its entry, so that every jump's target exists before the jump."""

    def __init__(self) -> None:
        self._leaves: list[tuple[Leaf, int, int]] = []

    def add(self, tree: Tree, on_true: int, on_false: int) -> int:
        """Return the entry of `tree`, which leaves to one of the two targets."""
        if isinstance(tree, Truth):
            return on_true if tree.value else on_false
        if isinstance(tree, Leaf):
            if len(self._leaves) == NODES_MAX:
                raise FilterExpressionError(f"the expression needs more than {NODES_MAX} tests")
            self._leaves.append((tree, on_true, on_false))
            return len(self._leaves) - 1
        kind, items = tree
        entry = on_true if kind == "and" else on_false
        for item in reversed(items):
            entry = self.add(item, entry, on_false) if kind == "and" else self.add(item, on_true, entry)
        return entry

    def program(self, entry: int) -> Program:
        last = len(self._leaves) - 1

        def place(target: int) -> int:
            # Built backwards: after reversal, every jump leads forward.
            return last - target if target >= 0 else target

        pool = bytearray()
        nodes = []
        for leaf, on_true, on_false in reversed(self._leaves):
            on_missing = on_true if leaf.when_missing else on_false
            if leaf.opposite:
                on_true, on_false = on_false, on_true
            test = leaf.test
            size = len(test.constant) // 2 if test.kind == c.KIND_LIKE else len(test.constant)
            nodes.append(Node(test, place(on_true), place(on_false), place(on_missing), len(pool), size))
            pool += test.constant
        return Program(nodes, place(entry), bytes(pool))
