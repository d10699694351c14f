"""Converter functions, which a table applies to values. Built-in functions compile to operations; users register their
own:

    from penstock.convert import converter_function

    @converter_function("lots", gives="number")
    def lots(shares: int, size: str) -> int:
        return shares // int(size)

A table then says `quantity = "shares | lots(100)"`. A function receives the value (an int, a float or a str; None if
missing) and the arguments as text. The result must depend on nothing else, because adapters that convert the same
messages must compute the same results.
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
"""Decimals of all prices in the conversion state."""

Maps = dict[str, dict[str, str | int | list[str]]]


@dataclass
class Site:
    """The place where a function is used, with the data that it may need besides the value."""

    code: Code
    where: str
    names: dict[str, int] | None
    """Names of the target's values."""
    maps: Maps
    bits: Maps
    compiled_maps: list[tuple[dict[int, int], int | None]]
    functions: list[tuple[Callable[..., Any], tuple[str, ...]]]
    quantity_decimals: int = 0
    """Decimals of the table's quantities."""

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
    """Register a function for tables. `gives` is the kind of the result, `decimals` the decimals of a numeric
    result.
    """

    def register(function: _F) -> _F:
        if name in BUILTINS or not name.isidentifier():
            raise TableError(f"invalid function name {name!r}", hint="use a name that is not a built-in function")
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
    raise site.refuse(f"unknown function {name!r}", hint=guess(name, [*BUILTINS, *_USER]))


def function_identity(call: Callable[..., Any]) -> bytes:
    """Return a hash of the function's code: instructions and constants."""
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
    """Require an integer of at most 64 bits including the sign; refuse texts and floats."""
    if value.kind == c.KIND_UNSIGNED:
        site.code.check(value, c.CODE_CHECK_RANGE, x=0, y=NUMBER_MAX)
        return Value(c.KIND_NUMBER, value.register, 0, NUMBER_MAX, value.decimals, is_pure=value.is_pure)
    if value.kind != c.KIND_NUMBER:
        kind = "a text" if value.is_text else "a float"
        raise site.refuse(f"needs an integer, not {kind}", hint="number or decimal(8) parse a text")
    return value


def packed(site: Site, value: Value) -> Value:
    """Convert a text of at most 8 bytes to a number; longer ones are malformed."""
    if value.kind == c.KIND_TEXT:
        return site.code.derive(value, c.CODE_PACK, kind=c.KIND_PACKED, size_max=8)
    if value.kind != c.KIND_PACKED:
        raise site.refuse("needs a text, not a number")
    return value


def rescale(site: Site, value: Value, decimals: int) -> Value:
    """Change the number of decimals; a message whose value would lose digits is malformed."""
    return _rescaled(site, value, decimals, c.CODE_DIVIDE)


def _rescaled(site: Site, value: Value, decimals: int, divide: int) -> Value:
    value = as_number(site, value)
    if value.decimals is None:
        raise site.refuse("the value has no decimals", hint="declare them, for example with decimals(4)")
    power = 10 ** abs(decimals - value.decimals)
    if decimals == value.decimals:
        return value
    if decimals > value.decimals:
        low, high = max(value.low * power, NUMBER_MIN), min(value.high * power, NUMBER_MAX)
        return site.code.derive(value, c.CODE_MULTIPLY, x=power, low=low, high=high, decimals=decimals)
    return site.code.derive(value, divide, x=power, decimals=decimals)


def exactly_scaled(site: Site, text: str, decimals: int) -> int:
    """Parse a decimal number in a table to a scaled integer. Raises ValueError for other text."""
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
    """Return the number for a number, for a name of the target's values, or for several flag names combined."""
    total = 0
    for each in given if isinstance(given, list) else [given]:
        if isinstance(each, int):
            total |= each
        elif names is not None and each in names:
            total |= names[each]
        elif each.lstrip("-").isdigit():
            total |= int(each)
        elif names is None:
            raise TableError(f"{each!r} is not a number", where=where, hint="use a number")
        else:
            raise TableError(f"{each!r} is not one of the target's values", where=where, hint=guess(each, names))
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
    """Parse a text to a quantity with the table's decimals; no decimal is rounded away."""
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
    """Round half away from zero to at most this number of decimals; the only function that rounds."""
    decimals = _integer(site, "round", arguments, 0, 18)
    value = as_number(site, value)
    return value if (value.decimals or 0) <= decimals else _rescaled(site, value, decimals, c.CODE_ROUND)


def _instrument_decimals(site: Site, value: Value, arguments: tuple[str, ...]) -> Value:
    """Declare that an integer has the decimals of its instrument's prices or quantities, as stored in the state."""
    if arguments not in (("price",), ("quantity",)):
        raise site.refuse("instrument_decimals() needs an argument", hint="use price or quantity")
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
    """Convert a time since 1970 in the given unit to nanoseconds."""
    unit = _unit(site, "epoch", arguments)
    return as_number(site, value) if unit == 1 else _multiply(site, value, (str(unit),))


def _since_midnight(site: Site, value: Value, arguments: tuple[str, ...]) -> Value:
    """Convert a time since midnight of the trading date in the given unit to nanoseconds since 1970."""
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
    """Look up the value in a map of the table; `otherwise` applies to unmapped values."""
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
        raise site.refuse(f"{to!r} is not a text of at most 8 bytes, unlike other values of the map")
    return pack(to.encode())


def _bits(site: Site, value: Value, arguments: tuple[str, ...]) -> Value:
    """Map the bits of a value to flags; bits that the table does not name are ignored."""
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
    """Return a map's key as the number in a register."""
    if value.names is not None and key in value.names:
        return value.names[key]
    if value.kind == c.KIND_PACKED:
        if len(key.encode()) > 8:
            raise site.refuse(f"key {key!r} is longer than 8 bytes")
        return pack(key.encode())
    try:
        return int(key, 0) % 2**64
    except ValueError:
        raise site.refuse(
            f"key {key!r} is not a number, unlike the value", hint=guess(key, value.names or {})
        ) from None


def _mask(site: Site, key: str) -> int:
    try:
        mask = int(key, 0)
    except ValueError:
        mask = 0
    if not 1 <= mask <= 255:
        raise site.refuse(f"key {key!r} is not a bit mask", hint='for example "0x80"')
    return mask


def _table_of(site: Site, function: str, arguments: tuple[str, ...], tables: Maps) -> dict[str, Any]:
    if len(arguments) != 1:
        raise site.refuse(f"{function}() needs one name", hint=guess("", tables))
    if arguments[0] not in tables:
        raise site.refuse(f"unknown [{function}.{arguments[0]}]", hint=guess(arguments[0], tables))
    return tables[arguments[0]]


def _text(site: Site, value: Value) -> Value:
    if value.kind == c.KIND_TEXT:
        return value
    raise site.refuse("the function needs a text", hint="a number needs no conversion")


def _integer(site: Site, function: str, arguments: tuple[str, ...], low: int, high: int) -> int:
    try:
        (number,) = (int(each, 0) for each in arguments)
    except ValueError:
        raise site.refuse(f"{function}() needs one integer, got ({', '.join(arguments)})") from None
    if not low <= number <= high:
        raise site.refuse(f"{function}({number}) is outside {low} to {high}")
    return number


def _unit(site: Site, function: str, arguments: tuple[str, ...]) -> int:
    unit = arguments[0] if arguments else "ns"
    if len(arguments) > 1 or unit not in UNITS_NS:
        raise site.refuse(f"{function}() has no unit {', '.join(arguments)!r}", hint=guess(unit, UNITS_NS))
    return UNITS_NS[unit]


def _no_arguments(site: Site, function: str, arguments: tuple[str, ...]) -> None:
    if arguments:
        raise site.refuse(f"{function} takes no arguments")
