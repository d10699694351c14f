"""Converter functions: what a table can do to a value. Those built in compile to operations; users add their own:

    from penstock.convert import converter_function

    @converter_function("lots", gives="number")
    def lots(shares: int, size: str) -> int:
        return shares // int(size)

A table then says `quantity = "shares | lots(100)"`. A function is given the value (an int, a float or a str; None if it
is missing) and the arguments as the table spells them. It must depend on nothing else: adapters that convert the same
messages must come to the same results.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from types import CodeType
from typing import Any, Literal, TypeVar

from penstock.base.errors import TableError
from penstock.base.extensions import load_entry_points
from penstock.convert.core.names import guess
from penstock.convert.core.registers import NUMBER_MAX, NUMBER_MIN, Code, Value, op, pack
from penstock.convert.kernel import _program as c

UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}

PRICE_DECIMALS = 8
"""Of all prices in the conversion state."""

Maps = dict[str, dict[str, str | int | list[str]]]


@dataclass
class Site:
    """Where a function is used: what it may need besides the value."""

    code: Code
    where: str
    names: dict[str, int] | None
    """What the numbers of the target are called."""
    maps: Maps
    bits: Maps
    compiled_maps: list[tuple[dict[int, int], int | None]]
    functions: list[tuple[Callable[..., Any], tuple[str, ...]]]
    quantity_decimals: int = 0
    """Of the table's quantities."""

    def refuse(self, what: str, hint: str = "") -> TableError:
        return TableError(what, where=self.where, hint=hint)


Builtin = Callable[[Site, Value, tuple[str, ...]], Value]


@dataclass(frozen=True)
class UserFunction:
    call: Callable[..., Any]
    gives: Literal["number", "float", "text"]
    decimals: int | None


_USER: dict[str, UserFunction] = {}
_F = TypeVar("_F", bound=Callable[..., Any])


def converter_function(
    name: str, *, gives: Literal["number", "float", "text"], decimals: int | None = None
) -> Callable[[_F], _F]:
    """Register a function for tables. `gives` says what it returns, `decimals` how many a number of it has."""

    def register(function: _F) -> _F:
        if name in BUILTINS or not name.isidentifier():
            raise TableError(f"a function cannot be called {name!r}", hint="names of built-in functions are taken")
        _USER[name] = UserFunction(function, gives, decimals)
        return function

    return register


def apply_function(site: Site, value: Value, name: str, arguments: tuple[str, ...]) -> Value:
    if name in BUILTINS:
        return BUILTINS[name](site, value, arguments)
    if name not in _USER:
        load_entry_points()
    if name in _USER:
        return _call(site, value, _USER[name], arguments)
    raise site.refuse(f"there is no function {name!r}", hint=guess(name, [*BUILTINS, *_USER]))


def function_identity(call: Callable[..., Any]) -> bytes:
    """Changes when the function's code does: the constants in it count as well as its instructions."""
    code = getattr(call, "__code__", None)
    name = f"{getattr(call, '__module__', '')}.{getattr(call, '__qualname__', '')}"
    return name.encode() if not isinstance(code, CodeType) else b"\0".join([name.encode(), *_code_parts(code)])


def _code_parts(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr((code.co_names, code.co_varnames)).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_parts(constant)  # its repr has an address
        else:
            yield repr(constant).encode()


def as_number(site: Site, value: Value) -> Value:
    """An integer of less than 64 bits and a sign; texts and floats are refused."""
    if value.kind == c.KIND_UNSIGNED:
        site.code.check(value, c.CODE_CHECK_RANGE, x=0, y=NUMBER_MAX)
        return Value(c.KIND_NUMBER, value.register, 0, NUMBER_MAX, value.decimals, is_pure=value.is_pure)
    if value.kind != c.KIND_NUMBER:
        kind = "a text" if value.is_text else "a float"
        raise site.refuse(f"needs an integer, not {kind}", hint="number or decimal(8) read one from a text")
    return value


def packed(site: Site, value: Value) -> Value:
    """A text of at most 8 bytes, in a number; longer ones are malformed."""
    if value.kind == c.KIND_TEXT:
        return site.code.derive(value, c.CODE_PACK, kind=c.KIND_PACKED, size_max=8)
    if value.kind != c.KIND_PACKED:
        raise site.refuse("needs a text, not a number")
    return value


def rescale(site: Site, value: Value, decimals: int) -> Value:
    """The same value with another number of decimals; a message whose value would lose digits is malformed."""
    return _rescaled(site, value, decimals, c.CODE_DIVIDE)


def _rescaled(site: Site, value: Value, decimals: int, divide: int) -> Value:
    value = as_number(site, value)
    if value.decimals is None:
        raise site.refuse("the value has no decimals", hint="decimals(4) says that it has four")
    power = 10 ** abs(decimals - value.decimals)
    if decimals == value.decimals:
        return value
    if decimals > value.decimals:
        low, high = max(value.low * power, NUMBER_MIN), min(value.high * power, NUMBER_MAX)
        return site.code.derive(value, c.CODE_MULTIPLY, x=power, low=low, high=high, decimals=decimals)
    return site.code.derive(value, divide, x=power, decimals=decimals)


def exactly_scaled(site: Site, text: str, decimals: int) -> int:
    """A decimal number in a table as a scaled integer. ValueError if it is none."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise ValueError(text) from None
    if not number.is_finite():
        raise ValueError(text)
    scaled = Fraction(number) * 10**decimals
    if scaled.denominator != 1:
        raise site.refuse(f"{text} has more than {decimals} decimals", hint="it would be rounded")
    return int(scaled)


def resolve(names: dict[str, int] | None, given: str | int | list[str], where: str) -> int:
    """The number meant: a number, a name of the target's, or several names of flags together."""
    total = 0
    for each in given if isinstance(given, list) else [given]:
        if isinstance(each, int):
            total |= each
        elif names is not None and each in names:
            total |= names[each]
        elif each.lstrip("-").isdigit():
            total |= int(each)
        elif names is None:
            raise TableError(f"{each!r} means nothing here", where=where, hint="a number is expected")
        else:
            raise TableError(f"{each!r} is none of its values", where=where, hint=guess(each, names))
    return total


# The built-in functions


def _widen(site: Site, value: Value, arguments: tuple[str, ...]) -> Value:
    bits = _integer(site, "widen", arguments, 8, 64)
    low, high = -(1 << bits - 1) + (bits == 64), (1 << bits - 1) - 1
    if value.kind == c.KIND_UNSIGNED and bits == 64:
        return value
    if value.kind != c.KIND_NUMBER or value.low < low or value.high > high:
        raise site.refuse(f"the value does not fit {bits} bits")
    return value


def _trim(site: Site, value: Value, arguments: tuple[str, ...]) -> Value:
    _no_arguments(site, "trim", arguments)
    if value.kind == c.KIND_PACKED:
        return value  # it has no padding any more
    return site.code.derive(_text(site, value), c.CODE_TRIM)


def _number(site: Site, value: Value, arguments: tuple[str, ...]) -> Value:
    _no_arguments(site, "number", arguments)
    return site.code.derive(_text(site, value), c.CODE_NUMBER, kind=c.KIND_NUMBER, optional=True)


def _decimal(site: Site, value: Value, arguments: tuple[str, ...]) -> Value:
    decimals = _integer(site, "decimal", arguments, 1, 18)
    known = {"kind": c.KIND_NUMBER, "optional": True, "decimals": decimals}
    return site.code.derive(_text(site, value), c.CODE_DECIMAL, size=decimals, **known)


def _quantity(site: Site, value: Value, arguments: tuple[str, ...]) -> Value:
    """A text as a quantity with as many decimals as the table's have; none of them is rounded away."""
    _no_arguments(site, "quantity", arguments)
    if site.quantity_decimals:
        return _decimal(site, value, (str(site.quantity_decimals),))
    return _number(site, value, ())


def _float(site: Site, value: Value, arguments: tuple[str, ...]) -> Value:
    _no_arguments(site, "float", arguments)
    if value.is_text:
        return site.code.derive(_text(site, value), c.CODE_FLOAT_OF_TEXT, kind=c.KIND_FLOAT, optional=True)
    if value.kind == c.KIND_FLOAT:
        return value
    number = as_number(site, value)
    power = 10 ** (number.decimals or 0)
    return site.code.derive(number, c.CODE_FLOAT_OF_NUMBER, x=power, kind=c.KIND_FLOAT, decimals=None)


def _decimals(site: Site, value: Value, arguments: tuple[str, ...]) -> Value:
    decimals = _integer(site, "decimals", arguments, 0, 18)
    value = as_number(site, value)
    return Value(**{**value.__dict__, "decimals": decimals})


def _rescale(site: Site, value: Value, arguments: tuple[str, ...]) -> Value:
    return rescale(site, value, _integer(site, "rescale", arguments, 0, 18))


def _round(site: Site, value: Value, arguments: tuple[str, ...]) -> Value:
    """The value with at most so many decimals, rounded, halves away from zero: the only function that rounds."""
    decimals = _integer(site, "round", arguments, 0, 18)
    value = as_number(site, value)
    return value if (value.decimals or 0) <= decimals else _rescaled(site, value, decimals, c.CODE_ROUND)


def _instrument_decimals(site: Site, value: Value, arguments: tuple[str, ...]) -> Value:
    """An integer that has the decimals of its instrument's prices or quantities, as the state has them."""
    if arguments not in (("price",), ("quantity",)):
        raise site.refuse("instrument_decimals() needs to know what the value is", hint="price or quantity")
    value = as_number(site, value)
    if value.decimals:
        raise site.refuse(f"the value has {value.decimals} decimals already", hint="leave the format's decimals out")
    is_quantity = arguments == ("quantity",)
    decimals = site.quantity_decimals if is_quantity else PRICE_DECIMALS
    low = 0 if value.low >= 0 else NUMBER_MIN
    register = site.code.new_register(c.KIND_NUMBER)
    site.code.steps.append(op(c.CODE_SCALE, value.register, int(is_quantity), to=register, x=decimals))
    return replace(value, register=register, low=low, high=NUMBER_MAX, decimals=decimals, is_pure=False)


def _increment(site: Site, value: Value, arguments: tuple[str, ...]) -> Value:
    step = _integer(site, "increment", arguments or ("1",), NUMBER_MIN, NUMBER_MAX)
    value = as_number(site, value)
    low, high = max(value.low + step, NUMBER_MIN), min(value.high + step, NUMBER_MAX)
    return site.code.derive(value, c.CODE_ADD, x=step, low=low, high=high, names=None)


def _multiply(site: Site, value: Value, arguments: tuple[str, ...]) -> Value:
    factor = _integer(site, "multiply", arguments, 1, 10**18)
    value = as_number(site, value)
    low, high = max(value.low * factor, NUMBER_MIN), min(value.high * factor, NUMBER_MAX)
    return site.code.derive(value, c.CODE_MULTIPLY, x=factor, low=low, high=high, names=None)


def _bit(site: Site, value: Value, arguments: tuple[str, ...]) -> Value:
    number = _integer(site, "bit", arguments, 0, 62)
    return site.code.derive(as_number(site, value), c.CODE_BIT, x=number, low=0, high=1, names=None)


def _epoch(site: Site, value: Value, arguments: tuple[str, ...]) -> Value:
    """A time since 1970 in the unit given, in nanoseconds."""
    unit = _unit(site, "epoch", arguments)
    return as_number(site, value) if unit == 1 else _multiply(site, value, (str(unit),))


def _since_midnight(site: Site, value: Value, arguments: tuple[str, ...]) -> Value:
    """A time since midnight of the trading date in the unit given, in nanoseconds since 1970."""
    value = _epoch(site, value, arguments)
    return site.code.derive(value, c.CODE_ADD_DAY, low=NUMBER_MIN, high=NUMBER_MAX)


def _symbol(site: Site, value: Value, arguments: tuple[str, ...]) -> Value:
    _no_arguments(site, "symbol", arguments)
    if value.kind == c.KIND_TEXT:
        value = site.code.derive(value, c.CODE_KEY, kind=c.KIND_UNSIGNED)
    made = Value(c.KIND_TEXT, site.code.new_register(c.KIND_TEXT), is_pure=False, size_max=16)
    site.code.steps.append(op(c.CODE_SYMBOL, value.register, to=made.register))
    return made


def _map(site: Site, value: Value, arguments: tuple[str, ...]) -> Value:
    """The number that a map of the table gives for the value; `otherwise` is for those that are not in it."""
    given = _table_of(site, "map", arguments, site.maps)
    if value.kind == c.KIND_TEXT:
        value = packed(site, value)
    is_text = site.names is None and any(isinstance(to, str) and not _is_number(to) for to in given.values())

    def number_of(to: Any) -> int:
        return _packed_text(site, to) if is_text else resolve(site.names, to, site.where)

    numbers = {_key(site, key, value): number_of(to) for key, to in given.items() if key != "otherwise"}
    otherwise = number_of(given["otherwise"]) if "otherwise" in given else None
    found = _look_up(site, value, numbers, otherwise)
    return replace(found, kind=c.KIND_PACKED, size_max=8) if is_text else found


def _is_number(text: str) -> bool:
    try:
        int(text, 0)
    except ValueError:
        return False
    return True


def _packed_text(site: Site, to: Any) -> int:
    if not isinstance(to, str) or len(to.encode()) > 8:
        raise site.refuse(f"{to!r} is no text of at most 8 bytes, as other values of the map are")
    return pack(to.encode())


def _bits(site: Site, value: Value, arguments: tuple[str, ...]) -> Value:
    """The flags that a value's bits stand for; bits that the table does not name say nothing."""
    given = _table_of(site, "bits", arguments, site.bits)
    value = as_number(site, value)
    if value.high > 255 or value.low < 0:
        raise site.refuse("bits() needs a field of one byte")
    flags = {_mask(site, key): resolve(site.names, to, site.where) for key, to in given.items()}
    numbers = {}
    for byte in range(256):
        numbers[byte] = 0
        for mask, flag in flags.items():
            numbers[byte] |= flag if byte & mask else 0
    return _look_up(site, value, numbers, 0)


BUILTINS: dict[str, Builtin] = {
    "widen": _widen,
    "trim": _trim,
    "number": _number,
    "decimal": _decimal,
    "quantity": _quantity,
    "float": _float,
    "decimals": _decimals,
    "rescale": _rescale,
    "round": _round,
    "instrument_decimals": _instrument_decimals,
    "increment": _increment,
    "multiply": _multiply,
    "bit": _bit,
    "epoch": _epoch,
    "since_midnight": _since_midnight,
    "symbol": _symbol,
    "map": _map,
    "bits": _bits,
}


def _call(site: Site, value: Value, function: UserFunction, arguments: tuple[str, ...]) -> Value:
    kind = {"number": c.KIND_NUMBER, "float": c.KIND_FLOAT, "text": c.KIND_TEXT}[function.gives]
    made = Value(
        kind,
        site.code.new_register(kind),
        decimals=function.decimals,
        optional=kind != c.KIND_TEXT,
        is_pure=value.is_pure,
    )
    made_op = op(c.CODE_CALL, value.register, value.kind, kind, to=made.register, x=len(site.functions))
    site.functions.append((function.call, arguments))
    site.code.add(made_op, value.is_pure)
    return made


def _look_up(site: Site, value: Value, numbers: dict[int, int], otherwise: int | None) -> Value:
    is_byte = value.size_max == 1 if value.kind == c.KIND_PACKED else value.high <= 255 and value.low >= 0
    found = [*numbers.values(), *([] if otherwise is None else [otherwise])]
    site.compiled_maps.append((numbers, otherwise))
    return site.code.derive(
        value,
        c.CODE_LOOKUP if is_byte and not value.optional else c.CODE_LOOKUP_KEY,
        x=len(site.compiled_maps) - 1,
        kind=c.KIND_NUMBER,
        low=min(found, default=0),
        high=max(found, default=0),
        decimals=None,
        names=site.names,
    )


def _key(site: Site, key: str, value: Value) -> int:
    """A map's key as the number that the register has for it."""
    if value.names is not None and key in value.names:
        return value.names[key]
    if value.kind == c.KIND_PACKED:
        if len(key.encode()) > 8:
            raise site.refuse(f"key {key!r} has more than 8 bytes")
        return pack(key.encode())
    try:
        return int(key, 0) % 2**64
    except ValueError:
        raise site.refuse(f"key {key!r} is no number, as the value is", hint=guess(key, value.names or {})) from None


def _mask(site: Site, key: str) -> int:
    try:
        mask = int(key, 0)
    except ValueError:
        mask = 0
    if not 1 <= mask <= 255:
        raise site.refuse(f"key {key!r} is no mask of bits", hint='like "0x80"')
    return mask


def _table_of(site: Site, function: str, arguments: tuple[str, ...], tables: Maps) -> dict[str, Any]:
    if len(arguments) != 1:
        raise site.refuse(f"{function}() needs one name", hint=guess("", tables))
    if arguments[0] not in tables:
        raise site.refuse(f"there is no [{function}.{arguments[0]}]", hint=guess(arguments[0], tables))
    return tables[arguments[0]]


def _text(site: Site, value: Value) -> Value:
    if value.kind == c.KIND_TEXT:
        return value
    raise site.refuse("needs a text that is read as one", hint="a number has its value already")


def _integer(site: Site, function: str, arguments: tuple[str, ...], low: int, high: int) -> int:
    try:
        (number,) = (int(each, 0) for each in arguments)
    except ValueError:
        raise site.refuse(f"{function}() needs one whole number, got ({', '.join(arguments)})") from None
    if not low <= number <= high:
        raise site.refuse(f"{function}({number}) is not within {low} to {high}")
    return number


def _unit(site: Site, function: str, arguments: tuple[str, ...]) -> int:
    unit = arguments[0] if arguments else "ns"
    if len(arguments) > 1 or unit not in UNITS_NS:
        raise site.refuse(f"{function}() has no unit {', '.join(arguments)!r}", hint=guess(unit, UNITS_NS))
    return UNITS_NS[unit]


def _no_arguments(site: Site, function: str, arguments: tuple[str, ...]) -> None:
    if arguments:
        raise site.refuse(f"{function} has no arguments")
