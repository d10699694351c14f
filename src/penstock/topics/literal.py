"""Literals of filter expressions, as exact constants for comparisons."""

import difflib
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from fractions import Fraction

from penstock.base.errors import FilterExpressionError
from penstock.model import Field
from penstock.topics.condition import Constant

# Within these limits, Spark's decimals compare every literal exactly with every integer and price; beyond them, Spark
# rounds, and the same text would select different records.
WHOLE_DIGITS_MAX = 20
FRACTION_DIGITS_MAX = 18

NUMBER = re.compile(r"-?(\d*)(?:\.(\d*))?([eE][+-]?\d+)?", re.ASCII)
TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?)?\s*(Z|UTC|[+-]\d\d:\d\d)?", re.ASCII)
NUMBER_TYPES = {"i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "price", "quantity", "timestamp"}
FLOAT_TYPES = {"f32", "f64"}


def number_constant(field: Field, text: str) -> Constant:
    """Return the constant for a number literal with its sign."""
    match = NUMBER.fullmatch(text)
    if match is None or not (match[1] or match[2]):
        raise FilterExpressionError(f"{text!r} is not a number", hint="write a number such as 100, 99.95 or 1e-3")
    if field.type in FLOAT_TYPES:
        return float(text)
    if field.type not in NUMBER_TYPES:
        raise _mismatch(field, text, "a number")
    if match[3]:
        raise FilterExpressionError(
            f"{text} has an exponent, but {field.name!r} is compared exactly",
            hint="write the number without an exponent, such as 99.95",
        )
    if len(match[1].lstrip("0")) > WHOLE_DIGITS_MAX or len((match[2] or "").rstrip("0")) > FRACTION_DIGITS_MAX:
        raise FilterExpressionError(
            f"the number {text[:40]} has too many digits",
            hint=f"the limits are {WHOLE_DIGITS_MAX} before the point and {FRACTION_DIGITS_MAX} after it",
        )
    return Fraction(text) * Fraction(10**field.decimals)


def text_constant(field: Field, text: str) -> Constant:
    """Return the constant for a string literal."""
    if field.type == "enum":
        if text not in field.values:
            raise FilterExpressionError(
                f"{field.name!r} is never {text!r}", hint=close_match(text, field.values, "values")
            )
        return Fraction(field.values[text])
    if field.type != "text":
        raise _mismatch(field, repr(text), "a text")
    if "\0" in text:
        raise FilterExpressionError(f"the text compared with {field.name!r} has a NUL character")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise FilterExpressionError(f"the text compared with {field.name!r} is not valid Unicode") from None


def timestamp_constant(field: Field, text: str) -> Constant:
    """Return the constant for TIMESTAMP 'text': nanoseconds since 1970, in UTC unless the text has another zone."""
    if field.type != "timestamp":
        raise _mismatch(field, f"TIMESTAMP {text!r}", "a timestamp")
    match = TIMESTAMP.fullmatch(text.strip())
    try:
        if match is None:
            raise ValueError
        zone = "+00:00" if match[4] in (None, "Z", "UTC") else match[4]
        moment = datetime.fromisoformat(f"{match[1]}T{match[2] or '00:00:00'}{zone}")
        since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError):
        raise FilterExpressionError(
            f"{text!r} is not a timestamp", hint="write it as in TIMESTAMP '2024-03-28 14:30:00.000000001'"
        ) from None
    return Fraction((since.days * 86_400 + since.seconds) * 10**9 + int((match[3] or "").ljust(9, "0")))


def close_match(name: str, names: Iterable[str], otherwise: str) -> str:
    """Return a hint: the probably intended name, else all names."""
    names = list(names)
    near = difflib.get_close_matches(name.lower(), names, n=1)
    shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return f"did you mean {near[0]!r}?" if near else f"{otherwise}: {shown}"


def _mismatch(field: Field, literal: str, kind: str) -> FilterExpressionError:
    expected = {
        "text": "a text such as 'IBM'",
        "enum": f"one of: {', '.join(field.values)}",
        "flags": f"has({field.name}, 'name')",
        "timestamp": "nanoseconds, or TIMESTAMP '2024-03-28 14:30:00'",
    }.get(field.type, "a number")
    return FilterExpressionError(
        f"{field.name!r} is {field.type_text}, {literal[:60]} is {kind}", hint=f"compare it with {expected}"
    )
