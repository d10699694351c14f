"""The output of `penstock sub` for any source: messages, with losses in order."""

import base64
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import msgspec
import typer

from penstock.base.readable import harmless_json, printable
from penstock.capture.core.message_reader import Readable
from penstock.cli.common.interrupt import Interrupt
from penstock.cli.sub.views import PAYLOAD_SHOWN_MAX, shown_value
from penstock.client import UnreadMessage
from penstock.engine.client import UnreadRecord, Withdrawn
from penstock.engine.client._store import RecordState
from penstock.engine.core.kernel._event import Event, EventKind
from penstock.middleware import SessionEvent
from penstock.model import KnownInstruments
from penstock.model.jsontext import texts
from penstock.wire import Origin

AnyReadable: TypeAlias = Readable | UnreadRecord

LOOK_SECONDS = 0.2
SILENCE_SECONDS = 3.0
EVERYTHING = ">"


class Losing(Protocol):
    """A source that reports missing messages: `losses` has the newest ones."""

    @property
    def loss_count(self) -> int: ...
    @property
    def losses(self) -> Sequence[Any]: ...


class SilenceNotice:
    """Explains once, on standard error, why no message may have arrived: after SILENCE_SECONDS, or at the end."""

    def __init__(self, explain: Callable[[], str]) -> None:
        self._explain = explain
        self._due = time.monotonic() + SILENCE_SECONDS
        self._is_told = False

    def check(self, shown: int, *, is_end: bool = False) -> None:
        if self._is_told or (not is_end and time.monotonic() < self._due):
            return
        self._is_told = True
        if not shown:
            sys.stderr.write(f"-- no message yet: {self._explain()}\n")


class Output(msgspec.Struct, frozen=True):
    """The format and limits of a subscription's output."""

    is_json: bool
    is_quiet: bool
    count: int | None
    seconds: float

    def follow(
        self,
        next_message: Callable[[float], AnyReadable | None],
        interrupt: Interrupt,
        *,
        losing: Losing | None,
        tell: Callable[[Any, bool], None],
        summary: Callable[[float], str],
        explain_silence: Callable[[], str],
    ) -> None:
        """Show messages and losses until interrupted or until a limit is reached; then print a summary on standard
        error. The exit status is 1 if there was no message."""
        silence = SilenceNotice(explain_silence)
        known = KnownInstruments()
        write = _ignore if self.is_quiet else partial(_write_json if self.is_json else _write_line, known)
        started = time.monotonic()
        shown = told = 0
        try:
            while not interrupt.is_wanted and shown != self.count:
                if (left := started + self.seconds - time.monotonic()) <= 0:
                    break
                message = next_message(min(left, LOOK_SECONDS))
                if losing is not None and losing.loss_count != told:
                    sys.stdout.flush()
                    for receipt in losing.losses[told - losing.loss_count :]:
                        tell(receipt, self.is_json)
                    told = losing.loss_count
                if message is None:
                    sys.stdout.flush()
                    silence.check(shown)
                else:
                    write(message)
                    shown += 1
            silence.check(shown, is_end=True)
        finally:
            sys.stdout.flush()
            sys.stderr.write(summary(time.monotonic() - started) + "\n")
        if not shown:
            raise typer.Exit(1)


def write_told(told: dict[str, Any]) -> None:
    """Print one line of JSON without terminal control characters."""
    sys.stdout.write(harmless_json(msgspec.json.encode(told).decode()) + "\n")


def show_session(told: SessionEvent | Withdrawn, is_json: bool) -> None:
    """Print a session event in order with the messages; withdrawn values are shown only in JSON output."""
    if isinstance(told, SessionEvent) and told.kind == "running":
        return
    if is_json:
        name = "session" if isinstance(told, SessionEvent) else "withdrawn"
        write_told({name: msgspec.to_builtins(told)})
    elif isinstance(told, SessionEvent):
        sys.stdout.flush()
        of = f"source stream {told.stream_id}" + (f" of {printable(told.feed)}" if told.feed else "")
        name = f" {printable(told.session)}" if told.session else ""
        date = f" ({printable(told.trading_date)})" if told.trading_date else ""
        sys.stderr.write(f"-- {of}: session{name}{date} {'ended' if told.kind == 'end' else 'began'}\n")


def _ignore(message: AnyReadable) -> None:
    """Print nothing: only the summary is wanted."""


def _write_line(known: KnownInstruments, message: AnyReadable) -> None:
    if isinstance(message.source, RecordState) and message.source.is_withdrawn:
        content = "withdrawn"
    elif isinstance(message, UnreadMessage | UnreadRecord):
        payload = bytes(message)
        more = f" … {len(payload)} bytes" if len(payload) > PAYLOAD_SHOWN_MAX else ""
        content = f"{payload[:PAYLOAD_SHOWN_MAX]!r}{more}"
    else:
        values = [
            f"{name}={shown_value(value)}"
            for name, value in texts(message, known.of(message)).items()
            if value not in (None, "")
        ]
        content = " ".join([message.model.name, *values])
    sys.stdout.write(f"{printable(message.topic)} #{message.seq} {content}\n")


def _write_json(known: KnownInstruments, message: AnyReadable) -> None:
    line: dict[str, Any] = {"topic": message.topic, "seq": message.seq}
    source = message.source
    if isinstance(source, Origin):
        line |= {"stream_id": source.stream_id, "source_seq": source.source_sequence}
    elif isinstance(source, Event):
        line |= {"event": EventKind(source.kind).name.lower(), "number": source.number, "merged": source.merged}
    elif isinstance(source, RecordState):
        line |= {"changed": list(source.changed), "since": source.since_count}
        if source.is_withdrawn:
            write_told(line | {"withdrawn": True})
            return
    if isinstance(message, UnreadMessage | UnreadRecord):
        line |= {"model_id": message.model_id, "base64": base64.b64encode(message.payload).decode()}
    else:
        line |= {"model": message.model.name, "fields": msgspec.Raw(message.to_json(known.of(message)).encode())}
    write_told(line)
