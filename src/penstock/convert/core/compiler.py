"""From a table's steps to operations, message by message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from penstock.base.errors import TableError
from penstock.convert.core.document import Step, TableDocument
from penstock.convert.core.expression import Comparison, Expression, parse_condition, parse_value
from penstock.convert.core.format import SourceField, SourceFormat, SourceMessage
from penstock.convert.core.functions import Site, apply_function, exactly_scaled, packed
from penstock.convert.core.names import guess
from penstock.convert.core.output import OutputPlan
from penstock.convert.core.registers import MISSING, Code, Op, Value, op, pack, signed
from penstock.convert.core.statevalues import QUANTITIES, STATE_VALUES, load_code
from penstock.convert.core.symbols import SYMBOL_SIZE
from penstock.convert.core.targets import VERBS, Target, Verb, field_target, fit
from penstock.convert.kernel import _program as c
from penstock.model.library import with_fractions

READ_AS_TEXT = {"number", "decimal", "quantity", "float"}
"""Functions that need a text as it is, however short."""

JUMPS = {
    "=": c.CODE_UNLESS_EQUAL,
    "!=": c.CODE_UNLESS_UNEQUAL,
    "<": c.CODE_UNLESS_LESS,
    "<=": c.CODE_UNLESS_LESS_EQUAL,
    ">": c.CODE_UNLESS_GREATER,
    ">=": c.CODE_UNLESS_GREATER_EQUAL,
    "&": c.CODE_UNLESS_BITS,
}


@dataclass
class Shared:
    """What the messages of one table have in common while they are compiled."""

    document: TableDocument
    format: SourceFormat
    directory: Path
    decimals_known: int = 0
    """Decimals of the table's quantities, + 1, if the table can learn the decimals of instruments; else 0."""
    outputs: list[OutputPlan] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    maps: list[tuple[dict[int, int], int | None]] = field(default_factory=list)
    functions: list[tuple[Callable[..., Any], tuple[str, ...]]] = field(default_factory=list)

    def topic_kind(self, pattern: str) -> int:
        if pattern not in self.topics:
            self.topics.append(pattern)
        return self.topics.index(pattern)


class MessageCompiler:
    """Compiles the steps of one message; `message` is None for the image."""

    def __init__(self, shared: Shared, message: SourceMessage | None) -> None:
        self._shared = shared
        self._message = message
        self._code = Code()
        self._known: dict[str, Value] = {}
        self._given: set[str] = set() if message is not None else {"order", "trade"}
        self._has_instrument = message is None
        self._loaded: set[int] = set()
        self._defines = False
        """True for the venue's directory message: it assigns the key, even if another instrument had it."""

    def compile(self, steps: list[tuple[str, Step]]) -> Code:
        """`steps` are each with the place they are at, for errors."""
        self._defines = any(step.get("do") == "define" for _, step in steps)
        for where, step in steps:
            kinds = [key for key in ("do", "emit", "forward") if key in step]
            if len(kinds) != 1:
                raise TableError("a step needs exactly one of do, emit and forward", where=where)
            self._step(kinds[0], step, where)
        if self._message is not None and self._has_instrument:
            self._code.steps.append(op(c.CODE_POSITION, self._event_time(steps[0][0]).register))
        return self._code

    def _step(self, kind: str, step: Step, where: str) -> None:
        if self._is_about_instrument(kind, step):
            self._need_instrument(where)
        jumps = [self._jump(each, where) for each in self._conditions(step, where)]
        given = {key: value for key, value in step.items() if key not in (kind, "when")}
        if kind == "do":
            self._do(step["do"], given, where)
        elif kind == "emit":
            self._emit(step["emit"], given, where)
        else:
            self._forward(given, where)
        for at in jumps:
            self._code.steps[at] = self._code.steps[at]._replace(offset=len(self._code.steps))
        if jumps:
            self._loaded.clear()  # it may not have run

    def _is_about_instrument(self, kind: str, step: Step) -> bool:
        """Known before the step's condition, because what is found within it is not known after it."""
        if kind == "do" and step["do"] in VERBS:
            verb = VERBS[step["do"]]
            return verb.needs_instrument and not verb.finds_instrument
        declared = self._shared.document.output
        return kind == "emit" and step["emit"] in declared and "{symbol}" in declared[step["emit"]].topic

    # Conditions

    def _conditions(self, step: Step, where: str) -> tuple[Comparison, ...]:
        return parse_condition(step["when"], f"{where}.when") if "when" in step else ()

    def _jump(self, comparison: Comparison, where: str) -> int:
        site = self._site(f"{where}.when", None)
        value = self._value(comparison.value, site)
        if value.kind == c.KIND_TEXT:
            value = packed(site, value)
        if value.kind == c.KIND_FLOAT:
            raise site.refuse("a float cannot be compared")
        if value.kind != c.KIND_NUMBER and comparison.operator not in ("=", "!=", "&"):
            raise site.refuse(f"{comparison.value.text} can be compared with = and != only")
        literal = self._literal(comparison, value, site)
        self._code.steps.append(op(JUMPS[comparison.operator], value.register, x=signed(literal)))
        return len(self._code.steps) - 1

    def _literal(self, comparison: Comparison, value: Value, site: Site) -> int:
        text = comparison.literal
        if value.names is not None and text in value.names:
            return value.names[text]
        if value.kind == c.KIND_PACKED and text == "venue":
            text = self._shared.document.venue
        if value.kind == c.KIND_PACKED and text != "-1":
            if len(text.encode()) > 8:
                raise site.refuse(f"{text!r} has more than 8 bytes")
            return pack(text.encode())
        try:
            if value.decimals:
                return exactly_scaled(site, text, value.decimals)
            return int(text, 0)
        except ValueError:
            raise site.refuse(f"{text!r} is no number", hint=guess(text, value.names or {})) from None

    # Verbs

    def _do(self, name: object, given: Step, where: str) -> None:
        if not isinstance(name, str) or name not in VERBS:
            raise TableError(f"there is no verb {name!r}", where=f"{where}.do", hint=guess(str(name), VERBS))
        verb = VERBS[name]
        self._check_arguments(name, verb, given, where)
        registers = []
        for argument, target in verb.arguments.items():
            if argument not in given:
                registers.append(c.NONE)
                continue
            if target.is_quantity:
                target = replace(target, decimals=self._shared.document.quantity_decimals)
            site = self._site(f"{where}.{argument}", target.names)
            value = fit(site, self._value(parse_value(given[argument], site.where), site, target), target)
            registers.append(value.register)
        if verb.has_event_time:
            first, rest = registers[:4], registers[4:]
            registers = [*first, *(c.NONE,) * (4 - len(first)), self._event_time(where).register, *rest]
        self._code.steps.append(op(verb.code, *registers, x=self._shared.decimals_known))
        self._has_instrument = self._has_instrument or verb.finds_instrument
        self._given.add(verb.gives)
        self._loaded.clear()

    def _check_arguments(self, name: str, verb: Verb, given: Step, where: str) -> None:
        for argument in given:
            if argument not in verb.arguments:
                hint = guess(argument, verb.arguments)
                raise TableError(f"{name} has no {argument!r}", where=f"{where}.{argument}", hint=hint)
        for argument in verb.arguments:
            if argument not in given and argument not in verb.optional:
                raise TableError(f"{name} needs {argument!r}", where=where)

    def _need_instrument(self, where: str) -> None:
        if self._has_instrument:
            return
        self._has_instrument = True
        section = self._shared.document.instrument
        if section is None:
            raise TableError("needs to know the instrument", where=where, hint="say in [instrument] how it is found")
        assert self._message is not None
        if section.key not in self._message.fields:
            raise TableError(f"the message has no {section.key!r} to find the instrument by", where=where)
        site = self._site(f"{where}: instrument.key", None)
        key_field = self._message.fields[section.key]
        key = self._value(parse_value(section.key, site.where), site)
        if key.kind == c.KIND_TEXT:
            key = self._code.derive(key, c.CODE_KEY, kind=c.KIND_UNSIGNED)
        symbol = c.NONE
        if section.symbol in self._message.fields:
            symbol = self._load_text(self._message.fields[section.symbol]).register
        elif key_field.name == section.symbol:
            symbol = self._load_text(key_field).register
        self._code.steps.append(op(c.CODE_INSTRUMENT, key.register, symbol, 1 if self._defines else c.NONE))
        self._code.steps.append(op(c.CODE_NEED_INSTRUMENT))

    # Outputs

    def _emit(self, name: object, given: Step, where: str) -> None:
        declared = self._shared.document.output
        if not isinstance(name, str) or name not in declared:
            raise TableError(f"there is no output {name!r}", where=f"{where}.emit", hint=guess(str(name), declared))
        shared = self._shared
        document = declared[name]
        if shared.document.quantity_decimals:
            document = msgspec.structs.replace(document, model=with_fractions(document.model))
        output = OutputPlan.begin(name, document, shared.topic_kind, shared.directory, where)
        stores: list[Op] = []
        places = {key: f"output.{name}.fields.{key}" for key in declared[name].fields}
        places |= {key: f"{where}.{key}" for key in given}
        for key, value in {**declared[name].fields, **given}.items():
            stores += self._store(output, key, value, places[key])
        self._code.steps.append(op(c.CODE_EMIT, x=self._output_number(output)))
        self._code.steps += sorted(stores, key=lambda each: each.code)  # stores of one kind run in one go

    def _output_number(self, output: OutputPlan) -> int:
        if output not in self._shared.outputs:
            self._shared.outputs.append(output)
        return self._shared.outputs.index(output)

    def _store(self, output: OutputPlan, key: str, given: object, where: str) -> list[Op]:
        fields = output.model.fields_by_name
        if key not in fields:
            hint = guess(key, fields)
            raise TableError(f"model {output.model.name!r} has no field {key!r}", where=where, hint=hint)
        into = fields[key]
        target = field_target(into)
        expression = parse_value(given, where)
        if expression.text == "venue":
            output.put_text(into, self._shared.document.venue, where)
            return []
        if expression.text == "instrument.symbol":
            if not self._has_instrument:
                raise TableError("the step is about no instrument", where=where)
            if into.size != SYMBOL_SIZE:
                raise TableError(f"a symbol has {SYMBOL_SIZE} bytes, the field {into.size}", where=where)
            return [op(c.CODE_STORE_SYMBOL, offset=into.offset)]
        site = self._site(where, target.names)
        if expression.head.name == "constant" and not expression.functions:
            output.put_constant(into, expression.head.arguments or (), where)
            return []
        value = fit(site, self._value(expression, site, target), target)
        if value.kind == c.KIND_TEXT:
            return [op(c.CODE_STORE_TEXT, value.register, offset=into.offset, size=into.size)]
        size = min(into.size, 8)
        missing = signed(into.missing or 0)
        if value.optional and value.kind == c.KIND_NUMBER and (size < 8 or missing != MISSING):
            return [op(c.CODE_STORE_OPTIONAL, value.register, offset=into.offset, size=size, x=missing)]
        code = c.CODE_STORE_WORD if size == 8 else c.CODE_STORE
        return [op(code, value.register, offset=into.offset, size=size)]

    def _forward(self, given: Step, where: str) -> None:
        names = ("topic", "model_id", "model_version", "payload")
        if sorted(given) != sorted(names):
            raise TableError(f"forward needs {', '.join(names)}", where=where)
        targets = (None, Target(low=0, high=65_535), Target(low=0, high=65_535), None)
        registers = []
        for name, target in zip(names, targets, strict=True):
            site = self._site(f"{where}.{name}", None)
            value = self._value(parse_value(given[name], site.where), site)
            value = fit(site, value, target) if target is not None else value
            if (value.kind == c.KIND_TEXT) != (target is None):
                raise site.refuse("needs a text" if target is None else "needs a number")
            registers.append(value.register)
        self._code.steps.append(op(c.CODE_FORWARD, *registers))

    # Values

    def _site(self, where: str, names: dict[str, int] | None) -> Site:
        shared = self._shared
        document = shared.document
        return Site(
            self._code,
            where,
            names,
            document.map,
            document.bits,
            shared.maps,
            shared.functions,
            document.quantity_decimals,
        )

    def _value(self, expression: Expression, site: Site, target: Target | None = None) -> Value:
        names = sorted(site.names.items()) if site.names is not None else None
        key = f"{expression.text} {names}"
        if key in self._known:
            return self._known[key]
        value = self._head(expression, site, target)
        for call in expression.functions:
            value = apply_function(site, value, call.name, call.arguments or ())
        if value.is_pure:
            self._known[key] = value
        return value

    def _head(self, expression: Expression, site: Site, target: Target | None) -> Value:
        name, arguments = expression.head
        if name == "constant":
            return self._constant(arguments or (), site, target)
        if arguments is not None:
            raise site.refuse(f"{name}() needs a value before it", hint=f"like 'price | {name}(…)'")
        if name == "event_time":
            return self._event_time(site.where)
        if name in STATE_VALUES:
            return self._state_value(name, site)
        fields = self._message.fields if self._message is not None else {}
        if name not in fields:
            what = f"the message {self._message.name!r}" if self._message else "the image"
            known = [*fields, *STATE_VALUES, "event_time", "constant()"]
            raise site.refuse(f"{what} has no {name!r}", hint=guess(name, known))
        source = fields[name]
        is_read = bool(expression.functions) and expression.functions[0].name in READ_AS_TEXT
        if source.kind == "text" and (source.size is None or source.size > 8 or is_read):
            return self._load_text(source)
        return self._load(source)

    def _constant(self, arguments: tuple[str, ...], site: Site, target: Target | None) -> Value:
        number = OutputPlan.constant_number(arguments, site, target)
        decimals = target.decimals if target is not None else None
        register = self._code.new_register(c.KIND_NUMBER)
        self._code.values.append(op(c.CODE_CONSTANT, to=register, x=signed(number)))
        return Value(c.KIND_NUMBER, register, number, number, decimals, names=site.names)

    def _event_time(self, where: str) -> Value:
        if self._message is None:
            return self._state_value("instrument.event_time", self._site(where, None))
        expression = parse_value(self._shared.document.event_time, "event_time")
        site = self._site(f"event_time (for {where})", None)
        if expression.head.name == "event_time":
            raise site.refuse("event_time cannot be taken from itself", hint="name a field of the source message")
        return fit(site, self._value(expression, site), Target())

    def _state_value(self, name: str, site: Site) -> Value:
        value = STATE_VALUES[name]
        if name in QUANTITIES:
            value = replace(value, decimals=self._shared.document.quantity_decimals)
        group = name.split(".")[0]
        if group in ("order", "trade") and group not in self._given:
            raise site.refuse(f"{name} is not known here", hint=f"it is after a step that finds the {group}")
        code = load_code(name)
        if code is not None:
            if not self._has_instrument:
                raise site.refuse(f"{name} is not known here", hint="the step is about no instrument")
            if code not in self._loaded:
                self._code.steps.append(op(code, x=self._shared.document.quantity_decimals))
                self._loaded.add(code)
        return value

    def _load(self, source: SourceField) -> Value:
        at, size = source.at or 0, source.size or 0
        if source.kind == "text":
            register = self._code.new_register(c.KIND_PACKED)
            self._code.values.append(op(c.CODE_LOAD_PACKED, to=register, offset=at, size=size))
            return Value(c.KIND_PACKED, register, size_max=size)
        is_big = self._shared.format.byte_order == "big"
        bits = 8 * size
        register = self._code.new_register(c.KIND_NUMBER)
        if source.kind == "signed":
            code = c.CODE_LOAD_BIG_SIGNED if is_big else c.CODE_LOAD_LITTLE_SIGNED
            low, high, kind = -(1 << bits - 1) + (bits == 64), (1 << bits - 1) - 1, c.KIND_NUMBER
        else:
            code = c.CODE_LOAD_BIG if is_big else c.CODE_LOAD_LITTLE
            low, high, kind = 0, (1 << bits) - 1, c.KIND_UNSIGNED if bits == 64 else c.KIND_NUMBER
        self._code.values.append(op(code, to=register, offset=at, size=size))
        return Value(kind, register, low, high, source.decimals)

    def _load_text(self, source: SourceField) -> Value:
        key = f"text {source.name}"
        if key in self._known:
            return self._known[key]
        register = self._code.new_register(c.KIND_TEXT)
        if source.column is not None:
            made = op(c.CODE_LOAD_COLUMN, source.column, to=register)
        elif source.after:
            assert self._message is not None
            before = self._load_text(self._message.fields[source.after])
            made = op(c.CODE_LOAD_AFTER, before.register, to=register)
        elif source.size_field:
            assert self._message is not None
            size = self._load(self._message.fields[source.size_field])
            made = op(c.CODE_LOAD_SIZED, size.register, to=register, offset=source.at or 0)
        else:
            made = op(c.CODE_LOAD_TEXT, to=register, offset=source.at or 0, size=source.size or 0)
        self._code.values.append(made)
        self._known[key] = Value(c.KIND_TEXT, register, size_max=source.size or 0)
        return self._known[key]
