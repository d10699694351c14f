"""A router's accounts in a journal of its own, which the pipeline archives as it archives captures.

Every so often, and at its end, what became of messages is written down: messages of the models `router_run` and
`router_account` (of an endpoint), in packets, as docs/protocol/capture.md says. What has not changed is not written
again.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

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
from penstock.base.counters import Counters
from penstock.capture.accounts import AccountBook, AccountJournal
from penstock.model import Message, MessageModel, shipped
from penstock.runtime.accounts import AccountsConfig

RUN, ACCOUNT = shipped("router_run"), shipped("router_account")

OUTCOMES = {
    "stored": OUTCOME_STORED,
    "asynchronous": OUTCOME_ASYNC,
    "synchronous": OUTCOME_SYNC,
    "degraded": OUTCOME_DEGRADED,
    "known": OUTCOME_KNOWN,
    "unmatched": OUTCOME_UNMATCHED,
}


class Given(msgspec.Struct, frozen=True):
    """An account as it stands: a message's fields, but for who gives it and when."""

    model: MessageModel
    about: int
    fields: dict[str, Any]
    is_closed: bool = False


class RouterRecorder:
    """One run's accounts, from start() to close()."""

    def __init__(
        self,
        config: AccountsConfig,
        name: str,
        core: MessageRouter,
        clients: Callable[[], int],
        counters: Counters,
    ) -> None:
        self._config = config
        self._name = name
        self._core = core
        self._clients = clients
        self._journal = AccountJournal(config, counters)
        self._book: AccountBook[Given] = AccountBook(
            self._journal,
            f"penstock.router.{name}.{{}}",
            lambda given: (given.model.name, given.about),
            self._messages,
        )

    def start(self) -> None:
        """JournalError when the journal cannot be opened now: that is a mistake, later trouble is not."""
        self._journal.start()

    async def keep(self) -> None:
        """Give account, every so often."""
        while True:
            await asyncio.sleep(self._config.period_s)
            await asyncio.to_thread(self._book.record, list(self.given()))

    async def close(self) -> None:
        """The last accounts, when nothing happens any more."""
        given = [msgspec.structs.replace(each, is_closed=True) for each in self.given()]
        await asyncio.to_thread(self._book.record, given)
        await asyncio.to_thread(self._journal.close)

    def given(self) -> Iterator[Given]:
        """How everything stands. In the core's thread."""
        yield Given(RUN, 0, self._run())
        for endpoint in list(self._core.endpoints):
            yield Given(ACCOUNT, endpoint.number, self._account(endpoint))

    def _run(self) -> dict[str, Any]:
        tables = self._core.tables
        told = tables.outcome_counts()
        return {
            "role": role_of(self._core),
            "router_epoch": self._core.epoch,
            "clients": self._clients(),
            "accepted": tables.accepted_total,
            "waiting": tables.accepted_total - tables.acknowledged_total,
            "refused": sum(count for outcome, count in told.items() if outcome >= OUTCOME_REFUSED),
            **{name: told.get(outcome, 0) for name, outcome in OUTCOMES.items()},
        }

    def _account(self, endpoint: Endpoint) -> dict[str, Any]:
        numbers = self._core.tables.endpoint_numbers(endpoint.number)
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

    def _messages(self, given: Given, now_ns: int) -> list[Message]:
        return [
            given.model.new(
                router=self._name,
                event_time=now_ns,
                started=self._journal.started_ns,
                state="closed" if given.is_closed else "open",
                **given.fields,
            )
        ]
