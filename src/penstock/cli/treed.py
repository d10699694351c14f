"""`penstock sub --agent` and `penstock pub --agent`: what a distribution tree brings, and publishing on it."""

import re
import sys
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from penstock.base.errors import ConfigurationError
from penstock.cli.interrupt import interruptible
from penstock.cli.readable import printable
from penstock.cli.showing import EVERYTHING, Shown, write_told
from penstock.client import connect
from penstock.middleware import OutgoingBatch
from penstock.model import Message
from penstock.tree.application import Receipt, StreamPublisher, StreamSubscription, open_publisher, open_stream
from penstock.tree.application.subscription import Since
from penstock.tree.config import duration_s
from penstock.tree.control import Class
from penstock.tree.infostream import Info

FLUSH_SECONDS = 10.0


class TreeWish(msgspec.Struct, frozen=True):
    """What is wanted of which tree."""

    agents: tuple[str, ...]
    topics: tuple[str, ...]
    where: str | None
    since: str
    cls: Class
    tree: str
    infostream: bool
    """Whether what agents say is shown, too."""


def parse_since(text: str) -> Since:
    """live, oldest, a sequence, how long ago (90s, 6h), or a time as 2026-01-31T09:30."""
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
        raise ConfigurationError(f"{text!r} is no place to begin", hint=hint) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def show_stream(
    wish: TreeWish,
    url: str | None,
    credentials: Path | None,
    *,
    shown: Shown,
) -> None:
    with ExitStack() as stack:
        interrupt = stack.enter_context(interruptible())
        subscription = stack.enter_context(_opened(stack, wish, url, credentials))
        shown.follow(
            subscription.next,
            interrupt,
            losing=subscription,
            tell=_write_receipt,
            summary=lambda seconds: _summary(subscription, seconds),
        )


def _opened(stack: ExitStack, wish: TreeWish, url: str | None, credentials: Path | None) -> StreamSubscription:
    topics = wish.topics or (EVERYTHING,)
    since = parse_since(wish.since)
    on_infostream = _write_info if wish.infostream else None
    options: dict[str, Any] = {"cls": wish.cls, "tree": wish.tree, "on_infostream": on_infostream}
    if url is None:
        agent, *alternates = wish.agents
        return open_stream(agent, *topics, alternates=tuple(alternates), where=wish.where, since=since, **options)
    if credentials is None:
        raise ConfigurationError("--connect needs --credentials", hint="a file made by `penstock admin client`")
    client = stack.enter_context(connect(url, credentials=credentials))
    return client.subscribe(*topics, agent=wish.agents, where=wish.where, since=since, **options)


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


def _summary(subscription: StreamSubscription, ran_seconds: float) -> str:
    counted = subscription.statistics()
    values = ", ".join(f"{value:,} {name}" for name, value in msgspec.to_builtins(counted).items() if value)
    places = ", ".join(f"{name} {each.at:,}" for name, each in subscription.positions().items())
    return f"{values or 'nothing'} in {ran_seconds:.1f} s; {places or 'no streams'}"


def opened_publisher(
    stack: ExitStack, agents: tuple[str, ...], tree: str, url: str | None, credentials: Path | None, name: str | None
) -> StreamPublisher:
    """Flushed when the stack ends."""
    agent, *alternates = agents
    if url is None:
        publisher = open_publisher(agent, alternates=tuple(alternates), name=name or "", tree=tree)
    elif credentials is None:
        raise ConfigurationError("--connect needs --credentials", hint="a file made by `penstock admin client`")
    else:
        client = stack.enter_context(connect(url, credentials=credentials))
        publisher = client.stream_publisher(agent=agents, name=name or "", tree=tree)
    return stack.enter_context(publisher)


class TreeOutput:
    """A publisher of a tree, used like one of a channel."""

    def __init__(self, publisher: StreamPublisher) -> None:
        self._publisher = publisher
        self._count = 0

    def publish(self, topic: str, payload: bytes | Message) -> None:
        self._publisher.publish(topic, payload)
        self._count += 1

    def publish_batch(self, batch: OutgoingBatch) -> None:
        topics, payloads = bytes(batch.topic_data), batch.payloads.tobytes()
        for row in batch.rows:
            topic_at, payload_at = int(row["topic_offset"]), int(row["payload_offset"])
            self._publisher.publish(
                topics[topic_at : topic_at + int(row["topic_size"])].decode(),
                payloads[payload_at : payload_at + int(row["payload_size"])],
                model_id=int(row["model_id"]),
                model_version=int(row["model_version"]),
            )
            self._count += 1

    def conclude(self) -> None:
        """Wait until the root has everything, and say so."""
        is_kept = self._publisher.flush(FLUSH_SECONDS)
        rest = "" if is_kept else f"; the root has {self._publisher.accepted:,} of them and does not answer"
        sys.stderr.write(f"{self._count:,} messages published{rest}\n")
