"""`penstock sub --agent`: streams of a distribution tree."""

import re
import sys
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, cast, get_args

import msgspec

from penstock.base.errors import ConfigurationError
from penstock.base.readable import printable
from penstock.cli.common.interrupt import interruptible
from penstock.cli.common.secrets import given_secret
from penstock.cli.sub.options import SubOptions
from penstock.cli.sub.output import write_told
from penstock.net.guard import Guard
from penstock.tree.client import Receipt, StreamSubscription, open_stream
from penstock.tree.client.subscription import Since
from penstock.tree.config import duration_s
from penstock.tree.core.control import Class
from penstock.tree.core.infostream import Info


def parse_since(text: str) -> Since:
    """Parse live, oldest, a sequence number, an age (90s, 6h), or a time such as 2026-01-31T09:30."""
    if text in ("live", "oldest"):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    if re.fullmatch(r"[0-9]+[smhdw]", text):
        return timedelta(seconds=duration_s(text))
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        hint = "live, oldest, a sequence, 6h, or 2026-01-31T09:30"
        raise ConfigurationError(f"{text!r} is not a valid start", hint=hint) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def show_stream(options: SubOptions) -> None:
    if options.cls not in get_args(Class):
        raise ConfigurationError(f"{options.cls!r} is not a class", hint="use lossless, conflating or disconnect")
    with ExitStack() as stack:
        interrupt = stack.enter_context(interruptible())
        subscription = stack.enter_context(_opened(stack, options))
        options.output.follow(
            subscription.next,
            interrupt,
            losing=subscription,
            tell=_write_receipt,
            summary=lambda seconds: _summary(subscription, seconds),
            explain_silence=lambda: _explain_silence(subscription, options),
        )


def _opened(stack: ExitStack, options: SubOptions) -> StreamSubscription:
    agents = tuple(options.agent or ())
    common: dict[str, Any] = {
        "where": options.where,
        "since": parse_since(options.since),
        "cls": cast(Class, options.cls),
        "tree": options.tree,
        "on_infostream": _write_info if options.infostream else None,
    }
    if options.connect is None:
        guard = Guard(given_secret(options.secret))
        return open_stream(agents[0], *options.topics, alternates=agents[1:], guard=guard, **common)
    client = stack.enter_context(options.connected())
    return client.subscribe(*options.topics, agent=agents, **common)


def _write_receipt(receipt: Receipt, is_json: bool) -> None:
    if is_json:
        write_told({"missed": msgspec.to_builtins(receipt)})
        return
    what = f"messages {receipt.first:,} to {receipt.last:,} of {printable(receipt.stream)}"
    sys.stderr.write(f"-- missed {what}: {receipt.cause}\n")


def _write_info(agent: str, info: Info) -> None:
    if info.kind not in ("through", "load"):
        told = msgspec.json.encode(info).decode()
        sys.stderr.write(printable(f"-- {agent} says {info.kind}: {told}") + "\n")


def _explain_silence(subscription: StreamSubscription, options: SubOptions) -> str:
    topics, streams = " ".join(options.topics), ", ".join(subscription.positions())
    if not streams:
        return f"the tree has no stream with topics that match {topics}; --infostream shows what its agents announce"
    return (
        f"nothing was published on {topics} in {streams} since {options.since}; --since oldest begins with what is kept"
    )


def _summary(subscription: StreamSubscription, ran_seconds: float) -> str:
    counted = subscription.statistics()
    values = ", ".join(f"{value:,} {name}" for name, value in msgspec.to_builtins(counted).items() if value)
    places = ", ".join(f"{name} {each.at:,}" for name, each in subscription.positions().items())
    return f"{values or 'nothing'} in {ran_seconds:.1f} s; {places or 'no streams'}"
