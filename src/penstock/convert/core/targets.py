"""Where a value can go: a field of a model, or an argument of a verb. And the verbs there are."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from penstock.convert.books._units import HOURS_ENDED, HOURS_EXTENDED, HOURS_REGULAR
from penstock.convert.core.functions import BUILTINS, PRICE_DECIMALS, Site, apply_function, as_number, packed, rescale
from penstock.convert.core.registers import NUMBER_MAX, NUMBER_MIN, Value
from penstock.convert.kernel import _program as c
from penstock.model import Field, shipped


@dataclass(frozen=True)
class Target:
    """What a place accepts. A `size` is that of a text; the other kinds of target have bounds."""

    size: int = 0
    low: int = NUMBER_MIN
    high: int = NUMBER_MAX
    decimals: int | None = None
    optional: bool = False
    is_float: bool = False
    is_packed: bool = False
    """A text of at most 8 bytes that travels in a number."""
    names: dict[str, int] | None = None
    is_quantity: bool = False
    """Nothing is rounded: an integer is a quantity without decimals, more decimals than the target's are refused."""


def field_target(model_field: Field) -> Target:
    """What a field of a model accepts."""
    if model_field.type == "text":
        return Target(size=model_field.size, optional=True)
    if model_field.storage[0] == "f":
        return Target(is_float=True, optional=model_field.optional)
    low, high = model_field.bounds
    names = model_field.values or {name: 1 << bit for name, bit in model_field.bits.items()} or None
    decimals = model_field.decimals if model_field.type in ("price", "quantity") else None
    return Target(
        low=low,
        high=high,
        decimals=decimals,
        optional=model_field.optional,
        names=names,
        is_quantity=model_field.type == "quantity",
    )


def fit(site: Site, value: Value, target: Target) -> Value:
    """The value as the target takes it, checked where it might not fit."""
    if target.is_packed:
        return _fit_size(site, packed(site, value), target.size)
    if target.size:
        if not value.is_text:
            raise site.refuse("needs a text, not a number")
        return _fit_size(site, value, target.size)
    if target.is_float:
        return value if value.kind == c.KIND_FLOAT else BUILTINS["float"](site, value, ())
    return _fit_number(site, value, target)


def _fit_number(site: Site, value: Value, target: Target) -> Value:
    if value.kind == c.KIND_PACKED and target.names is None and value.size_max == 1:
        value = Value(c.KIND_NUMBER, value.register, 0, 255, is_pure=value.is_pure)  # the character's code
    if value.names is not None and target.names is not None and value.names is not target.names:
        other = {name: number for name, number in value.names.items() if target.names.get(name) != number}
        if other:
            raise site.refuse(f"its values are other ones: {', '.join(sorted(other))}", hint="a map() translates them")
    if value.kind == c.KIND_UNSIGNED and target.high >= 2**64 - 1:
        return value
    value = as_number(site, value)
    if target.is_quantity:
        value = _fit_quantity(site, value, target.decimals or 0)
    elif target.decimals is not None:
        value = rescale(site, value, target.decimals)
    elif value.decimals:
        raise site.refuse(
            f"the value has {value.decimals} decimals, where it goes has none",
            hint="round(0) rounds it, if that is meant; rescale(0) takes whole values only",
        )
    if value.optional and not target.optional:
        if not value.is_pure:
            raise site.refuse("the value may be missing, where it goes cannot")
        site.code.check(value, c.CODE_CHECK_PRESENT)
    if value.low < target.low or value.high > target.high:
        if not value.is_pure:
            raise site.refuse(f"the value may be beyond {target.low} to {target.high}")
        site.code.check(value, c.CODE_CHECK_RANGE, x=max(target.low, NUMBER_MIN), y=min(target.high, NUMBER_MAX))
    return value


def _fit_quantity(site: Site, value: Value, decimals: int) -> Value:
    if (value.decimals or 0) > decimals:
        raise site.refuse(
            f"the quantity has {value.decimals} decimals, where it goes has {decimals}: fractions would be lost",
            hint="quantity_decimals = 8 in the table, and models that end in _8, keep them",
        )
    return rescale(site, replace(value, decimals=value.decimals or 0), decimals)


def _fit_size(site: Site, value: Value, size: int) -> Value:
    if value.kind == c.KIND_PACKED:
        if value.size_max > size:
            if not value.is_pure:
                raise site.refuse(f"a text of {value.size_max} bytes does not fit {size}")
            site.code.check(value, c.CODE_CHECK_RANGE, x=0, y=(1 << 8 * size) - 1)
        return value
    if value.size_max == 0 or value.size_max > size:
        site.code.check(value, c.CODE_CHECK_SIZE, size=size)
    return value


@dataclass(frozen=True)
class Verb:
    """A change of the conversion state. Arguments in their order; those of `optional` can be left out."""

    code: int
    what: str
    arguments: dict[str, Target] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    finds_instrument: bool = False
    """The order tells the instrument, the message need not."""
    needs_instrument: bool = True
    gives: str = ""
    """The first part of the names of values that can be used after it."""
    has_event_time: bool = False


_STATUS = shipped("status").fields_by_name
_TRADE = shipped("trade").fields_by_name
_ORDER = Target(low=0, high=2**64 - 1)
_SIDE = Target(low=0, high=1, names={"buy": 0, "sell": 1})
_PRICE = Target(decimals=PRICE_DECIMALS)
_PRICE_OPTIONAL = Target(decimals=PRICE_DECIMALS, optional=True)
_QUANTITY = Target(low=0, is_quantity=True)
"""Has as many decimals as the table's quantities."""

_CONDITIONS = field_target(_TRADE["conditions"])
_BIT = Target(low=0, high=1)
_DECIMALS = Target(low=0, high=18, optional=True)
"""Of an instrument."""

_TRADE_ARGUMENTS = {"trade": _ORDER, "price": _PRICE, "quantity": _QUANTITY, "conditions": _CONDITIONS}

VERBS = {
    "define": Verb(
        c.CODE_DEFINE,
        "the instrument's reference data",
        {
            "round_lot": Target(low=0, high=2**32 - 1, optional=True),
            "price_decimals": _DECIMALS,
            "quantity_decimals": _DECIMALS,
        },
        frozenset({"round_lot", "price_decimals", "quantity_decimals"}),
    ),
    "order_add": Verb(
        c.CODE_ORDER_ADD,
        "a new order in the book",
        {
            "order": _ORDER,
            "side": _SIDE,
            "quantity": _QUANTITY,
            "price": _PRICE,
            "participant": Target(size=4, is_packed=True),
        },
        frozenset({"participant"}),
        gives="order",
    ),
    "order_execute": Verb(
        c.CODE_ORDER_TAKE,
        "part of an order, or all of it, is executed",
        {"order": _ORDER, "quantity": _QUANTITY},
        finds_instrument=True,
        gives="order",
    ),
    "order_cancel": Verb(
        c.CODE_ORDER_TAKE,
        "part of an order is taken back",
        {"order": _ORDER, "quantity": _QUANTITY},
        finds_instrument=True,
        gives="order",
    ),
    "order_delete": Verb(
        c.CODE_ORDER_DELETE, "an order is taken back", {"order": _ORDER}, finds_instrument=True, gives="order"
    ),
    "order_replace": Verb(
        c.CODE_ORDER_REPLACE,
        "an order goes and another takes its place",
        {"order": _ORDER, "new_order": _ORDER, "quantity": _QUANTITY, "price": _PRICE},
        finds_instrument=True,
        gives="order",
    ),
    "level_set": Verb(
        c.CODE_LEVEL_SET,
        "a price level as it is from now on; a quantity of 0 takes it away",
        {
            "side": _SIDE,
            "price": _PRICE,
            "quantity": _QUANTITY,
            "orders": Target(low=0, high=2**32 - 1),
            "complete": _BIT,
        },
        frozenset({"orders", "complete"}),
    ),
    "side_set": Verb(
        c.CODE_SIDE_SET,
        "the only level of a side, where a feed gives the best; a quantity of 0 takes it away",
        {"side": _SIDE, "price": _PRICE_OPTIONAL, "quantity": replace(_QUANTITY, optional=True)},
    ),
    "book_clear": Verb(c.CODE_BOOK_CLEAR, "all orders and levels of the instrument go"),
    "trade": Verb(
        c.CODE_TRADE,
        "a trade enters the day's statistics, as far as its conditions let it",
        {**_TRADE_ARGUMENTS, "by_hours": _BIT},
        frozenset({"conditions", "by_hours"}),
        gives="trade",
        has_event_time=True,
    ),
    "trade_break": Verb(
        c.CODE_TRADE_BREAK, "a trade is taken back", {"trade": _ORDER}, gives="trade", has_event_time=True
    ),
    "trade_correct": Verb(
        c.CODE_TRADE_CORRECT,
        "a trade was another one; it keeps its hours",
        _TRADE_ARGUMENTS,
        frozenset({"conditions"}),
        gives="trade",
        has_event_time=True,
    ),
    "status": Verb(
        c.CODE_STATUS,
        "what can be done with the instrument",
        {"state": field_target(_STATUS["state"]), "reason": Target(size=8, is_packed=True)},
        frozenset({"reason"}),
    ),
    "restriction": Verb(
        c.CODE_RESTRICTION,
        "a rule is in force, or no longer",
        {"rule": field_target(_STATUS["restrictions"]), "on": _BIT},
    ),
    "limits": Verb(
        c.CODE_LIMITS,
        "the prices between which trades are allowed",
        {"upper": _PRICE_OPTIONAL, "lower": _PRICE_OPTIONAL},
        frozenset({"upper", "lower"}),
    ),
    "phase": Verb(
        c.CODE_PHASE,
        "the feed's own code of where the day is",
        {
            "code": Target(low=0, high=2**63 - 1),
            "hours": Target(
                low=0,
                high=3,
                names={"regular": HOURS_REGULAR, "extended": HOURS_EXTENDED, "ended": HOURS_ENDED},
            ),
        },
        frozenset({"hours"}),
        needs_instrument=False,
    ),
}

__all__ = ["VERBS", "Target", "Verb", "apply_function", "field_target", "fit"]
