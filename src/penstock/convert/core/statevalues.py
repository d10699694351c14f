"""The values of the conversion state that a table can use by name, and what is known of each."""

from penstock.convert.core.registers import Value
from penstock.convert.kernel import _program as c
from penstock.model import shipped

_SIDES = {"buy": 1, "sell": 2}
_STATES = shipped("status").fields_by_name["state"].values
_RULES = {name: 1 << bit for name, bit in shipped("status").fields_by_name["restrictions"].bits.items()}
_CONDITIONS = {name: 1 << bit for name, bit in shipped("trade").fields_by_name["conditions"].bits.items()}


def _number(register: int, low: int = 0, high: int = 2**62, **known: object) -> Value:
    return Value(c.KIND_NUMBER, register, low, high, is_pure=False, **known)  # type: ignore[arg-type]


def _price(register: int, *, optional: bool = True) -> Value:
    return Value(c.KIND_NUMBER, register, decimals=8, optional=optional, is_pure=False)


STATE_VALUES: dict[str, Value] = {
    "source_sequence": Value(c.KIND_UNSIGNED, c.REGISTER_SEQUENCE, 0, 2**64 - 1),
    "receive_time": Value(c.KIND_NUMBER, c.REGISTER_RECEIVE, optional=True),
    "book.changed": _number(c.REGISTER_CHANGED, 0, 1),
    "order.price": _price(c.REGISTER_ORDER_PRICE, optional=False),
    "order.quantity": _number(c.REGISTER_ORDER_QUANTITY),
    "order.taken": _number(c.REGISTER_ORDER_TAKEN),
    "order.side": _number(c.REGISTER_ORDER_SIDE, 1, 2, names=_SIDES),
    "order.participant": Value(c.KIND_PACKED, c.REGISTER_ORDER_PARTICIPANT, size_max=4, is_pure=False),
    "trade.price": _price(c.REGISTER_TRADE_PRICE, optional=False),
    "trade.quantity": _number(c.REGISTER_TRADE_QUANTITY),
    "trade.conditions": _number(c.REGISTER_TRADE_CONDITIONS, 0, 2**16 - 1, names=_CONDITIONS),
    "day.open": _price(c.REGISTER_DAY_OPEN),
    "day.high": _price(c.REGISTER_DAY_HIGH),
    "day.low": _price(c.REGISTER_DAY_LOW),
    "day.last": _price(c.REGISTER_DAY_LAST),
    "day.previous_close": _price(c.REGISTER_DAY_PREVIOUS_CLOSE),
    "day.volume": _number(c.REGISTER_DAY_VOLUME),
    "day.turnover": Value(c.KIND_NUMBER, c.REGISTER_DAY_TURNOVER, decimals=4, is_pure=False),
    "day.trade_count": _number(c.REGISTER_DAY_TRADE_COUNT, 0, 2**32 - 2),
    "day.extended_high": _price(c.REGISTER_EXTENDED_HIGH),
    "day.extended_low": _price(c.REGISTER_EXTENDED_LOW),
    "day.extended_last": _price(c.REGISTER_EXTENDED_LAST),
    "day.extended_volume": _number(c.REGISTER_EXTENDED_VOLUME),
    "day.extended_turnover": Value(c.KIND_NUMBER, c.REGISTER_EXTENDED_TURNOVER, decimals=4, is_pure=False),
    "day.extended_trade_count": _number(c.REGISTER_EXTENDED_TRADE_COUNT, 0, 2**32 - 2),
    "instrument.changed": _number(c.REGISTER_ALTERED, 0, 1),
    "instrument.round_lot": _number(c.REGISTER_ROUND_LOT, 0, 2**32 - 1),
    "instrument.price_decimals": _number(c.REGISTER_PRICE_DECIMALS, 0, 18, optional=True),
    "instrument.quantity_decimals": _number(c.REGISTER_QUANTITY_DECIMALS, 0, 18, optional=True),
    "instrument.state": _number(c.REGISTER_STATE, 0, 255, names=_STATES),
    "instrument.reason": Value(c.KIND_PACKED, c.REGISTER_REASON, size_max=8, is_pure=False),
    "instrument.restrictions": _number(c.REGISTER_RESTRICTIONS, 0, 255, names=_RULES),
    "instrument.upper_limit": _price(c.REGISTER_UPPER_LIMIT),
    "instrument.lower_limit": _price(c.REGISTER_LOWER_LIMIT),
    "instrument.event_time": Value(c.KIND_NUMBER, c.REGISTER_EVENT_TIME, is_pure=False),
    "session.phase": _number(c.REGISTER_PHASE),
}

for _side, _name in enumerate(("bid", "ask")):
    for _level in range(1, c.LEVELS + 1):
        _at = c.REGISTER_BOOK + 3 * (_side * c.LEVELS + _level - 1)
        _values = {
            "price": _price(_at),
            "size": _number(_at + 1),
            "orders": _number(_at + 2, 0, 2**32 - 2, optional=True),
        }
        for _what, _value in _values.items():
            STATE_VALUES[f"book.{_name}_{_what}_{_level}"] = _value
            if _level == 1:
                STATE_VALUES[f"book.{_name}_{_what}"] = _value


QUANTITIES = frozenset(
    name
    for name in STATE_VALUES
    if name in ("order.quantity", "order.taken", "trade.quantity", "day.volume", "day.extended_volume")
    or "_size" in name
)
"""They have the table's quantity_decimals."""


def load_code(name: str) -> int | None:
    """The operation that fills the register, or None if a verb or the message itself does."""
    group, _, rest = name.partition(".")
    if name == "instrument.changed":
        return None
    if group == "book" and rest != "changed":
        return c.CODE_LOAD_LEVELS if rest[-1].isdigit() else c.CODE_LOAD_BEST
    return {"day": c.CODE_LOAD_DAY, "instrument": c.CODE_LOAD_REFERENCE, "session": c.CODE_LOAD_REFERENCE}.get(group)
