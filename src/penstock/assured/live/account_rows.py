"""The accounts of a router as rows of the models `router_run` and `router_account` (of an endpoint)."""

from collections.abc import Iterator
from typing import Any

from penstock.assured.core.router.endpoints import Endpoint
from penstock.assured.core.router.router import MessageRouter
from penstock.assured.live.observation import role_of
from penstock.assured.wire._layout import (
    OUTCOME_ASYNC,
    OUTCOME_DEGRADED,
    OUTCOME_KNOWN,
    OUTCOME_REFUSED,
    OUTCOME_STORED,
    OUTCOME_SYNC,
    OUTCOME_UNMATCHED,
)
from penstock.model import shipped
from penstock.runtime.accounts import Account

RUN, ACCOUNT = shipped("router_run"), shipped("router_account")

OUTCOMES = {
    "stored": OUTCOME_STORED,
    "asynchronous": OUTCOME_ASYNC,
    "synchronous": OUTCOME_SYNC,
    "degraded": OUTCOME_DEGRADED,
    "known": OUTCOME_KNOWN,
    "unmatched": OUTCOME_UNMATCHED,
}


def account_rows(core: MessageRouter, clients: int) -> Iterator[Account]:
    """The current accounts, read in the core's thread."""
    yield Account(RUN, 0, _run(core, clients))
    for endpoint in list(core.endpoints):
        yield Account(ACCOUNT, endpoint.number, _account(core, endpoint))


def _run(core: MessageRouter, clients: int) -> dict[str, Any]:
    tables = core.tables
    told = tables.publishers.outcome_counts()
    return {
        "role": role_of(core),
        "router_epoch": core.epoch,
        "clients": clients,
        "accepted": tables.accepted_total,
        "waiting": tables.accepted_total - tables.acknowledged_total,
        "refused": sum(count for outcome, count in told.items() if outcome >= OUTCOME_REFUSED),
        **{name: told.get(outcome, 0) for name, outcome in OUTCOMES.items()},
    }


def _account(core: MessageRouter, endpoint: Endpoint) -> dict[str, Any]:
    numbers = core.tables.endpoint_numbers(endpoint.number)
    kept = ("flows", "begun", "accepted", "brought", "delivered", "redelivered", "settled", "expired", "removed")
    return {
        "endpoint": endpoint.name,
        "number": endpoint.number,
        "dead": numbers["given_up"] - numbers["expired"],
        "overflowed": numbers["overflowed"],
        "live": numbers["messages"],
        "unsettled": numbers["messages"] - numbers["queued"],
        **{name: numbers[name] for name in kept},
    }
