"""`penstock sub --node`: what a distribution node gives."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import msgspec

from penstock.base.errors import ConfigurationError
from penstock.cli.interrupt import interruptible
from penstock.cli.readable import printable
from penstock.cli.showing import EVERYTHING, Shown, show_session, write_told
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
    shown: Shown,
) -> None:
    if wish.records and wish.where is not None:
        raise ConfigurationError("--where is for messages, not for --records")
    with ExitStack() as stack:
        interrupt = stack.enter_context(interruptible())
        consumer = _opened(stack, wish, url, credentials)
        stack.callback(consumer.cancel)
        if isinstance(consumer, NodeMessages):
            consumer.on_session = lambda told: show_session(told, shown.is_json)
        source = consumer.changes(per_second=wish.per_second or 0.0) if isinstance(consumer, Records) else consumer
        shown.follow(
            source.next,
            interrupt,
            losing=consumer if isinstance(consumer, NodeMessages) else None,
            tell=_write_missed,
            summary=lambda seconds: _summary(consumer, seconds),
        )


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


def _write_missed(missed: Missed, is_json: bool) -> None:
    if is_json:
        write_told({"missed": msgspec.to_builtins(missed)})
        return
    what = f"updates {missed.first} to {missed.last}" if missed.last else "nobody knows how many updates"
    of = f" of {printable(missed.topic)}" if missed.topic else ""
    sys.stderr.write(f"-- missed {what}{of}: {printable(missed.cause)}\n")


def _summary(consumer: Consumer, ran_seconds: float) -> str:
    counted = consumer.statistics()
    values = ", ".join(f"{value:,} {name}" for name, value in msgspec.to_builtins(counted).items() if value)
    return f"{values or 'nothing'} in {ran_seconds:.1f} s"
