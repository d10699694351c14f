"""Converter: the conversion of one source stream, deterministic from its first message on.

    converter = Converter(ConverterTable.load("itch").compile(), stream_id=1, trading_date=date(2019, 1, 30))
    converted = converter.convert(batch)

The same source messages from the same state give the same messages with the same numbers, however they are cut into
batches. Nothing here reads a clock; when a message was received goes into receive_time and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from functools import partial
from hashlib import sha256
from typing import Any

from penstock.base import log
from penstock.base.counters import Counters
from penstock.base.errors import LocalProtocolError
from penstock.convert.books.state import ConversionState, StateLimits
from penstock.convert.core.plan import Plan
from penstock.convert.kernel import _program as c
from penstock.convert.kernel._converted import Converted
from penstock.convert.kernel._converter import ConverterKernel
from penstock.convert.kernel._program import FAULT_CAUSES

CHECKPOINT_INTERVAL = 1_024
"""Source messages from one checkpoint to the next."""

SESSION_SIZE = 16
"""Bytes of a session's name."""

_log = log.logger("convert")


class Converter(ConverterKernel):
    """Owns a ConversionState and the numbering of one source stream. One thread at a time.

    `trading_date` is the day whose midnight the feed's times count from, for feeds that send no dates. `seed` is the
    state's. What was malformed, unknown or repeated is in `counters`.
    """

    plan: Plan
    state: ConversionState
    counters: Counters

    def __new__(
        cls,
        plan: Plan,
        stream_id: int,
        *,
        trading_date: date | None = None,
        limits: StateLimits | None = None,
        seed: int = 0,
        checkpoint_interval: int = CHECKPOINT_INTERVAL,
    ) -> Converter:
        state = ConversionState(limits, seed)
        report = partial(_report, plan, stream_id)
        made: Converter = super().__new__(cls, plan, stream_id, state, checkpoint_interval, report)
        made.plan = plan
        made.state = state
        made.counters = _counters(made)
        if trading_date is not None:
            made._set_session("", trading_date)
        made._enter_references()
        return made

    @property
    def plan_number(self) -> int:
        """The plan's identity in 64 bits: converters with equal identities produce the same messages from the same
        source."""
        return self.plan.number

    def image(self, wanted: Callable[[str], bool] | None = None) -> Converted:
        """What a late subscriber needs of every instrument, as the table's [[image]] says, for the topics `wanted`.

        Its numbers are that of the last message it includes; it is its own, unlike what convert() returns.
        """
        return self.image_of(wanted)

    @property
    def trading_date(self) -> date | None:
        """The trading date of the session, or None."""
        _, day_ns, _ = self.state.session()
        return self.plan.date_of(day_ns) if day_ns else None

    def new_session(self, name: str, trading_date: date | None, *, is_continued: bool = False) -> None:
        """Begin a session: state that the venue reassigns is cleared, source sequence numbers restart, message numbers
        continue. Instruments keep their numbers and, by symbol, their previous close.

        With `is_continued`, the venue's own session goes on and the trading day ended by the calendar: instruments also
        keep what the venue defines once per session (locate codes, round lots). If the feed has said that its session
        is over, this session is the venue's next one in any case.

        A session with the same trading date keeps the previous close, because the venue restarted its feed. None is
        for converters without dates. The state has room for 16 bytes of the name; of a longer one it has the beginning
        of its SHA-256, in hexadecimal.
        """
        before = self.trading_date
        if trading_date is None and before is not None:
            raise LocalProtocolError(
                f"session {name!r} has no trading date, the one before is of {before.isoformat()}",
                hint="pass the trading date of the session",
            )
        self.state.new_day(
            is_same_day=trading_date is not None and trading_date == before,
            keeps_definitions=is_continued and not self.is_over,
        )
        self._set_session(_short_name(name), trading_date)
        self._enter_references()
        self.skip_to(0)

    def _set_session(self, name: str, trading_date: date | None) -> None:
        hours = None if trading_date is None else self.plan.calendar.hours(trading_date)
        self.state.set_session(
            name,
            0 if trading_date is None else self.plan.midnight_ns(trading_date),
            open_ns=0 if hours is None else hours.open_ns,
            close_ns=0 if hours is None else hours.close_ns,
        )

    def _enter_references(self) -> None:
        """Instruments whose keys the reference file knows."""
        for reference in self.plan.symbology.references.values():
            if reference.key is not None:
                symbol, _ = self.plan.symbology.describe(reference.symbol.encode())
                self.state.refer(
                    self.state.instrument(symbol.rstrip(b"\0").decode(), reference.key),
                    venue=self.plan.venue,
                    round_lot=reference.round_lot,
                    price_decimals=reference.price_decimals,
                    quantity_decimals=reference.quantity_decimals,
                )


def _short_name(name: str) -> str:
    encoded = name.encode()
    return name if len(encoded) <= SESSION_SIZE else sha256(encoded).hexdigest()[:SESSION_SIZE]


def _counters(converter: Converter) -> Counters:
    counters = Counters("converter", stream=str(converter.stream_id), table=converter.plan.name)
    for number, name in enumerate(converter.plan.messages):
        counters.watch("source_messages", partial(converter.taken_of, number), name)
    for number, output in enumerate(converter.plan.outputs):
        counters.watch("messages_converted", partial(converter.emitted_of, number), output.name)
    for fault, cause in FAULT_CAUSES.items():
        name = "source_messages_malformed" if fault <= c.FAULT_LIMIT else "source_messages_unmatched"
        counters.watch(name, partial(converter.faults_of, fault), cause)
    counters.watch("source_messages_repeated", converter.repeated_count)
    return counters


def _report(
    plan: Plan,
    stream_id: int,
    cause: str,
    count: int,
    route: int,
    sequence: int,
    offset: int,
    size: int,
    excerpt: bytes,
    reason: Any,
) -> None:
    fields = {"stream": stream_id, "cause": str(cause), "count": count, "source_sequence": sequence}
    if route >= 0:
        fields["message"] = plan.messages[route]
    if reason is not None:
        fields["error"] = repr(reason)
    _log.warning("malformed", **fields, offset=offset, size=size, excerpt=excerpt.hex())
