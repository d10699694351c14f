"""Views of messages and events, for readers and for programs."""

import base64
import sys
import time
from typing import Any, Protocol

import msgspec

from penstock.base.ids import format_group
from penstock.base.readable import harmless_json, printable
from penstock.capture.core.message_reader import KnownModels
from penstock.middleware import (
    Collision,
    Deliver,
    DeliverBatch,
    LossReceipt,
    StreamEnded,
    StreamKey,
    StreamStarted,
)
from penstock.model import KnownInstruments, MessageModel
from penstock.model.jsontext import texts
from penstock.wire import PacketMessage

PAYLOAD_SHOWN_MAX = 80

Event = LossReceipt | StreamStarted | StreamEnded | Collision


class View(Protocol):
    shown: int

    def message(self, message: PacketMessage, source: Deliver | DeliverBatch) -> None:
        """Show one of the delivered messages."""
        ...

    def event(self, event: Event) -> None: ...

    def flush(self) -> None:
        """Called after all messages of a batch were shown."""
        ...


class PrettyView:
    """A line of text for each message; events go to standard error."""

    def __init__(self, model: MessageModel) -> None:
        self.shown = 0
        self._models = KnownModels(model)
        self._known = KnownInstruments()

    def message(self, message: PacketMessage, source: Deliver | DeliverBatch) -> None:
        self.shown += 1
        sys.stdout.write(f"{printable(message.topic)} #{_origin(message, source)[1]} {self._content(message)}\n")

    def _content(self, message: PacketMessage) -> str:
        record = self._models.read(message)
        if record is None:
            payload = bytes(message.payload)
            more = f" … {len(payload)} bytes" if len(payload) > PAYLOAD_SHOWN_MAX else ""
            return f"{payload[:PAYLOAD_SHOWN_MAX]!r}{more}"
        shown = texts(record, self._known.of(record))
        values = [f"{name}={shown_value(value)}" for name, value in shown.items() if value not in (None, "")]
        return " ".join([record.model.name, *values])

    def event(self, event: Event) -> None:
        self.flush()  # the event must appear in order with the messages
        sys.stderr.write(f"-- {describe(event)}\n")

    def flush(self) -> None:
        sys.stdout.flush()


class JsonView:
    """A JSON object for each message and event."""

    def __init__(self, model: MessageModel) -> None:
        self.shown = 0
        self._models = KnownModels(model)
        self._known = KnownInstruments()

    def message(self, message: PacketMessage, source: Deliver | DeliverBatch) -> None:
        self.shown += 1
        publisher_id, sequence = _origin(message, source)
        line: dict[str, Any] = {"topic": message.topic, "seq": sequence, "publisher": f"{publisher_id:016x}"}
        record = self._models.read(message)
        if record is not None:
            line |= {"model": record.model.name, "fields": msgspec.Raw(record.to_json(self._known.of(record)).encode())}
        else:
            line |= {"model_id": message.model_id, "base64": base64.b64encode(message.payload).decode()}
        self._write(line)

    def event(self, event: Event) -> None:
        names = {LossReceipt: "loss", StreamStarted: "started", StreamEnded: "ended", Collision: "collision"}
        fields = msgspec.to_builtins(event)
        del fields["stream"]
        where = {"publisher": f"{event.stream.publisher_id:016x}", "group": format_group(event.stream.group)}
        self._write({names[type(event)]: {**where, **fields}})

    def flush(self) -> None:
        sys.stdout.flush()

    def _write(self, line: dict[str, Any]) -> None:
        sys.stdout.write(harmless_json(msgspec.json.encode(line).decode()) + "\n")


class QuietView:
    """One line per second: the number of messages, and events."""

    def __init__(self) -> None:
        self.shown = 0
        self._lost = 0
        self._started = self._then = time.monotonic()
        self._shown_then = 0

    def message(self, message: PacketMessage, source: Deliver | DeliverBatch) -> None:
        self.shown += 1

    def event(self, event: Event) -> None:
        if isinstance(event, LossReceipt):
            self._lost += event.last - event.first + 1

    def flush(self) -> None:
        now = time.monotonic()
        if now - self._then >= 1:
            rate = (self.shown - self._shown_then) / (now - self._then)
            elapsed = now - self._started
            sys.stdout.write(f"{elapsed:8.1f} s  {self.shown:,} messages  {rate:,.0f}/s  {self._lost:,} packets lost\n")
            sys.stdout.flush()
            self._shown_then, self._then = self.shown, now


def describe(event: Event) -> str:
    """Describe an event in one sentence."""
    who = _name(event.stream)
    match event:
        case LossReceipt(first=first, last=last, cause=cause, topic=topic):
            of = f" of a message on {printable(topic)}" if topic else ""
            return f"lost packets {first} to {last}{of} of {who}: {cause}"
        case StreamStarted(first=first, is_replay=is_replay):
            return f"{who} begins with packet {first}{', a replay from the past' if is_replay else ''}"
        case StreamEnded(cause=cause, next_sequence=next_sequence):
            return f"{who} ended before packet {next_sequence}: {cause}"
        case Collision(owner=owner, intruder=intruder):
            return f"{who} at {owner[0]}:{owner[1]} has a rival of the same id at {intruder[0]}:{intruder[1]}"


def _name(stream: StreamKey) -> str:
    return f"publisher {stream.publisher_id:016x} on {format_group(stream.group)}"


def _origin(message: PacketMessage, source: Deliver | DeliverBatch) -> tuple[int, int]:
    """Publisher and packet number; a reassembled message has those of its last fragment."""
    if isinstance(source, Deliver):
        return source.stream.publisher_id, source.sequence
    return message.publisher_id, message.sequence


def shown_value(value: Any) -> str:
    """Format the value of a field."""
    if isinstance(value, frozenset):
        return "+".join(sorted(value)) or "-"
    return printable(value) if isinstance(value, str) else str(value)
