"""A converter in plain Python: executes a table's document directly and slowly, without code of the compiler.

It implements the language of tables (docs/how-to/converting.md) and the models' bytes, without the kernels. Books,
orders and statistics are dictionaries, recomputed where that is simplest.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

from penstock.convert.core.document import TableDocument
from penstock.convert.core.format import SourceFormat, SourceMessage
from penstock.model import MessageModel, shipped

MISSING = None
UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}


class Malformed(Exception):
    """The message has no effect."""


class Unmatched(Exception):
    """The state does not know what the message is about."""


class Instrument:
    def __init__(self, symbol: str) -> None:
        self.symbol = symbol
        self.levels: dict[str, dict[int, list[int]]] = {"buy": {}, "sell": {}}
        self.trades: list[dict[str, Any]] = []
        self.state = 0
        self.restrictions = 0
        self.reason = ""
        self.limits: list[int | None] = [None, None]
        self.pending = False
        self.round_lot = 0
        self.price_decimals: int | None = None
        self.quantity_decimals: int | None = None

    def best(self, side: str, depth: int = 1) -> tuple[int | None, int, int | None]:
        prices = sorted(self.levels[side], reverse=side == "buy")
        if depth > len(prices):
            return None, 0, None
        size, count = self.levels[side][prices[depth - 1]]
        return prices[depth - 1], size, count or None

    def day(self) -> dict[str, Any]:
        alive = [trade for trade in self.trades if not trade["broken"]]
        extended = _come_to([each for each in alive if each["conditions"] & EXTENDED_HOURS])
        regular = _come_to([each for each in alive if not each["conditions"] & EXTENDED_HOURS])
        return {**regular, "previous_close": None, **{f"extended_{name}": value for name, value in extended.items()}}

    def shown(self) -> tuple[int, str]:
        """State and reason: an operational halt suspends trading unless a regulatory halt or pause already stops it."""
        states = shipped("status").fields_by_name["state"].values
        if self.restrictions & OPERATIONAL_HALT and self.state not in (states["halted"], states["paused"]):
            return states["suspended"], ""
        return self.state, self.reason


CONDITIONS = {name: 1 << bit for name, bit in shipped("trade").fields_by_name["conditions"].bits.items()}
EXTENDED_HOURS = CONDITIONS["extended_hours"]
OPERATIONAL_HALT = 1 << shipped("status").fields_by_name["restrictions"].bits["operational_halt"]


def _come_to(trades: list[dict[str, Any]]) -> dict[str, Any]:
    last = [each["price"] for each in trades if not each["conditions"] & CONDITIONS["not_last"]]
    ranged = [each["price"] for each in trades if not each["conditions"] & CONDITIONS["not_high_low"]]
    counted = [each for each in trades if not each["conditions"] & CONDITIONS["not_volume"]]
    turnover = sum(each["price"] * each["quantity"] for each in counted)
    return {
        "open": last[0] if last else None,
        "last": last[-1] if last else None,
        "high": max(ranged, default=None),
        "low": min(ranged, default=None),
        "volume": sum(each["quantity"] for each in counted),
        "turnover": min(turnover // 10**4, 2**63 - 1),
        "trade_count": len(counted),
    }


class OracleConverter:
    """convert() returns (topic, source sequence, index, model id, record) for each output."""

    def __init__(self, document: TableDocument, source: SourceFormat, midnight_ns: int) -> None:
        self.document = document
        self.source = source
        self.midnight_ns = midnight_ns
        self.instruments: dict[Any, Instrument] = {}
        """Instruments by the venue's key."""
        self.by_symbol: dict[str, Instrument] = {}
        self.orders: dict[int, dict[str, Any]] = {}
        self.malformed = self.unmatched = 0
        self.hours = 0
        """State of the session in the feed: 1 regular, 2 extended hours, 3 no more messages."""

    def convert(self, sequence: int, data: bytes, receive_ns: int = 0) -> list[tuple[str, int, int, int, bytes]]:
        try:
            message, fields = self._read(data)
            steps = [
                step
                for key, found in self.document.message.items()
                if message.name in (name.strip() for name in key.split(","))
                for step in found
            ]
            run = _Run(self, message, fields, sequence, receive_ns)
            run.defines = any(step.get("do") == "define" for step in steps)
            run.check(steps)
            return run.steps(steps)
        except Malformed:
            self.malformed += 1
        except Unmatched:
            self.unmatched += 1
        return []

    def define(self, key: Any, symbol: str) -> None:
        """An instrument has one symbol and one key: the newest ones."""
        instrument = self.by_symbol.setdefault(symbol, Instrument(symbol))
        self.instruments = {each: found for each, found in self.instruments.items() if found is not instrument}
        self.instruments[key] = instrument

    def _read(self, data: bytes) -> tuple[SourceMessage, dict[str, Any]]:
        columns = data.split(self.source.separator.encode()) if self.source.layout == "csv" else []
        place = self.source.type_field
        for message in self.source.messages.values():
            if place is None:
                key: bytes | None = None
            elif place.column is not None:
                key = columns[place.column] if place.column < len(columns) else b"?"
            else:
                key = data[place.at or 0 : (place.at or 0) + (place.size or 0)]
            if key == message.key:
                break
        else:
            raise Malformed
        if self.source.layout == "csv":
            if len(columns) != message.columns:
                raise Malformed
            return message, {name: columns[each.column or 0] for name, each in message.fields.items()}
        if not message.size_min <= len(data) <= message.size_max:
            raise Malformed
        fields: dict[str, Any] = {}
        for name, each in message.fields.items():
            at, size = each.at or 0, each.size or 0
            raw = data[at : at + size]
            is_number = each.kind != "text"
            fields[name] = (
                int.from_bytes(raw, self.source.byte_order, signed=each.kind == "signed") if is_number else raw
            )
        return message, fields


class _Run:
    """Convert one message."""

    def __init__(
        self, owner: OracleConverter, message: SourceMessage, fields: dict[str, Any], sequence: int, receive_ns: int
    ) -> None:
        self.owner = owner
        self.message = message
        self.fields = fields
        self.sequence = sequence
        self.receive_ns = receive_ns
        self.instrument: Instrument | None = None
        self.order: dict[str, Any] = {}
        self.trade: dict[str, Any] = {}
        self.changed = False
        self.defines = False
        self.altered = False

    # Steps

    def check(self, steps: list[dict[str, Any]]) -> None:
        """Errors of the message itself are found before any effect."""
        outputs = self.owner.document.output
        if steps:
            self.value(self.owner.document.event_time, {})
        for step in steps:
            given = {key: value for key, value in step.items() if key not in ("do", "emit", "when")}
            if "emit" in step:
                model = shipped(outputs[step["emit"]].model)
                given = {**outputs[step["emit"]].fields, **given}
                record = bytearray(bytes(model.new()))
            for key, text in given.items():
                if self._needs_state(str(text)):
                    continue
                if "emit" in step:
                    self.store(model, record, key, text)
                else:
                    self.argument(key, text, step["do"])

    def steps(self, steps: list[dict[str, Any]]) -> list[tuple[str, int, int, int, bytes]]:
        made: list[tuple[str, int, int, int, bytes]] = []
        for step in steps:
            if self._is_about(step):
                self.find_instrument()
            if "when" in step and not self.holds(step["when"]):
                continue
            given = {key: value for key, value in step.items() if key not in ("do", "emit", "when")}
            if "do" in step:
                self.do(step["do"], given)
            else:
                topic, model_id, record = self.emit(step["emit"], given)
                made.append((topic, self.sequence, len(made), model_id, record))
        return made

    def _is_about(self, step: dict[str, Any]) -> bool:
        if "do" in step:
            return step["do"] not in ("order_execute", "order_cancel", "order_delete", "order_replace", "phase")
        return True

    def find_instrument(self) -> None:
        if self.instrument is not None:
            return
        section = self.owner.document.instrument
        assert section is not None
        key = self.fields[section.key]
        if isinstance(key, bytes):
            key = key.strip(b" \0")
        if key not in self.owner.instruments or self.defines:
            if section.symbol not in self.fields:
                raise Unmatched
            symbol = self.fields[section.symbol].strip(b" \0")
            if not symbol or not symbol.isascii() or not symbol.decode().isprintable():
                raise Malformed
            self.owner.define(key, symbol.decode())
        self.instrument = self.owner.instruments[key]

    def do(self, verb: str, given: dict[str, Any]) -> None:
        arguments = {key: self.argument(key, text, verb) for key, text in given.items()}
        getattr(self, f"do_{verb}")(**arguments)

    def argument(self, key: str, text: Any, verb: str) -> Any:
        if key in ("price", "upper", "lower"):
            value = self.scaled(text, 8)
        else:
            value = self.value(text, VERB_NAMES.get(key, {}))
        is_optional = verb in ("side_set", "limits", "define")
        if value is None and not is_optional:
            raise Malformed
        if value is not None and verb == "define" and not 0 <= value <= (2**32 - 1 if key == "round_lot" else 18):
            raise Malformed
        is_counted = key in ("quantity", "trade", "order") and value is not None
        if is_counted and (value < 0 or (key == "quantity" and value >= 2**63)):
            raise Malformed
        return value

    def do_phase(self, code: Any, hours: int = 0) -> None:
        self.owner.hours = hours or self.owner.hours

    def do_define(
        self, round_lot: int | None, price_decimals: int | None = None, quantity_decimals: int | None = None
    ) -> None:
        assert self.instrument is not None
        given = {"round_lot": round_lot, "price_decimals": price_decimals, "quantity_decimals": quantity_decimals}
        for name, value in given.items():
            if value is not None:
                setattr(self.instrument, name, value)

    def do_status(self, state: int, reason: bytes = b"") -> None:
        assert self.instrument is not None
        self.instrument.state, self.instrument.reason = state, _text(reason)

    def do_restriction(self, rule: int, on: int) -> None:
        assert self.instrument is not None
        before = self.instrument.restrictions
        self.instrument.restrictions = before & ~rule | (rule if on else 0)
        self.altered = before != self.instrument.restrictions

    def do_limits(self, upper: int | None = None, lower: int | None = None) -> None:
        assert self.instrument is not None
        self.instrument.limits = [upper, lower]

    def change(self, side: str, price: int, size: int, count: int) -> None:
        assert self.instrument is not None
        levels = self.instrument.levels[side]
        before = self.instrument.best(side)
        level = levels.setdefault(price, [0, 0])
        level[0] += size
        level[1] += count
        if level[0] <= 0:
            del levels[price]
        self.changed = self.changed or self.instrument.best(side) != before

    def do_order_add(self, order: int, side: int, quantity: int, price: int, participant: bytes = b"") -> None:
        if quantity == 0 or price is None:
            raise Malformed
        if order in self.owner.orders:
            raise Unmatched
        name = "buy" if side == 0 else "sell"
        self.order = {"price": price, "quantity": quantity, "side": name, "participant": _text(participant)}
        self.order |= {"taken": quantity, "instrument": self.instrument}
        self.owner.orders[order] = self.order
        self.change(name, price, quantity, 1)

    def take(self, order: int, quantity: int) -> None:
        if order not in self.owner.orders:
            raise Unmatched
        if quantity == 0:
            raise Malformed
        self.order = self.owner.orders[order]
        self.instrument = self.order["instrument"]
        taken = min(quantity, self.order["quantity"])
        self.order["quantity"] -= taken
        self.order["taken"] = taken
        gone = self.order["quantity"] == 0
        if gone:
            del self.owner.orders[order]
        self.change(self.order["side"], self.order["price"], -taken, -gone)

    do_order_execute = do_order_cancel = take

    def do_order_delete(self, order: int) -> None:
        self.take(order, self.owner.orders[order]["quantity"] if order in self.owner.orders else 1)

    def do_order_replace(self, order: int, new_order: int, quantity: int, price: int) -> None:
        if order not in self.owner.orders or (new_order != order and new_order in self.owner.orders):
            raise Unmatched
        if quantity == 0:
            raise Malformed
        old = self.owner.orders[order]
        self.take(order, old["quantity"])
        side = 0 if old["side"] == "buy" else 1
        self.do_order_add(new_order, side, quantity, price, old["participant"].encode("latin-1"))

    def do_level_set(self, side: int, price: int, quantity: int, orders: int = 0, complete: int = 1) -> None:
        assert self.instrument is not None
        if price is None:
            raise Malformed
        name = "buy" if side == 0 else "sell"
        levels = self.instrument.levels[name]
        before = self.instrument.best(name)
        if quantity:
            levels[price] = [quantity, orders]
        else:
            levels.pop(price, None)
        changed = self.instrument.best(name) != before or self.instrument.pending
        self.changed = changed and bool(complete)
        self.instrument.pending = changed and not complete

    def do_side_set(self, side: int, price: int | None, quantity: int | None) -> None:
        assert self.instrument is not None
        name = "buy" if side == 0 else "sell"
        keep = {price: [quantity, 0]} if quantity and price is not None else {}
        self.instrument.levels[name] = keep  # type: ignore[assignment]

    def do_trade(self, trade: int, price: int, quantity: int, conditions: int = 0, by_hours: int = 0) -> None:
        assert self.instrument is not None
        is_cross = conditions & (CONDITIONS["opening"] | CONDITIONS["closing"])
        if by_hours and self.owner.hours in (2, 3) and not is_cross:
            conditions |= EXTENDED_HOURS
        day = self.instrument.day()
        if quantity == 0 or price is None or day["volume"] + day["extended_volume"] + quantity >= 2**62:
            raise Malformed
        made = {"id": trade, "price": price, "quantity": quantity, "conditions": conditions, "broken": False}
        self.instrument.trades.append(made)
        self.trade = made

    def do_trade_break(self, trade: int) -> None:
        assert self.instrument is not None
        for each in reversed(self.instrument.trades):
            if each["id"] == trade and not each["broken"]:
                each["broken"] = True
                self.trade = each
                return
        raise Unmatched

    # Outputs

    def emit(self, name: str, given: dict[str, Any]) -> tuple[str, int, bytes]:
        output = self.owner.document.output[name]
        model = shipped(output.model)
        record = bytearray(bytes(model.new()))
        for key, text in {**output.fields, **given}.items():
            self.store(model, record, key, text)
        assert self.instrument is not None
        level = "".join(self.owner.document.symbols.topic.get(each, each) for each in self.instrument.symbol)
        level = re.sub(r"[*>!#/\[\]. ]", lambda found: f"%{ord(found[0]):02X}", level)
        return output.topic.replace("{symbol}", level), model.id, bytes(record)

    def store(self, model: MessageModel, record: bytearray, key: str, text: Any) -> None:
        field = model.fields_by_name[key]
        names = _names(field)
        value = self.scaled(text, field.decimals) if field.is_decimal else self.value(text, names)
        if field.type == "text":
            encoded = value if isinstance(value, bytes) else str(value or "").encode("latin-1")
            record[field.offset : field.end] = encoded.rstrip(b" \0").ljust(field.size, b"\0")
            return
        if value is MISSING:
            if field.missing is None:
                raise Malformed
            value = field.missing
        if isinstance(value, str):
            value = names[value]
        low, high = field.bounds
        if not low <= value <= high and value != field.missing:
            raise Malformed
        code = {"i": "bhiq", "u": "BHIQ"}[field.storage[0]][(1, 2, 4, 8).index(field.size)]
        struct.pack_into(f"<{code}", record, field.offset, value)

    # Values

    def holds(self, condition: str) -> bool:
        return all(self._term(term.strip()) for term in condition.split(" and "))

    def _term(self, term: str) -> bool:
        found = re.match(r"^(.*?)\s*(!=|>=|=|>|&)\s*(\S+)$", term)
        if found is None:
            return bool(self.value(term, {}))
        value, literal = self.value(found[1], {}), found[3]
        if isinstance(value, bytes | str):
            value, wanted = _text(value), self.owner.document.venue if literal == "venue" else literal
        elif found[1] == "instrument.state" and not literal.isdigit():
            wanted = shipped("status").fields_by_name["state"].values[literal]  # type: ignore[assignment]
        else:
            wanted = int(literal)  # type: ignore[assignment]
        compare: dict[str, Callable[[Any, Any], bool]] = {
            "=": lambda a, b: bool(a == b),
            "!=": lambda a, b: bool(a != b),
            ">": lambda a, b: bool(a > b),
            ">=": lambda a, b: a is not None and bool(a >= b),
            "&": lambda a, b: bool(a & b),
        }
        return compare[found[2]](value, wanted)

    def _needs_state(self, text: str) -> bool:
        head = text.split("|")[0].strip()
        return "." in head or head in ("event_time", "receive_time")

    def scaled(self, text: Any, decimals: int) -> int | None:
        """A price with this many decimals."""
        head = str(text).split("|")[0].strip()
        value = self.value(text, {})
        if value is None:
            return None
        given = 8
        if head in self.message.fields and "decimal(" not in str(text):
            given = self.message.fields[head].decimals or 0
        elif head in ("day.turnover", "day.extended_turnover"):
            given = 4
        result = int(value) * 10 ** (decimals - given)
        if not -(2**63) < result < 2**63:
            raise Malformed
        return result

    def value(self, given: Any, names: dict[str, int]) -> Any:
        if not isinstance(given, str):
            return given
        head, *functions = (part.strip() for part in given.split("|"))
        value = self._head(head, names)
        for function in functions:
            name, _, rest = function.partition("(")
            arguments = [each.strip() for each in rest.rstrip(")").split(",") if each.strip()]
            value = self._apply(name, value, arguments, names)
        return value

    def _head(self, head: str, names: dict[str, int]) -> Any:
        group, _, rest = head.partition(".")
        if head.startswith("constant("):
            return _resolve([each.strip() for each in head[9:-1].split(",")], names)
        if head in self.fields:
            value = self.fields[head]
            if isinstance(value, int) and value == -(2**63):
                raise Malformed
            return value
        if head == "event_time":
            return self.value(self.owner.document.event_time, {})
        if head == "receive_time":
            return self.receive_ns or None
        if head == "source_sequence":
            return self.sequence
        if head == "venue":
            return self.owner.document.venue
        if group == "order":
            return self.order[rest]
        if group == "trade":
            return self.trade[rest]
        assert self.instrument is not None
        if group == "day":
            return self.instrument.day()[rest]
        if head == "book.changed":
            return self.changed
        if head == "instrument.changed":
            return self.altered
        if head in ("instrument.state", "instrument.reason"):
            return self.instrument.shown()[head == "instrument.reason"]
        if group == "book":
            side, what, *depth = rest.split("_")
            best = self.instrument.best({"bid": "buy", "ask": "sell"}[side], int(depth[0]) if depth else 1)
            return best[("price", "size", "orders").index(what)]
        known = {"upper_limit": self.instrument.limits[0], "lower_limit": self.instrument.limits[1]}
        return known[rest] if rest in known else getattr(self.instrument, rest)

    def _apply(self, name: str, value: Any, arguments: list[str], names: dict[str, int]) -> Any:
        document = self.owner.document
        if name == "map":
            table = document.map[arguments[0]]
            key = _text(value) if isinstance(value, bytes) else str(value)
            trimmed = {each.strip(): to for each, to in table.items()}
            if key not in trimmed and "otherwise" not in table:
                raise Malformed
            return _resolve(trimmed[key] if key in trimmed else table["otherwise"], names)
        if name == "bits":
            total = 0
            for mask, to in document.bits[arguments[0]].items():
                total |= _resolve(to, names) if value & int(mask, 0) else 0
            return total
        if name == "bit":
            return value >> int(arguments[0]) & 1
        if name == "since_midnight":
            return value * UNITS[arguments[0] if arguments else "ns"] + self.owner.midnight_ns
        if name in ("number", "decimal", "quantity"):
            return _decimal(value, int(arguments[0]) if arguments else 0)
        raise NotImplementedError(name)


VERB_NAMES = {
    "side": {"buy": 0, "sell": 1},
    "state": shipped("status").fields_by_name["state"].values,
    "conditions": {name: 1 << bit for name, bit in shipped("trade").fields_by_name["conditions"].bits.items()},
    "hours": {"regular": 1, "extended": 2, "ended": 3},
    "rule": {name: 1 << bit for name, bit in shipped("status").fields_by_name["restrictions"].bits.items()},
}


def _names(field: Any) -> dict[str, int]:
    return dict(field.values) or {name: 1 << bit for name, bit in field.bits.items()}


def _resolve(given: Any, names: dict[str, int]) -> Any:
    total = 0
    for each in given if isinstance(given, list) else [given]:
        if isinstance(each, str) and not each.isdigit() and each not in names:
            return each
        total |= names[each] if isinstance(each, str) and each in names else int(each)
    return total


def _text(value: Any) -> str:
    return value if isinstance(value, str) else value.rstrip(b" \0").decode("latin-1")


def _decimal(text: bytes, decimals: int) -> int | None:
    trimmed = text.strip(bytes(range(33)))
    if not trimmed:
        return None
    found = re.fullmatch(rb"([+-]?)(\d*)" + (rb"(?:\.(\d*))?" if decimals else rb"()"), trimmed)
    if found is None or not (found[2] or found[3]):
        raise Malformed
    fraction = (found[3] or b"").ljust(decimals, b"0")
    if fraction[decimals:].strip(b"0"):
        raise Malformed
    number = int((found[2] or b"0") + fraction[:decimals])
    if number >= 2**63:
        raise Malformed
    return -number if found[1] == b"-" else number
