"""`penstock sub --node`: what a distribution node gives."""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import msgspec

from penstock.base.errors import ConfigurationError
from penstock.cli.interrupt import Interrupt, interruptible
from penstock.cli.readable import harmless_json, printable
from penstock.cli.subscribed import EVERYTHING, LOOK_SECONDS, AnyReadable, ignore, write_json, write_line
from penstock.client import connect
from penstock.engine.application import Missed, NodeMessages, Records, open_messages, open_records


class NodeWish(msgspec.Struct, frozen=True):
    """What is wanted of which node."""

    node: str
    topics: tuple[str, ...]
    where: str | None = None
    records: bool = False
    """The newest records as they change; else messages."""

    per_second: float | None = None
    """Of metered messages, or how often a record is shown at most."""

    offload: bool = False


Consumer: TypeAlias = NodeMessages | Records


def show_node(
    wish: NodeWish,
    url: str | None,
    credentials: Path | None,
    *,
    is_json: bool,
    is_quiet: bool,
    count: int | None,
    seconds: float,
) -> None:
    """Until interrupted, or as much and as long as told; then a summary on standard error."""
    if wish.records and wish.where is not None:
        raise ConfigurationError("--where is for messages, not for --records")
    started = time.monotonic()
    with ExitStack() as stack:
        interrupt = stack.enter_context(interruptible())
        consumer = _opened(stack, wish, url, credentials)
        stack.callback(consumer.cancel)
        write = ignore if is_quiet else write_json if is_json else write_line
        try:
            _show(consumer, wish, write, is_json, interrupt, count, started + seconds)
        finally:
            sys.stdout.flush()
            sys.stderr.write(_summary(consumer, time.monotonic() - started) + "\n")


def _opened(stack: ExitStack, wish: NodeWish, url: str | None, credentials: Path | None) -> Consumer:
    topics = wish.topics or (EVERYTHING,)
    if url is None:
        if wish.records:
            return open_records(wish.node, *topics, name="sub", offload=wish.offload)
        return open_messages(
            wish.node,
            *topics,
            cls="critical" if wish.per_second is None else "metered",
            per_second=wish.per_second or 0.0,
            where=wish.where,
            name="sub",
            offload=wish.offload,
        )
    if credentials is None:
        raise ConfigurationError("--connect needs --credentials", hint="a file made by `penstock admin client`")
    client = stack.enter_context(connect(url, credentials=credentials))
    if wish.records:
        return client.records(*topics, node=wish.node, offload=wish.offload)
    if wish.per_second is not None:
        return client.metered(
            *topics, per_second=wish.per_second, where=wish.where, node=wish.node, offload=wish.offload
        )
    return client.subscribe(*topics, where=wish.where, node=wish.node, offload=wish.offload)


def _show(
    consumer: Consumer,
    wish: NodeWish,
    write: Callable[[AnyReadable], None],
    is_json: bool,
    interrupt: Interrupt,
    count: int | None,
    deadline: float,
) -> None:
    shown = told = 0
    source = consumer.changes(per_second=wish.per_second or 0.0) if isinstance(consumer, Records) else consumer
    while not interrupt.is_wanted and shown != count and (left := deadline - time.monotonic()) > 0:
        message = source.next(min(left, LOOK_SECONDS))
        if isinstance(consumer, NodeMessages) and consumer.loss_count != told:
            for missed in consumer.losses[told - consumer.loss_count :]:
                _write_missed(missed, is_json)
            told = consumer.loss_count
        if message is None:
            sys.stdout.flush()
        else:
            write(message)
            shown += 1


def _write_missed(missed: Missed, is_json: bool) -> None:
    sys.stdout.flush()
    if is_json:
        told = {"missed": msgspec.to_builtins(missed)}
        sys.stdout.write(harmless_json(msgspec.json.encode(told).decode()) + "\n")
        return
    what = f"updates {missed.first} to {missed.last}" if missed.last else "nobody knows how many updates"
    of = f" of {printable(missed.topic)}" if missed.topic else ""
    sys.stderr.write(f"-- missed {what}{of}: {printable(missed.cause)}\n")


def _summary(consumer: Consumer, ran_seconds: float) -> str:
    counted = consumer.statistics()
    values = ", ".join(f"{value:,} {name}" for name, value in msgspec.to_builtins(counted).items() if value)
    return f"{values or 'nothing'} in {ran_seconds:.1f} s"
