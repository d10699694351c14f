"""A plan: a converter table, compiled. Immutable, and shared by as many converters as there are source streams."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from hashlib import sha256
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from penstock.base.calendar import TradingCalendar
from penstock.base.errors import TableError
from penstock.convert.core.compiler import MessageCompiler, Shared
from penstock.convert.core.document import Step, TableDocument
from penstock.convert.core.format import SourceFormat
from penstock.convert.core.functions import function_identity
from penstock.convert.core.names import guess
from penstock.convert.core.output import OutputPlan
from penstock.convert.core.registers import Code, Op
from penstock.convert.core.symbols import Symbology
from penstock.convert.core.targets import VERBS
from penstock.convert.kernel import _program as c
from penstock.convert.kernel._program import Program

PLAIN_LOADS = {c.CODE_LOAD_BIG, c.CODE_LOAD_LITTLE}
"""They depend on nothing and cannot fail, so they come first: many of one kind run in one go."""


@dataclass(frozen=True)
class Plan:
    """What a Converter runs. `messages` and `outputs` are in the order of the program's numbers for them."""

    name: str
    venue: str
    program: Program
    messages: tuple[str, ...]
    outputs: tuple[OutputPlan, ...]
    topics: tuple[str, ...]
    symbology: Symbology
    timezone: ZoneInfo
    calendar: TradingCalendar
    """That of the table, else the venue's: it dates sessions, and separates regular from extended hours if the feed
    does not."""

    counts_from_midnight: bool
    """Whether the table computes times with `since_midnight`, which need the trading date."""

    identity: str
    """Hash of everything that determines the result of a conversion: the table with its parameters, format, models,
    symbols and functions. Plans with equal identities convert alike."""

    @property
    def number(self) -> int:
        """The identity in 64 bits, as exchanged between adapters."""
        return int(self.identity[:16], 16)

    def midnight_ns(self, trading_date: date) -> int:
        """Midnight of the trading date where the venue is, in nanoseconds since 1970 UTC."""
        midnight = datetime(trading_date.year, trading_date.month, trading_date.day, tzinfo=self.timezone)
        return round(midnight.timestamp()) * 1_000_000_000

    def date_of(self, midnight_ns: int) -> date:
        """The trading date that midnight_ns() was called with."""
        return datetime.fromtimestamp(midnight_ns // 1_000_000_000, self.timezone).date()

    def topics_of(self, symbol: bytes) -> list[bytes]:
        """One topic per pattern, for an instrument; `symbol` is the state's."""
        level = self.symbology.topic_level(symbol)
        return [pattern.encode().replace(b"{symbol}", level) for pattern in self.topics]


def compile_plan(document: TableDocument, source: SourceFormat, where: str, directory: Path) -> Plan:
    """`directory` is where the table's own files are."""
    symbology = Symbology.of(document.symbols, directory, where)
    steps = steps_by_message(document, source, where)
    shared = Shared(document, source, directory, _decimals_known(document, steps, symbology))
    ops: list[Op] = []
    routes = []
    for message in source.messages.values():
        code = MessageCompiler(shared, message).compile(steps[message.name]) if steps[message.name] else Code()
        start = len(ops)
        middle = start + len(code.values)
        ops += sorted(code.values, key=lambda each: each.code not in PLAIN_LOADS)
        ops += _moved(code.steps, middle)
        routes.append((message.key, start, middle, len(ops), message.size_min, message.size_max, message.columns))
    image_start = len(ops)
    if document.image:
        image = [(f"{where}: image[{index}]", step) for index, step in enumerate(document.image)]
        code = _image(shared, image)
        ops += _moved(code.steps, image_start)
    place = source.type_field
    at = -1 if place is None else (place.at if place.column is None else place.column) or 0
    program = Program(
        ops=ops,
        routes=routes,
        outputs=[
            (bytes(each.blank), each.model.id, each.model.version, each.topic_kind, each.is_about_instrument)
            for each in shared.outputs
        ],
        maps=shared.maps,
        functions=tuple(shared.functions),
        image=(image_start, len(ops)),
        layout=source.layout,
        separator=source.separator,
        type_place=(at, (place.size or 0) if place is not None else 0),
    )
    timezone = _timezone(document.timezone, where)
    if document.calendar:
        calendar = TradingCalendar.load(document.calendar, directory)
    else:
        calendar = TradingCalendar.of_venue(document.venue, document.timezone)
    counts_from_midnight = any(each.code == c.CODE_ADD_DAY for each in ops)
    if counts_from_midnight and calendar.opens_day_before:
        raise TableError(
            "since_midnight() counts from the midnight of the trading date, but the sessions of the calendar "
            f"{calendar.name!r} open on the day before it",
            where=where,
            hint="use a calendar whose sessions open and close on one date, or a feed whose times have dates",
        )
    return Plan(
        name=document.name,
        venue=document.venue,
        program=program,
        messages=tuple(source.messages),
        outputs=tuple(shared.outputs),
        topics=tuple(shared.topics),
        symbology=symbology,
        timezone=timezone,
        calendar=calendar,
        counts_from_midnight=counts_from_midnight,
        identity=_identity(document, source, shared, symbology, calendar),
    )


def _decimals_known(document: TableDocument, steps: dict[str, list[tuple[str, Step]]], symbology: Symbology) -> int:
    """Shared.decimals_known: verbs compare values with the decimals of instruments only where these can be known."""
    names = {"price_decimals", "quantity_decimals"}
    is_defined = any(step.get("do") == "define" and names & step.keys() for each in steps.values() for _, step in each)
    is_referred = any(
        each.price_decimals is not None or each.quantity_decimals is not None for each in symbology.references.values()
    )
    return document.quantity_decimals + 1 if is_defined or is_referred else 0


def _identity(
    document: TableDocument, source: SourceFormat, shared: Shared, symbology: Symbology, calendar: TradingCalendar
) -> str:
    parts = [
        msgspec.json.encode(calendar.document),
        msgspec.json.encode(msgspec.structs.replace(document, calendar="")),  # not the path, which differs per machine
        repr([source.name, source.layout, source.byte_order, source.separator]).encode(),
        repr([source.messages, source.type_field]).encode(),
        repr(
            [(output.name, output.model, output.model.fields, bytes(output.blank)) for output in shared.outputs]
        ).encode(),
        repr(symbology).encode(),
        *(function_identity(call) for call, _ in shared.functions),
    ]
    return sha256(b"\0".join(parts)).hexdigest()


def steps_by_message(document: TableDocument, source: SourceFormat, where: str) -> dict[str, list[tuple[str, Step]]]:
    """Each message's steps with the place of each; a key of the table may name several messages."""
    found: dict[str, list[tuple[str, Step]]] = {name: [] for name in source.messages}
    named: set[str] = set()
    for key, steps in document.message.items():
        for name in (each.strip() for each in key.split(",")):
            here = f"{where}: message.{name}"
            if name not in found:
                hint = guess(name, found)
                raise TableError(f"format {source.name!r} has no message {name!r}", where=here, hint=hint)
            if name in named:
                raise TableError("is there twice", where=here)
            named.add(name)
            found[name] = [(f"{here}[{index}]", step) for index, step in enumerate(steps)]
    return found


def _image(shared: Shared, steps: list[tuple[str, Step]]) -> Code:
    for where, step in steps:
        if "emit" not in step:
            what = "do" if step.get("do") in VERBS else "this"
            raise TableError(f"an image only emits, {what} is not for it", where=where)
    code = MessageCompiler(shared, None).compile(steps)
    if code.values:
        # constants that go through functions: before the steps, as in a message
        code.steps[:0] = code.values
        code.steps = [_shifted(each, len(code.values)) for each in code.steps]
    return code


def _moved(steps: list[Op], by: int) -> list[Op]:
    """Steps that jump know their target from the first of them; in the program it counts from its start."""
    return [_shifted(each, by) for each in steps]


def _shifted(step: Op, by: int) -> Op:
    return step._replace(offset=step.offset + by) if step.is_jump else step


def _timezone(name: str, where: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise TableError(
            f"there is no time zone {name!r}", where=f"{where}: timezone", hint="like America/New_York"
        ) from None
