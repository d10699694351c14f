"""An agent's accounts in a journal of its own, which the pipeline archives as it archives captures.

Every so often, and when a neighbour's link ends, what passed is written down: messages of the models `agent_run`,
`agent_intake` and `agent_account`, in packets, as docs/protocol/capture.md says. What has not changed is not written
again.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from penstock.base.counters import Counters
from penstock.base.errors import PenstockError
from penstock.capture.accounts import AccountBook, AccountJournal
from penstock.model import Message, MessageModel, shipped
from penstock.runtime.accounts import UNWRITTEN_MAX
from penstock.tree.config import AgentConfig
from penstock.tree.core.accounts import LinkAccount
from penstock.tree.core.agent import DistributionAgent

RUN, INTAKE, ACCOUNT = shipped("agent_run"), shipped("agent_intake"), shipped("agent_account")


REFUSALS = ("consumers_refused", "requests_refused", "connections_refused")


class Given(msgspec.Struct, frozen=True):
    """An account as it stands: a message's fields, but for who gives it and when."""

    model: MessageModel
    about: str | int
    fields: dict[str, Any]
    is_closed: bool = False


class AgentRecorder:
    """One run's accounts, from start() to close()."""

    def __init__(
        self, config: AgentConfig, core: DistributionAgent, counted: Sequence[Counters], counters: Counters
    ) -> None:
        """`counted` know how often somebody or something was refused so far; `counters` count what is written here."""
        self._config = config
        self._core = core
        self._counted = counted
        self._journal = AccountJournal(config.accounts, counters)
        self._book: AccountBook[Given] = AccountBook(
            self._journal,
            f"penstock.tree.{config.name}.{{}}",
            lambda given: (given.model.name, given.about),
            self._messages,
        )
        core.board.ledger.keep(UNWRITTEN_MAX)

    def start(self) -> None:
        """JournalError when the journal cannot be opened now: that is a mistake, later trouble is not."""
        self._journal.start()

    async def keep(self) -> None:
        """Give account, every so often."""
        while True:
            await asyncio.sleep(self._config.accounts.period_s)
            await self.record()

    async def record(self) -> None:
        given = list(self.given())
        await asyncio.to_thread(self._book.record, given)

    async def close(self) -> None:
        """The last accounts, which close what is open."""
        given = [msgspec.structs.replace(each, is_closed=True) for each in self.given()]
        await asyncio.to_thread(self._book.record, given)
        await asyncio.to_thread(self._journal.close)

    def given(self) -> Iterator[Given]:
        """How everything stands; links that have ended are in it once. In the core's thread."""
        yield Given(RUN, "", self._run())
        for number in list(self._core.board.streams):
            yield Given(INTAKE, number, self._intake(number))
        ledger = self._core.board.ledger
        for account in [*ledger.ended(), *self._open()]:
            yield Given(ACCOUNT, account.dealings.link, _fields(account), account.is_closed)

    def _open(self) -> Iterator[LinkAccount]:
        for link, dealings in list(self._core.board.ledger.open.items()):
            try:
                yield LinkAccount(msgspec.structs.replace(dealings), self._core.fanout.link(link))
            except PenstockError:  # its end is on its way
                continue

    def _run(self) -> dict[str, Any]:
        board = self._core.board
        return {
            "role": board.role,
            "parent": board.parent,
            "parents_found": board.ledger.parents_found,
            "parents_lost": board.ledger.parents_lost,
            "refused": sum(each[name] for each in self._counted for name in REFUSALS),
            "suppressed": board.counters["messages_suppressed"],
            "root_term": board.term,
            "depth": len(board.path),
            "children": len(board.children),
        }

    def _intake(self, number: int) -> dict[str, Any]:
        board = self._core.board
        state = self._core.fanout.stream(number)
        begun, accepted = board.ledger.begun.get(number, (0, 0))
        return {
            "stream_name": board.streams[number].info.name,
            "role": board.role,
            "begun": begun,
            "last": state.last,
            "taken": state.accepted - accepted,
            "duplicates": state.duplicates,
            "root_term": state.term,
        }

    def _messages(self, given: Given, now_ns: int) -> list[Message]:
        return [
            given.model.new(
                agent=self._config.name,
                tree=self._config.tree,
                event_time=now_ns,
                started=self._journal.started_ns,
                state="closed" if given.is_closed else "open",
                **given.fields,
            )
        ]


def _fields(account: LinkAccount) -> dict[str, Any]:
    dealings, state = account.dealings, account.state
    return {
        "party": dealings.name,
        "role": dealings.way,
        "class_name": dealings.cls,
        "link": dealings.link,
        "received": dealings.published if dealings.way == "publisher" else state.packets_in,
        "bytes_in": state.bytes_in,
        "sent": state.packets_out,
        "bytes_out": state.bytes_out,
        "fetched": dealings.fetched,
        "portions": dealings.portions,
        "lagging": dealings.lagging,
        "conflated": state.conflated,
        "gone": dealings.gone,
        "diverged": dealings.diverged,
        "duplicates": state.duplicates,
        "dropped": state.dropped,
        "revoked": dealings.revoked,
    }
