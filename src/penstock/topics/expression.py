"""Filter expressions: a SQL condition over the fields of a message model, in Spark's dialect, parsed by sqlglot.

Only the syntax in SUPPORTED is accepted, so that an expression has the same meaning here and in Spark.
"""

from collections.abc import Callable
from functools import lru_cache

from sqlglot import Dialect, exp
from sqlglot.errors import ParseError, SqlglotError

from penstock.base.errors import FilterExpressionError
from penstock.model import Field, MessageModel
from penstock.topics.condition import (
    All,
    Any,
    Compare,
    CompareFields,
    Condition,
    Constant,
    HasFlag,
    IsMissing,
    Like,
    Not,
    Operator,
    Truth,
)
from penstock.topics.literal import (
    FLOAT_TYPES,
    NUMBER_TYPES,
    close_match,
    number_constant,
    text_constant,
    timestamp_constant,
)

EXPRESSION_SIZE_MAX = 16_384
"""Maximum length of an expression in characters: enough for a list of a thousand symbols."""

PARSED_MAX = 16
DEPTH_MAX = 32
"""Maximum nesting of parentheses and alternatives."""

SUPPORTED = (
    "supported: = <> < <= > >=, BETWEEN, IN, LIKE, IS NULL, AND, OR, NOT, TRUE, FALSE and has(flags, 'name'), "
    "over fields and literals"
)

APOSTROPHE = """'' is not an escaped apostrophe; write the text in double quotes: "O'Neil\""""

SPARK = Dialect.get_or_raise("spark")

OPERATORS: dict[type[exp.Expression], Operator] = {
    exp.EQ: Operator.EQUAL,
    exp.NEQ: Operator.UNEQUAL,
    exp.LT: Operator.LESS,
    exp.LTE: Operator.LESS_EQUAL,
    exp.GT: Operator.GREATER,
    exp.GTE: Operator.GREATER_EQUAL,
}


def parse_expression(text: str, model: MessageModel) -> Condition:
    """Parse the condition in `text` over the fields of `model`."""
    return _Reader(model).condition(_parsed(text), depth=0)


def check_expression(text: str) -> None:
    """Refuse text that is not a condition on any model."""
    _parsed(text)


@lru_cache(maxsize=PARSED_MAX)
def _parsed(text: str) -> exp.Expression:
    """Parse with a cache, because the same text is parsed for many models. The result must not be changed."""
    if len(text) > EXPRESSION_SIZE_MAX:
        raise FilterExpressionError(
            f"the expression has {len(text)} characters, above the limit of {EXPRESSION_SIZE_MAX}"
        )
    if "\\" in text:
        # Spark and sqlglot treat some escapes differently.
        raise FilterExpressionError(
            f"a backslash at character {text.index(chr(92)) + 1}", hint="escapes are not supported"
        )
    _check_parentheses(text)
    try:
        statements = SPARK.parse_into(exp.Condition, text)
    except ParseError as error:
        raise _parse_refusal(error) from None
    except RecursionError:
        raise FilterExpressionError("the expression is nested too deeply") from None
    except (SqlglotError, ValueError, IndexError, KeyError, AttributeError, TypeError) as error:
        # sqlglot raises other errors for malformed text.
        raise FilterExpressionError(f"the expression is not a condition: {str(error)[:120]}", hint=SUPPORTED) from None
    condition = statements[0] if len(statements) == 1 else None
    if not isinstance(condition, exp.Expression):
        raise FilterExpressionError("the expression must be a single condition", hint=SUPPORTED)
    return condition


def _parse_refusal(error: ParseError) -> FilterExpressionError:
    first = error.errors[0] if error.errors else {}
    piece = first.get("highlight") or ""
    where = f"line {first['line']}, character {first['col'] - len(piece) + 1}" if first.get("line") else ""
    near = f" near {piece[:40]!r}" if piece else ""
    return FilterExpressionError(f"the expression is not a condition{near}", where=where, hint=SUPPORTED)


def _check_parentheses(text: str) -> None:
    """Bound the nesting before calling sqlglot, which recurses."""
    depth = 0
    for position, character in enumerate(text, start=1):
        depth += (character in "([{") - (character in ")]}")
        if depth > DEPTH_MAX:
            raise FilterExpressionError(
                f"the expression is nested more than {DEPTH_MAX} levels deep", where=f"character {position}"
            )


class _Reader:
    """Walks sqlglot's tree and builds a Condition."""

    def __init__(self, model: MessageModel) -> None:
        self._model = model

    def condition(self, node: exp.Expression, depth: int) -> Condition:
        if depth > 2 * DEPTH_MAX:
            raise FilterExpressionError(f"the expression is nested more than {DEPTH_MAX} levels deep")
        if isinstance(node, exp.Paren):
            return self.condition(node.this, depth + 1)
        if isinstance(node, exp.And):
            return All(tuple(self.condition(item, depth + 1) for item in _operands(node, exp.And)))
        if isinstance(node, exp.Or):
            return Any(tuple(self.condition(item, depth + 1) for item in _operands(node, exp.Or)))
        if isinstance(node, exp.Not):
            return Not(self.condition(node.this, depth + 1))
        if isinstance(node, exp.Boolean):
            return Truth(bool(node.this))
        return self._test(node)

    def _test(self, node: exp.Expression) -> Condition:
        if type(node) in OPERATORS:
            return self._comparison(node, OPERATORS[type(node)])
        readers: dict[type[exp.Expression], Callable[..., Condition]] = {
            exp.Between: self._between,
            exp.In: self._in,
            exp.Like: self._like,
            exp.Is: self._is,
            exp.Anonymous: self._has,
        }
        reader = readers.get(type(node))
        if reader is None:
            raise _unsupported(node)
        condition = reader(node)
        return Not(condition) if node.args.get("negate") else condition

    def _comparison(self, node: exp.Expression, operator: Operator) -> Condition:
        left, right = _bare(node.this), _bare(node.expression)
        if isinstance(left, exp.Column) and isinstance(right, exp.Column):
            return self._field_comparison(node, operator)
        if isinstance(right, exp.Column):
            left, right, operator = right, left, operator.flipped
        return self._compare(self._field(left), operator, right)

    def _compare(self, field: Field, operator: Operator, literal: exp.Expression) -> Compare:
        constant = _constant(field, literal)
        if field.type == "enum":
            _check_enum_operator(field, operator)
        return Compare(field, operator, constant)

    def _field_comparison(self, node: exp.Expression, operator: Operator) -> Condition:
        left, right = self._field(_bare(node.this)), self._field(_bare(node.expression))
        kinds = {_comparison_kind(left), _comparison_kind(right)}
        if kinds == {"number", "float"} and (left.is_decimal or right.is_decimal):
            exact = left if left.is_decimal else right
            raise FilterExpressionError(
                f"{left.name!r} is {left.type_text}, {right.name!r} is {right.type_text}",
                hint=f"{exact.type} is exact and float is not, so they cannot be compared",
            )
        if len(kinds) > 1 and kinds != {"number", "float"}:
            raise FilterExpressionError(f"{left.name!r} is {left.type_text}, {right.name!r} is {right.type_text}")
        if "enum" in kinds:
            _check_enum_operator(left, operator)
            if left.values != right.values:
                raise FilterExpressionError(f"{left.name!r} and {right.name!r} have different values")
        return CompareFields(left, operator, right)

    def _between(self, node: exp.Between) -> Condition:
        if node.args.get("symmetric"):
            raise _unsupported(node)
        field = self._field(_bare(node.this))
        low = self._compare(field, Operator.GREATER_EQUAL, _bare(node.args["low"]))
        return All((low, self._compare(field, Operator.LESS_EQUAL, _bare(node.args["high"]))))

    def _in(self, node: exp.In) -> Condition:
        if not node.expressions or any(node.args.get(key) for key in ("query", "unnest", "field", "is_global")):
            raise _unsupported(node)
        field = self._field(_bare(node.this))
        return Any(tuple(self._compare(field, Operator.EQUAL, _bare(item)) for item in node.expressions))

    def _like(self, node: exp.Like) -> Condition:
        field, pattern = self._field(_bare(node.this)), _bare(node.expression)
        if field.type != "text":
            raise FilterExpressionError(f"{field.name!r} is {field.type_text}", hint="LIKE needs a text")
        if not (isinstance(pattern, exp.Literal) and pattern.is_string):
            raise _unsupported(node)
        text_constant(field, pattern.this)
        return Like(field, pattern.this)

    def _is(self, node: exp.Is) -> Condition:
        if not isinstance(node.expression, exp.Null):
            raise _unsupported(node)
        return IsMissing(self._field(_bare(node.this)))

    def _has(self, node: exp.Anonymous) -> Condition:
        arguments = [_bare(argument) for argument in node.expressions]
        if str(node.this).lower() != "has" or len(arguments) != 2:
            raise _unsupported(node)
        field, name = self._field(arguments[0]), arguments[1]
        if field.type != "flags":
            raise FilterExpressionError(f"{field.name!r} is {field.type_text}", hint="has() needs flags")
        if not (isinstance(name, exp.Literal) and name.is_string):
            raise _unsupported(node)
        if name.this not in field.bits:
            raise FilterExpressionError(
                f"{field.name!r} has no flag {name.this!r}", hint=close_match(name.this, field.bits, "flags")
            )
        return HasFlag(field, 1 << field.bits[name.this])

    def _field(self, node: exp.Expression) -> Field:
        if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier) or len(node.parts) != 1:
            raise _unsupported(node)
        name = node.name.lower()  # case-insensitive, as in Spark
        field = self._model.fields_by_name.get(name)
        if field is None:
            raise FilterExpressionError(
                f"model {self._model.name!r} has no field {node.name!r}",
                hint=close_match(name, self._model.fields_by_name, "fields"),
            )
        return field


def _operands(node: exp.Expression, kind: type[exp.Expression]) -> list[exp.Expression]:
    """Return the operands of a chain, which sqlglot nests to the left, without recursion."""
    operands = []
    while isinstance(node, kind):
        operands.append(node.expression)
        node = node.this
    return [node, *reversed(operands)]


def _bare(node: exp.Expression) -> exp.Expression:
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def _constant(field: Field, node: exp.Expression) -> Constant:
    if isinstance(node, exp.Null):
        raise FilterExpressionError(f"{field.name!r} compared with NULL is never true", hint="write IS NULL")
    if isinstance(node, exp.Cast) and type(node) is exp.Cast and isinstance(node.this, exp.Literal):
        if node.to.this in (exp.DataType.Type.TIMESTAMP, exp.DataType.Type.TIMESTAMPTZ) and node.this.is_string:
            return timestamp_constant(field, node.this.this)
        raise _unsupported(node)
    sign = ""
    if isinstance(node, exp.Neg):
        sign, node = "-", node.this
    if not isinstance(node, exp.Literal) or (node.is_string and sign):
        raise _unsupported(node)
    return text_constant(field, node.this) if node.is_string else number_constant(field, sign + node.this)


def _comparison_kind(field: Field) -> str:
    if field.type in NUMBER_TYPES:
        return "number"
    if field.type in FLOAT_TYPES:
        return "float"
    if field.type == "flags":
        raise FilterExpressionError(f"{field.name!r} is flags", hint=f"write has({field.name}, 'name')")
    return field.type


def _check_enum_operator(field: Field, operator: Operator) -> None:
    if operator not in (Operator.EQUAL, Operator.UNEQUAL):
        raise FilterExpressionError(f"{field.name!r} is an enum, which has no order", hint="write =, <> or IN")


def _unsupported(node: exp.Expression) -> FilterExpressionError:
    try:
        shown = node.sql(dialect="spark")
    except (SqlglotError, ValueError, RecursionError, AttributeError, TypeError):
        shown = type(node).__name__
    # Adjacent texts are concatenated in Spark and in sqlglot: 'O''Neil' is ONeil, which is hardly intended.
    hint = APOSTROPHE if node.find(exp.Concat) else SUPPORTED
    return FilterExpressionError(f"{shown[:80]!r} is not supported", hint=hint)
