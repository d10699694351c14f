"""`penstock sub --node`: messages or records of a distribution node."""

import sys
from contextlib import ExitStack
from typing import TypeAlias

import msgspec

from penstock.base.errors import ConfigurationError
from penstock.base.readable import printable
from penstock.cli.common.interrupt import interruptible
from penstock.cli.sub.options import SubOptions
from penstock.cli.sub.output import show_session, write_told
from penstock.engine.client import Missed, NodeMessages, Records, open_messages, open_records
from penstock.filter.client.discovery import AUTO

Consumer: TypeAlias = NodeMessages | Records


def show_node(options: SubOptions) -> None:
    if options.records and options.where is not None:
        raise ConfigurationError("--where is for messages, not for --records")
    with ExitStack() as stack:
        interrupt = stack.enter_context(interruptible())
        consumer = _opened(options) if options.connect is None else _opened_by_client(stack, options)
        stack.callback(consumer.cancel)
        if isinstance(consumer, NodeMessages):
            consumer.on_session = lambda told: show_session(told, options.json)
        source = consumer.changes(per_second=options.metered or 0.0) if isinstance(consumer, Records) else consumer
        options.output.follow(
            source.next,
            interrupt,
            losing=consumer if isinstance(consumer, NodeMessages) else None,
            tell=_write_missed,
            summary=lambda seconds: _summary(consumer, seconds),
            explain_silence=lambda: (
                f"the node has no record on {' '.join(options.topics)}; `penstock top` shows its items"
            ),
        )


def _opened(options: SubOptions) -> Consumer:
    node = options.node or AUTO
    if options.records:
        return open_records(node, *options.topics, name="sub", offload=options.offload)
    return open_messages(
        node,
        *options.topics,
        cls="critical" if options.metered is None else "metered",
        per_second=options.metered or 0.0,
        where=options.where,
        name="sub",
        offload=options.offload,
    )


def _opened_by_client(stack: ExitStack, options: SubOptions) -> Consumer:
    """Open a consumer with a token of the administration server."""
    client = stack.enter_context(options.connected())
    node = options.node or AUTO
    if options.records:
        return client.records(*options.topics, node=node, offload=options.offload)
    if options.metered is not None:
        return client.metered(
            *options.topics, per_second=options.metered, where=options.where, node=node, offload=options.offload
        )
    return client.subscribe(*options.topics, where=options.where, node=node, offload=options.offload)


def _write_missed(missed: Missed, is_json: bool) -> None:
    if is_json:
        write_told({"missed": msgspec.to_builtins(missed)})
        return
    what = f"updates {missed.first} to {missed.last}" if missed.last else "an unknown number of updates"
    of = f" of {printable(missed.topic)}" if missed.topic else ""
    sys.stderr.write(f"-- missed {what}{of}: {printable(missed.cause)}\n")


def _summary(consumer: Consumer, ran_seconds: float) -> str:
    counted = consumer.statistics()
    values = ", ".join(f"{value:,} {name}" for name, value in msgspec.to_builtins(counted).items() if value)
    return f"{values or 'nothing'} in {ran_seconds:.1f} s"
