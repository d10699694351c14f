"""The accounts of a node in a journal of its own, which the pipeline archives as it archives captures.

An account is a message in a packet, as protocol/capture.md says. A subsystem gives its accounts as rows; the
recorder writes those that changed, every period, and all of them as closed at the end. The data path never waits for
the disk: when the disk fails, the node goes on, the error is logged and counted, and last accounts are written once the
disk takes records again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec

from penstock.base.clock import SystemRandomness
from penstock.base.config import Config
from penstock.base.counters import Counters
from penstock.base.errors import JournalError, PenstockError
from penstock.base.log import logger
from penstock.journal import JournalConfig, JournalWriter
from penstock.model import Message, MessageModel
from penstock.runtime.node import Node, in_thread
from penstock.wire import Packer

UNWRITTEN_MAX = 65_536

log = logger("runtime.accounts")


class AccountsConfig(Config, frozen=True):
    """A journal of accounts: the node counts there how many messages it received, delivered and lost, for the audit."""

    path: str = ""
    """Directory of the journal; empty: the node keeps no accounts."""

    period_s: Annotated[float, msgspec.Meta(ge=0.1, le=3_600)] = 10.0
    """Seconds between two accounts of a subject. The last account is written when the subject ends."""

    journal: JournalConfig = JournalConfig()


class Account(msgspec.Struct, frozen=True):
    """The current account of one subject: the fields of the message, except the node's identity, the times and the
    state."""

    model: MessageModel
    about: Hashable
    """The subject of the account, equal in every account of this subject. Unchanged accounts are not written again."""

    fields: dict[str, Any]
    is_closed: bool = False
    """True for the last account of the subject."""

    is_repeated: bool = False
    """True if the account is written every period, even if unchanged."""

    basis: object = None
    """Compared in addition to the fields: accounts with the same basis change together."""


Rows = Callable[[], Awaitable[Iterable[Account]]]
"""Returns the current accounts. Called in the loop; the rows are iterated in another thread."""


class AccountRecorder:
    """The accounts of one run, from start() to close(). `{}` in the topic stands for the name of the model;
    `identity` holds the fields that identify the node."""

    def __init__(self, config: AccountsConfig, topic: str, rows: Rows, counters: Counters, **identity: str) -> None:
        self._config = config
        self._topic = topic
        self._rows = rows
        self._counters = counters
        self._identity = identity
        self._started_ns = time.time_ns()
        self._packer = Packer(1 + SystemRandomness().below(2**64 - 1), group=0, epoch=1)
        self._journal: JournalWriter | None = None
        self._is_failing = False
        self._written: dict[Hashable, Account] = {}
        self._unwritten: list[Account] = []

    def start(self) -> None:
        """Open the journal, or raise JournalError. Later disk failures raise nothing."""
        self._journal = JournalWriter.open(Path(self._config.path), self._config.journal, counters=self._counters)

    async def keep(self) -> None:
        """Write accounts every period, for ever."""
        while True:
            await asyncio.sleep(self._config.period_s)
            await self.record()

    async def record(self) -> None:
        """Write the changed accounts."""
        rows = await self._rows()
        await in_thread(lambda: self.write(rows))()

    async def close(self) -> None:
        """Write all accounts as closed, and close the journal."""
        if self._journal is None:
            return
        rows: Iterable[Account] = ()
        try:
            rows = await self._rows()
        # the part that knows the accounts has failed: the accounts in the journal stay open
        except PenstockError as error:
            log.warning("accounts_not_closed", path=self._config.path, code=error.code, error=str(error))
        await in_thread(lambda: self._finish(rows))()

    def _finish(self, rows: Iterable[Account]) -> None:
        self.write(msgspec.structs.replace(each, is_closed=True) for each in rows)
        if self._journal is not None:
            try:
                self._journal.close()
            except JournalError as error:
                log.error("journal_not_closed", path=self._config.path, error=str(error))

    def write(self, rows: Iterable[Account]) -> None:
        """Write the changed accounts. Blocks; call it from one thread at a time. If the disk fails, the last
        accounts of ended subjects are written with the next ones."""
        now_ns = time.time_ns()
        current = [*rows, *self._unwritten]
        new = [each for each in current if each.is_closed or each.is_repeated or self._is_changed(each)]
        if self._append([self._message(each, now_ns) for each in new], now_ns):
            self._written = {_key(each): each for each in current if not each.is_closed}
            self._unwritten = []
        else:
            self._unwritten = [each for each in current if each.is_closed][:UNWRITTEN_MAX]

    def _is_changed(self, account: Account) -> bool:
        return self._written.get(_key(account)) != account

    def _message(self, account: Account, now_ns: int) -> Message:
        return account.model.new(
            **self._identity,
            event_time=now_ns,
            started=self._started_ns,
            state="closed" if account.is_closed else "open",
            **account.fields,
        )

    def _append(self, messages: Iterable[Message], now_ns: int) -> bool:
        """Return True if all messages are in the journal."""
        packets = [packet for message in messages for packet in self._packed(message)]
        if (last := self._packer.flush()) is not None:
            packets.append(last)
        try:
            if packets and self._journal is None:
                self.start()
            for packet in packets:
                assert self._journal is not None
                self._journal.append(packet, now_ns)
        except JournalError as error:
            self._note_failure(error, len(packets))
            return False
        self._is_failing = False
        return True

    def _packed(self, message: Message) -> list[bytes]:
        model = message.model
        topic = self._topic.format(model.name)
        return self._packer.add(topic, bytes(message), model_id=model.id, model_version=model.version)

    def _note_failure(self, error: JournalError, packets: int) -> None:
        self._counters.add("packets_unrecorded", packets, cause=error.code)
        if not self._is_failing:
            log.error("accounts_not_recorded", path=self._config.path, code=error.code, error=str(error))
        self._is_failing = True


def _key(account: Account) -> Hashable:
    return account.model.name, account.about


def add_accounts(
    node: Node, config: AccountsConfig, component: str, topic: str, rows: Rows, /, **identity: str
) -> None:
    """Add a recorder as the next part of the node, with its task, if the configuration names a journal."""
    if config.path:
        recorder = AccountRecorder(config, topic, rows, node.counters(component), **identity)
        node.add("accounts", start=in_thread(recorder.start), close=recorder.close)
        node.add_task(recorder.keep)
