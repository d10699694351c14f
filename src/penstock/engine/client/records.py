"""Records of a node as an application reads them: the adaptive class (docs/how-to/records.md)."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from penstock.base.errors import LocalProtocolError, NotFoundError
from penstock.capture.live.frames import Frames, ModelOrClass, batch_of_messages, only_model
from penstock.engine.client._store import RecordState
from penstock.engine.client.consumer import SLICE_S
from penstock.engine.client.filters import NotificationFilter, TradingSession, notification_filter
from penstock.engine.client.handle import ConsumerHandle
from penstock.engine.client.sources import RecordCounts, RecordSource
from penstock.middleware.core.events import SessionEvent
from penstock.model import Message
from penstock.model.schema import Prices

if TYPE_CHECKING:
    import pyarrow

FIRST_WAIT_S = 2.0
"""How long to wait for a record while the node is still sending the current records."""

CHANGES_MAX = 256
"""The maximum number of changes in a batch."""


class Records(ConsumerHandle, Frames):
    """Any thread may read."""

    def __init__(self, source: RecordSource) -> None:
        super().__init__(source)
        self._records = source

    def __getitem__(self, topic: str) -> Message:
        """The newest record. Raises NotFoundError if there is none."""
        if (message := self.get(topic)) is None:
            raise NotFoundError(
                f"no record of {topic!r}",
                hint="is it among the topics that were asked for? What is never put together, such as trades, has no "
                "record: subscribe() to it",
            )
        return message

    def get(self, topic: str) -> Message | None:
        """The newest record, or None."""
        state = self._source.read(topic, 0.0, only_updated=False)
        if state is None:  # or not yet
            wait = 0.0 if self._source.is_live() else FIRST_WAIT_S
            state = self._source.read(topic, wait, only_updated=False)
        return None if state is None else _message(topic, state)

    def read(self, topic: str, timeout: float | None = 0.0) -> Message | None:
        """The newest record, if it was updated since the last read or is updated within `timeout` seconds (None: no
        limit); otherwise None."""
        state = self._source.read(topic, timeout, only_updated=True)
        return None if state is None else _message(topic, state)

    def is_updated(self, topic: str) -> bool:
        """True if the record was updated since it was last read."""
        return self._source.is_updated(topic)

    def delta(self, topic: str) -> tuple[str, ...]:
        """The names of the fields that differ from the last read; all of them before the first read."""
        return self._source.delta(topic)

    def changes(
        self,
        *,
        fields: Sequence[str] = (),
        moved: Mapping[str, float | str] | None = None,
        per_second: float = 0.0,
        at_least_every: float = 0.0,
        session: TradingSession | str | None = None,
    ) -> "Changes":
        """Records as they change, beginning with the current ones. A record that changed several times is given once,
        with its newest values. NotificationFilter explains the filter."""
        rule = notification_filter(fields, moved, per_second, at_least_every, session)
        return Changes(lambda: self._source, self._source.watch(rule), rule)

    def arrow(self, model: ModelOrClass | None = None, *, prices: Prices = "decimal") -> "pyarrow.RecordBatch":
        """Return the newest records of a model, or of the only model, as an Arrow batch with `topic`, `seq` and the
        fields, in the order of the topics. Prices are exact decimals, or floats.
        """
        found = [record for topic in sorted(self) if (record := self.get(topic)) is not None]
        chosen = only_model({record.model for record in found}, model)
        return batch_of_messages([record for record in found if record.model.id == chosen.id], chosen, prices)

    def _sample(self, count: int) -> list[Message]:
        if self.is_over:
            return []
        found = (self.get(topic) for topic in sorted(self)[:count])
        return [record for record in found if record is not None]

    def _title(self) -> str:
        return f"{type(self).__name__} (closed)" if self.is_over else f"{type(self).__name__}: {len(self):,} topics"

    def __iter__(self) -> Iterator[str]:
        """The topics that have records."""
        return iter(self._source.topics())

    def __len__(self) -> int:
        return len(self._source.topics())

    def __contains__(self, topic: object) -> bool:
        return topic in self._source.topics()

    def wait(self, timeout: float) -> bool:
        """Wait until all current records can be read. False if that takes longer than `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not self._source.is_live():
            if time.monotonic() >= deadline:
                return False
            self._source.read("", min(SLICE_S, max(deadline - time.monotonic(), 0.0)), only_updated=True)
        return True

    @property
    def sessions(self) -> list[SessionEvent]:
        """The session events of source streams, oldest first. Records of an ended session are withdrawn."""
        return self._source.sessions()

    def statistics(self) -> RecordCounts:
        return self._source.counted()

    @property
    def _source(self) -> RecordSource:
        self._check()
        return self._records


class Changes:
    """Created by Records.changes(). One thread or task reads; any thread may change the filter."""

    def __init__(self, source: Callable[[], RecordSource], number: int, rule: NotificationFilter) -> None:
        self.rule = rule
        self._source = source
        self._number = number
        self._is_closed = False

    def next(self, timeout: float | None = None) -> Message | None:
        """The next record that passes the filter, or None if there is none within `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = SLICE_S if deadline is None else deadline - time.monotonic()
            for topic, state in self._take(1, max(min(left, SLICE_S), 0.0)):
                return _message(topic, state)
            if left <= 0 or self._is_closed:
                return None

    def batch(self, timeout: float = 0.0) -> list[Message]:
        """All records that pass the filter now, or the first one within the timeout."""
        return [_message(topic, state) for topic, state in self._take(CHANGES_MAX, timeout)]

    def __iter__(self) -> Iterator[Message]:
        while not self._is_closed:
            if (message := self.next(SLICE_S)) is not None:
                yield message

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Changes in an asyncio loop. If there are none, a thread waits for them."""
        while not self._is_closed:
            if (message := self.next(0.0)) is not None:
                yield message
                await asyncio.sleep(0)  # the loop's other tasks get their turn
            elif (message := await asyncio.to_thread(self.next, SLICE_S)) is not None:
                yield message

    def filter(
        self,
        *,
        fields: Sequence[str] = (),
        moved: Mapping[str, float | str] | None = None,
        per_second: float = 0.0,
        at_least_every: float = 0.0,
        session: TradingSession | str | None = None,
    ) -> None:
        """Replace the filter. Records that were given before are not given again."""
        rule = notification_filter(fields, moved, per_second, at_least_every, session)
        self._source().change_watch(self._number, rule)
        self.rule = rule

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._source().end_watch(self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _take(self, count_max: int, timeout: float) -> list[tuple[str, RecordState]]:
        try:
            return self._source().take_changes(self._number, count_max, timeout)
        except LocalProtocolError:
            if not self._is_closed:
                raise
            return []


def _message(topic: str, state: RecordState) -> Message:
    message = state.message
    message.topic = topic
    return message
