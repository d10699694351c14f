"""The accounts of a node in a journal of its own, which the pipeline archives as it archives captures.

Accounts are messages in packets, as docs/protocol/capture.md says. The data path never waits for the disk; when that
fails, the node goes on, the operator is told, and write() says that it did not work.
"""

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from penstock.base.clock import SystemRandomness
from penstock.base.counters import Counters
from penstock.base.errors import JournalError
from penstock.base.log import logger
from penstock.journal import JournalWriter
from penstock.model import Message
from penstock.runtime.accounts import UNWRITTEN_MAX, AccountsConfig
from penstock.wire import Packer

log = logger("capture.accounts")


class AccountJournal:
    """One run's accounts, from start() to close(); used by one thread at a time."""

    def __init__(self, config: AccountsConfig, counters: Counters) -> None:
        self.started_ns = time.time_ns()
        self._config = config
        self._counters = counters
        self._packer = Packer(1 + SystemRandomness().below(2**64 - 1), group=0, epoch=1)
        self._journal: JournalWriter | None = None
        self._is_failing = False

    def start(self) -> None:
        """JournalError when the journal cannot be opened now: that is a mistake, later trouble is not."""
        self._journal = JournalWriter.open(Path(self._config.path), self._config.journal, counters=self._counters)

    def write(self, topic: str, messages: Iterable[Message], now_ns: int) -> bool:
        """Whether they are written; `{}` in the topic stands for the model's name."""
        data = [each for message in messages for each in self._packets(topic, message)]
        if (last := self._packer.flush()) is not None:
            data.append(last)
        try:
            if data and self._journal is None:
                self.start()
            for each in data:
                assert self._journal is not None
                self._journal.append(each, now_ns)
        except JournalError as error:
            self._fail(error, len(data))
            return False
        self._is_failing = False
        return True

    def close(self) -> None:
        if self._journal is not None:
            try:
                self._journal.close()
            except JournalError as error:
                log.error("journal_not_closed", path=self._config.path, error=str(error))

    def _packets(self, topic: str, message: Message) -> list[bytes]:
        model = message.model
        return self._packer.add(
            topic.format(model.name), bytes(message), model_id=model.id, model_version=model.version
        )

    def _fail(self, error: JournalError, packets: int) -> None:
        self._counters.add("packets_unrecorded", packets, cause=error.code)
        if not self._is_failing:
            log.error("accounts_not_recorded", path=self._config.path, code=error.code, error=str(error))
        self._is_failing = True


class Closable(Protocol):
    @property
    def is_closed(self) -> bool: ...


Entry = TypeVar("Entry", bound=Closable)


class AccountBook(Generic[Entry]):
    """The entries of one run: what has not changed is not written again. When the disk fails, last entries, which
    nobody gives again, are written when it is well. Used by one thread at a time."""

    def __init__(
        self,
        journal: AccountJournal,
        topic: str,
        key: Callable[[Entry], Hashable],
        messages: Callable[[Entry, int], Iterable[Message]],
    ) -> None:
        """`{}` in the topic stands for the model's name; `key` tells what an entry is about; `messages` makes those
        of an entry, at a time."""
        self._journal = journal
        self._topic = topic
        self._key = key
        self._messages = messages
        self._written: dict[Hashable, Entry] = {}
        self._unwritten: list[Entry] = []

    def record(self, entries: Iterable[Entry], besides: Callable[[int], Sequence[Message]] = lambda now_ns: ()) -> None:
        """Write down what is new; `besides` makes messages that are always written."""
        now_ns = time.time_ns()
        current = [*entries, *self._unwritten]
        new = [each for each in current if each.is_closed or self._written.get(self._key(each)) != each]
        messages = [*besides(now_ns), *(message for each in new for message in self._messages(each, now_ns))]
        if self._journal.write(self._topic, messages, now_ns):
            self._written = {self._key(each): each for each in current if not each.is_closed}
            self._unwritten = []
        else:
            self._unwritten = [each for each in current if each.is_closed][:UNWRITTEN_MAX]
