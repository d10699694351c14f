"""`penstock sub --connect`: what a subscription through an administration server brings."""

import base64
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from penstock.capture.reading import Readable
from penstock.cli.interrupt import Interrupt, interruptible
from penstock.cli.readable import harmless_json, printable
from penstock.cli.show import PAYLOAD_SHOWN_MAX, shown_value
from penstock.client import ClientConfig, Subscription, UnreadMessage, connect
from penstock.client.joining import Receipt
from penstock.client.line import Transport
from penstock.engine._event import Event, EventKind
from penstock.engine.application import UnreadRecord
from penstock.engine.application._store import RecordState
from penstock.middleware import Discontinuity, LossReceipt
from penstock.wire import Origin

AnyReadable: TypeAlias = Readable | UnreadRecord

LOOK_SECONDS = 0.2
EVERYTHING = ">"


def show_subscription(
    url: str,
    credentials: Path,
    topics: list[str],
    *,
    where: str | None,
    image: bool,
    transport: Transport,
    interface: str | None,
    config: ClientConfig,
    is_json: bool,
    is_quiet: bool,
    count: int | None,
    seconds: float,
) -> None:
    """Until interrupted, or as much and as long as told; then a summary on standard error."""
    started = time.monotonic()
    with (
        interruptible() as interrupt,
        connect(url, credentials=credentials, interface=interface, config=config) as client,
        client.subscribe(*(topics or [EVERYTHING]), where=where, image=image, transport=transport) as subscription,
    ):
        write = ignore if is_quiet else write_json if is_json else write_line
        try:
            _show(subscription, write, is_json, interrupt, count, started + seconds)
        finally:
            sys.stdout.flush()
            sys.stderr.write(_summary(subscription, time.monotonic() - started) + "\n")


def _show(
    subscription: Subscription,
    write: Callable[[Readable], None],
    is_json: bool,
    interrupt: Interrupt,
    count: int | None,
    deadline: float,
) -> None:
    shown = 0
    told = 0
    while not interrupt.is_wanted and shown != count and (left := deadline - time.monotonic()) > 0:
        message = subscription.next(min(left, LOOK_SECONDS))
        if subscription.loss_count != told:
            for receipt in subscription.losses[told - subscription.loss_count :]:
                _write_receipt(receipt, is_json)
            told = subscription.loss_count
        if message is None:
            sys.stdout.flush()
        else:
            write(message)
            shown += 1


def ignore(message: AnyReadable) -> None:
    """Only the summary is wanted."""


def write_line(message: AnyReadable) -> None:
    if isinstance(message, UnreadMessage | UnreadRecord):
        payload = bytes(message)
        more = f" … {len(payload)} bytes" if len(payload) > PAYLOAD_SHOWN_MAX else ""
        content = f"{payload[:PAYLOAD_SHOWN_MAX]!r}{more}"
    else:
        values = [
            f"{name}={shown_value(value)}" for name, value in message.to_dict().items() if value not in (None, "")
        ]
        content = " ".join([message.model.name, *values])
    sys.stdout.write(f"{printable(message.topic)} #{message.seq} {content}\n")


def write_json(message: AnyReadable) -> None:
    line: dict[str, Any] = {"topic": message.topic, "seq": message.seq}
    source = message.source
    if isinstance(source, Origin):
        line |= {"stream_id": source.stream_id, "source_seq": source.source_sequence}
    elif isinstance(source, Event):
        line |= {"event": EventKind(source.kind).name.lower(), "number": source.number, "merged": source.merged}
    elif isinstance(source, RecordState):
        line |= {"changed": list(source.changed), "since": source.since_count}
    if isinstance(message, UnreadMessage | UnreadRecord):
        line |= {"model_id": message.model_id, "base64": base64.b64encode(message.payload).decode()}
    else:
        line |= {"model": message.model.name, "fields": msgspec.Raw(message.to_json().encode())}
    sys.stdout.write(harmless_json(msgspec.json.encode(line).decode()) + "\n")


def _write_receipt(receipt: Receipt, is_json: bool) -> None:
    sys.stdout.flush()
    if is_json:
        names = {"MergeGap": "gap", "Discontinuity": "discontinuity", "LossReceipt": "loss"}
        told = {names[type(receipt).__name__]: msgspec.to_builtins(receipt)}
        sys.stdout.write(harmless_json(msgspec.json.encode(told).decode()) + "\n")
    elif isinstance(receipt, Discontinuity):
        sys.stderr.write(
            f"-- source stream {receipt.stream_id} goes on after {receipt.message_sequence}: "
            f"{printable(receipt.reason)}\n"
        )
    else:
        what = "packets" if isinstance(receipt, LossReceipt) else f"messages of source stream {receipt.stream_id}:"
        sys.stderr.write(f"-- lost {what} {receipt.first} to {receipt.last}: {receipt.cause}\n")


def _summary(subscription: Subscription, ran_seconds: float) -> str:
    counted = subscription.statistics()
    parts = [
        f"{counted.messages:,} messages in {ran_seconds:.1f} s",
        f"{counted.duplicates:,} copies suppressed, {counted.lost:,} lost, {counted.repairs:,} packets repaired",
    ]
    if counted.discontinuities:
        parts.append(f"{counted.discontinuities:,} discontinuities")
    if counted.refused or counted.unreadable:
        parts.append(f"{counted.refused:,} not granted, {counted.unreadable:,} unreadable")
    return "; ".join(parts)
