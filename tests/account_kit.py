"""Accounts that nodes have written, and sample accounts of a tree."""

from pathlib import Path
from typing import Any

from penstock.capture import replay
from penstock.journal import JournalReader
from penstock.middleware import Deliver
from penstock.model import shipped, shipped_names


def recorded(path: Path) -> list[dict[str, object]]:
    with JournalReader.open(path) as journal:
        delivered = [answer for _, answer in replay(journal.read()) if isinstance(answer, Deliver)]
    models = {model.id: model for model in map(shipped, shipped_names())}
    return [
        {"model": models[message.model_id].name, **models[message.model_id].view(bytes(message.payload)).to_dict()}
        for answer in delivered
        for message in answer.messages
    ]


def tree_accounts(
    *, is_killed: bool = False, root: dict[str, Any] | None = None, leaf: dict[str, Any] | None = None, **changes: Any
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """A root and a leaf with one subscriber, as rows of `agent_run`, `agent_intake` and `agent_account`; `root` and
    `leaf` change their counts of the stream, `changes` the counts of the subscriber."""
    given = {"tree": "tree", "event_time": 3, "started": 1, "state": "closed"}
    run = {**given, "refused": 1, "suppressed": 0, "root_term": 65_536, "children": 1}
    runs = [
        {**run, "agent": "root", "role": "root", "parent": "", "depth": 1, "parents_found": 0, "parents_lost": 0},
        {**run, "agent": "leaf", "role": "agent", "parent": "root", "depth": 2, "parents_found": 3, "parents_lost": 2},
    ]
    if is_killed:
        runs += [{**runs[1], "started": 0, "state": "open"}]
    stream = {**given, "stream_name": "md", "last": 1_500, "duplicates": 0, "root_term": 65_536}
    streams = [
        {**stream, "agent": "root", "role": "root", "begun": 500, "taken": 1_000, **(root or {})},
        {**stream, "agent": "leaf", "role": "agent", "begun": 0, "taken": 300, "duplicates": 7, **(leaf or {})},
    ]
    link = {
        **given, "agent": "leaf", "received": 0, "bytes_in": 100, "sent": 250, "bytes_out": 64_000, "fetched": 50,
        "portions": 2, "lagging": 1, "conflated": 0, "gone": 0, "diverged": 0, "duplicates": 0, "dropped": 0,
        "revoked": 0, "class_name": "lossless",
    }  # fmt: skip
    links = [
        {**link, "party": "root", "role": "parent", "link": 1, "received": 300, "sent": 0, "fetched": 0},
        {**link, "party": "screen", "role": "subscriber", "link": 2, **changes},
    ]
    return runs, streams, links


def router_accounts(
    *, is_killed: bool = False, run: dict[str, Any] | None = None, after: dict[str, Any] | None = None, **changes: Any
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A router with one endpoint that was started twice, as rows of `router_run` and `router_account`; `changes` and
    `run` change the rows of the first run, `after` those of the second."""
    given = {"router": "router", "event_time": 3, "started": 1, "state": "open" if is_killed else "closed"}
    first = {
        **given, "role": "active", "router_epoch": 1, "clients": 2, "accepted": 100, "stored": 60, "asynchronous": 20,
        "synchronous": 15, "degraded": 5, "waiting": 0, "known": 2, "unmatched": 1, "refused": 3, **(run or {}),
    }  # fmt: skip
    second = {**first, "started": 2, "event_time": 5, "state": "open", "accepted": 0, "refused": 0, "waiting": 0}
    second |= dict.fromkeys(("stored", "asynchronous", "synchronous", "degraded"), 0)
    endpoint = {
        **given, "endpoint": "orders", "number": 1, "flows": 1, "begun": 5, "accepted": 100, "brought": 0,
        "delivered": 110, "redelivered": 10, "settled": 90, "dead": 6, "expired": 3, "removed": 1, "overflowed": 0,
        "live": 5, "unsettled": 2, **changes,
    }  # fmt: skip
    none = dict.fromkeys(("accepted", "delivered", "redelivered", "settled", "dead", "expired", "removed"), 0)
    later = {**endpoint, **none, "started": 2, "event_time": 5, "state": "open", "begun": 5, "live": 5, "unsettled": 0}
    return [first, second], [endpoint, {**later, **(after or {})}]
