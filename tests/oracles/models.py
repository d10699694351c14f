"""Random message models, as TOML text, and random values for their fields, from the documentation of models."""

import math
import struct
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from penstock.model import Field, MessageModel

WIDTHS = {f"{kind}{bits}": (kind, bits) for kind in "iu" for bits in (8, 16, 32, 64)}
ENUM = {"buy": 1, "sell": 2, "x9": 255}
TYPES = [*WIDTHS, "f32", "f64", "price", "timestamp", "text", "enum", "flags"]


@st.composite
def models(draw: st.DrawFn) -> MessageModel:
    count = draw(st.integers(1, 8))
    version = draw(st.integers(1, 3))
    sinces = sorted(draw(st.lists(st.integers(1, version), min_size=count, max_size=count)))
    lines = ["id = 1", 'name = "random"', f"version = {version}"]
    for number, since in enumerate(sinces):
        # The eight integer types differ least.
        kind = draw(st.sampled_from(TYPES) | st.sampled_from(TYPES[len(WIDTHS) :]))
        lines += ["[[field]]", f'name = "field_{number}"', f'type = "{kind}"', f"since = {since}"]
        if kind != "flags" and draw(st.booleans()):
            lines.append("optional = true")
        if kind == "price":
            lines.append(f"decimals = {draw(st.integers(0, 18))}")
        if kind == "text":
            lines.append(f"size = {draw(st.integers(1, 20))}")
        if kind == "enum":
            lines.append("values = { buy = 1, sell = 2, x9 = 255 }")
        if kind == "flags":
            lines.append(f"bits = {{ a = 0, b = 1, z = {draw(st.integers(2, 31))} }}")
    return MessageModel.parse("\n".join(lines), "random model")


def values_of(field: Field) -> st.SearchStrategy[Any]:
    """Values as Message returns them; prices as exact Decimals."""
    values = _present_values_of(field)
    return st.none() | values if field.optional else values


def _present_values_of(field: Field) -> st.SearchStrategy[Any]:
    if field.type in WIDTHS or field.type in ("price", "quantity", "timestamp"):
        kind, bits = WIDTHS.get(field.type, ("i", 64))
        low, high = (0, 2**bits - 1) if kind == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        if field.optional:
            low, high = (low, high - 1) if kind == "u" else (low + 1, high)
        integers = st.integers(low, high) | st.sampled_from([low, high]) | st.integers(0, min(high, 1000))
        if field.is_decimal:
            return integers.map(lambda scaled: Decimal(f"{scaled}e-{field.decimals}"))
        return integers
    if field.type in ("f32", "f64"):
        numbers = st.floats(width=32 if field.type == "f32" else 64) | st.sampled_from([math.nan, math.inf, 0.0, -0.0])
        return numbers.filter(lambda number: not math.isnan(number)) if field.optional else numbers
    if field.type == "text":
        texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=field.size)
        fitting = texts.filter(lambda text: len(text.encode()) <= field.size)
        return fitting.filter(bool) if field.optional else fitting
    if field.type == "enum":
        return st.sampled_from(list(field.values))
    return st.frozensets(st.sampled_from(list(field.bits)))


@st.composite
def models_with_rows(
    draw: st.DrawFn, *, rows_max: int = 4, chosen: st.SearchStrategy[MessageModel] | None = None
) -> tuple[MessageModel, list[dict[str, Any]]]:
    model = draw(models() if chosen is None else chosen)
    row = st.fixed_dictionaries({field.name: values_of(field) for field in model.fields})
    return model, draw(st.lists(row, min_size=1, max_size=rows_max))


def same(left: Any, right: Any) -> bool:
    """Equal, with NaN equal to itself and the two zeros distinct."""
    if isinstance(left, float) and isinstance(right, float):
        if math.isnan(left) or math.isnan(right):
            return math.isnan(left) and math.isnan(right)
        return struct.pack("<d", left) == struct.pack("<d", right)
    return bool(left == right)
