"""Messages of a node as an application reads them: the critical and the metered class.

    with NodeMessages(EventReader(request), request.topics) as messages:
        for message in messages:
            print(message.topic, message.seq, message.bid_price, message.source.merged)

A message's `seq` is the item's version, its `source` the event: whether it is a refresh or an update, its number at the
node, how many updates it stands for, when its producer began to process it.
"""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy
from numpy.typing import NDArray

from penstock.base.errors import (
    ConfigurationError,
    LocalProtocolError,
    ModelError,
    PenstockError,
    RemoteProtocolError,
)
from penstock.capture.live.frames import CollectedFrames, Frames, ModelOrClass, batch_of_messages, only_model
from penstock.engine.client._intake import count_records, gather_records, split_block
from penstock.engine.client.consumer import SLICE_S
from penstock.engine.client.conversion import converted_model
from penstock.engine.client.handle import ConsumerHandle
from penstock.engine.client.sources import EventBlock, EventSource
from penstock.engine.control import RATE_MAX
from penstock.engine.core.kernel._event import Event, EventKind, ReceiptCause, TransmissionClass, read_events
from penstock.engine.core.session_events import decode_session
from penstock.middleware.core.delivery_record import DeliveryRecord
from penstock.middleware.core.events import SessionEvent
from penstock.model import Message, MessageModel
from penstock.model.schema import Prices

if TYPE_CHECKING:
    import pyarrow

LOSSES_MAX = 10_000
CRITICAL = int(TransmissionClass.CRITICAL)
DEFINE, REFRESH, UPDATE = int(EventKind.DEFINE), int(EventKind.REFRESH), int(EventKind.UPDATE)
RECEIPT, REMOVE, LIVE = int(EventKind.RECEIPT), int(EventKind.REMOVE), int(EventKind.LIVE)
WITHDRAW, SESSION = int(EventKind.WITHDRAW), int(EventKind.SESSION)
CAUSES = {int(cause): cause.name.lower() for cause in ReceiptCause}


class Missed(msgspec.Struct, frozen=True):
    """A loss receipt: updates that the application did not get."""

    topic: str
    """Empty: any topic."""
    first: int
    """Both inclusive: versions of the topic, or numbers of the node's events if there is no topic; 0: unknown."""
    last: int
    cause: str
    """"overrun", "slow", "upstream", "saturated": reported by the node; "restarted": the node was restarted, and
    losses are unknown; "removed": the node no longer provides this topic."""


class Withdrawn(msgspec.Struct, frozen=True):
    """A topic has no current value, because the session of its last value is over."""

    topic: str
    version: int
    """The topic's version after the withdrawal; the next message has a higher version."""


Notification: TypeAlias = Missed | Withdrawn | SessionEvent


class NodeStatistics(msgspec.Struct, frozen=True):
    messages: int
    """Messages given to the application."""
    refreshes: int
    """The refreshes among them."""
    merged: int
    """Updates that the node merged into others."""
    filtered: int
    """Messages that do not meet the condition."""
    duplicates: int
    """Duplicate events."""
    overruns: int
    """Times that the application was too slow for its ring."""
    detachments: int
    """Times that the connection to the node was lost."""
    unreadable: int
    """Records too short for their model, and events of items that were never defined."""


class UnreadRecord:
    """A record of an unknown model, as bytes."""

    __slots__ = ("payload", "source", "topic")

    model = None

    def __init__(self, topic: str, event: Event) -> None:
        self.topic = topic
        self.source = event
        self.payload = event.body

    @property
    def seq(self) -> int:
        return self.source.version

    @property
    def model_id(self) -> int:
        return self.source.model_id

    @property
    def model_version(self) -> int:
        return self.source.model_version

    if TYPE_CHECKING:  # so that programs that know their messages can read fields without a check

        def __getattr__(self, name: str) -> Any: ...

    def __bytes__(self) -> bytes:
        return self.payload

    def __repr__(self) -> str:
        return f"<UnreadRecord {self.topic} #{self.seq}, {len(self.payload)} bytes of model {self.model_id}>"


ReadableRecord: TypeAlias = Message | UnreadRecord


class _Item:
    __slots__ = ("model", "topic", "version")

    def __init__(self, topic: str, model: MessageModel | None, version: int) -> None:
        self.topic = topic
        self.model = model
        self.version = version


class NodeMessages(ConsumerHandle, CollectedFrames):
    """One thread or task reads; any thread may close."""

    def __init__(
        self, source: EventSource, topics: Sequence[str], *, is_converting: bool = False, losses_max: int = LOSSES_MAX
    ) -> None:
        super().__init__(source)
        self.topics = tuple(topics)
        self.is_live = False
        """True if the current state of all topics has been given to the application."""
        self.on_session: Callable[[SessionEvent | Withdrawn], None] | None = None
        """Called when the reader reaches the start or the end of a session of a source stream, and for each topic whose
        value was withdrawn with it; in the reading thread."""
        self._record: DeliveryRecord[Missed] = DeliveryRecord(losses_max)
        self._source = source
        self._is_converting = is_converting
        self._items: dict[int, _Item] = {}
        self._models: dict[tuple[int, int], MessageModel | None] = {}
        self._ready: deque[ReadableRecord | Notification] = deque()
        self._has_receipt = False  # since something went wrong
        self._given = self._refreshes = self._merged = self._unreadable = 0

    # For the application

    def next(self, timeout: float | None = None) -> ReadableRecord | None:
        """The next message, or None after `timeout` seconds. Raises the error that ended the subscription."""
        deadline = None if timeout is None else time.monotonic() + timeout
        self._check()
        while (message := self._next_ready()) is None:
            left = SLICE_S if deadline is None else deadline - time.monotonic()
            if left < 0 or self._is_closed:
                return None
            self._fill(min(left, SLICE_S))
        return message

    def __iter__(self) -> Iterator[ReadableRecord]:
        """Messages until the handle is closed."""
        while not self._is_closed:
            self._check()
            if (message := self._next_ready()) is not None:
                yield message
            elif not self._is_closed:
                self._fill(SLICE_S)

    async def __aiter__(self) -> AsyncIterator[ReadableRecord]:
        """Messages in an asyncio loop. If there are none, a thread waits for them."""
        while not self._is_closed:
            while (message := self._next_ready()) is not None:
                yield message
                self._check()
            self._fill(0.0)
            if self._ready:
                await asyncio.sleep(0)  # the loop's other tasks get their turn
            else:
                await asyncio.to_thread(self._fill, SLICE_S)

    def batches(self, timeout: float | None = None) -> Iterator["NodeBatch"]:
        """Batches of messages, until none comes for `timeout` seconds or the handle is closed."""
        heard = time.monotonic()
        while not self._is_closed:
            data = self._take(SLICE_S).data
            batch = NodeBatch(self, data) if data else None
            if batch:
                heard = time.monotonic()
                self._given += len(batch)
                yield batch
            elif timeout is not None and time.monotonic() - heard >= timeout:
                return

    def change_rate(self, per_second: float) -> float:
        """Change the rate, in updates per second of each item. Returns the rate that the node grants."""
        check_rate(per_second)
        return self._source.change_rate(per_second)

    def fail(self, error: PenstockError) -> None:
        super().fail(error)
        self._ready.clear()

    @property
    def losses(self) -> list[Missed]:
        """Loss receipts, oldest first."""
        return self._record.losses

    @property
    def loss_count(self) -> int:
        """Total number of loss receipts; `losses` has the newest ones."""
        return self._record.loss_count

    @property
    def sessions(self) -> list[SessionEvent]:
        """The session events of source streams up to the reader's position, oldest first."""
        return self._record.sessions

    def statistics(self) -> NodeStatistics:
        counted = self._source.counted()
        return NodeStatistics(
            messages=self._given,
            refreshes=self._refreshes,
            merged=self._merged,
            filtered=counted.filtered,
            duplicates=counted.duplicates,
            overruns=counted.overruns,
            detachments=counted.detachments,
            unreadable=self._unreadable + counted.undefined,
        )

    # Reading events

    def _next_ready(self) -> ReadableRecord | None:
        """The next available message; receipts are counted and session events are reported when the reader reaches
        them."""
        while self._ready:
            ready = self._ready.popleft()
            if not isinstance(ready, Notification):
                self._given += 1
                return ready
            self._tell(ready)
        return None

    def _fill(self, timeout: float) -> None:
        data = self._take(timeout).data
        if data:
            self._ready.extend(self._read(data))

    def _take(self, timeout: float) -> EventBlock:
        self._check()
        try:
            taken = self._source.take(timeout)
        except LocalProtocolError:
            if not self._is_closed:
                raise
            return EventBlock()
        except PenstockError:
            self.close()
            raise
        if "restarted" in taken.notes:
            self._items.clear()
            self._ready.append(Missed("", 0, 0, "restarted"))
        if "detached" in taken.notes:
            self.is_live = False
        if taken.notes:
            self._has_receipt = False
        return taken

    def _read(self, data: bytes) -> Iterator[ReadableRecord | Notification]:
        """The messages, receipts and sessions of a block. Other events only change the state."""
        for event in read_events(data):
            if event.kind != UPDATE and event.kind != REFRESH:
                if (told := self._note(event)) is not None:
                    yield told
                continue
            item = self._items.get(event.item)
            if item is None:
                self._unreadable += 1
                continue
            if event.kind == REFRESH:
                self._refreshes += 1
                if (missed := self._jump(item, event)) is not None:
                    yield missed
            elif event.merged > 1:
                self._merged += event.merged - 1
            item.version = event.version
            if item.model is None:
                yield UnreadRecord(item.topic, event)
                continue
            try:
                message = item.model.view(event.body, event.model_version)
            except ModelError:
                self._unreadable += 1
                continue
            message.topic, message.seq, message.source = item.topic, event.version, event
            yield message

    def _messages_of(self, data: bytes) -> list[ReadableRecord]:
        """The messages of a block. Receipts are counted and sessions reported at once."""
        found: list[ReadableRecord] = []
        for each in self._read(data):
            if isinstance(each, Notification):
                self._tell(each)
            else:
                found.append(each)
        return found

    def _note(self, event: Event) -> Notification | None:
        if event.kind == DEFINE:
            topic = event.topic.decode("utf-8", "replace")
            known = self._items.get(event.item)
            version = known.version if known is not None and known.topic == topic else 0
            self._items[event.item] = _Item(topic, self._model(event.model_id, event.model_version), version)
        elif event.kind == LIVE:
            self.is_live = True
        elif event.kind == RECEIPT:
            first, last, cause = event.lost
            self._has_receipt = True
            item = self._items.get(event.item)
            return Missed("" if item is None else item.topic, first, last, CAUSES.get(cause, str(cause)))
        elif event.kind == SESSION:
            try:
                return decode_session(event.session)
            except RemoteProtocolError:
                self._unreadable += 1
        elif event.kind == WITHDRAW:
            item = self._items.get(event.item)
            if item is not None:
                item.version = event.version
                return Withdrawn(item.topic, event.version)
        elif event.kind == REMOVE:
            item = self._items.pop(event.item, None)
            if item is not None:
                return Missed(item.topic, event.number, 0, "removed")
        return None

    def _jump(self, item: _Item, event: Event) -> Missed | None:
        """The loss if a refresh replaced critical updates and the node sent no receipt."""
        is_jump = event.cls == CRITICAL and 0 < item.version < event.version - 1
        if not is_jump or self._has_receipt:
            return None
        return Missed(item.topic, item.version + 1, event.version - 1, "overrun")

    def _model(self, model_id: int, version: int) -> MessageModel | None:
        key = model_id, version
        if self._models.get(key) is None:
            model = self._source.model(model_id, version)
            self._models[key] = converted_model(model) if model is not None and self._is_converting else model
        return self._models[key]

    def _tell(self, told: Notification) -> None:
        if isinstance(told, Missed):
            self._record.add_loss(told)
            return
        if isinstance(told, SessionEvent):
            self._record.add_session(told)
        if self.on_session is not None:
            self.on_session(told)


class NodeBatch(Frames):
    """Messages that arrived together. The arrays are copies; iterating gives the messages one by one, in order."""

    def __init__(self, messages: NodeMessages, data: bytes) -> None:
        self._messages = messages
        self._data, notes = split_block(data)
        self._content: list[ReadableRecord] | None = None
        # numbers may be assigned to other topics, and session events are in order with the messages
        if any(event.kind in (REMOVE, WITHDRAW, SESSION) for event in read_events(notes)):
            self._content = messages._messages_of(data)
        else:
            messages._messages_of(notes)
        counts = count_records(self._data)
        self._count = sum(counts.values())
        self.records: dict[MessageModel, NDArray[Any]] = {}
        """By model, with its dtype. Records of another size or an unknown model are only in the iteration."""
        for model_id, version in counts:
            model = messages._model(model_id, version)
            if model is not None and model not in self.records:
                count = sum(each for (known, _), each in counts.items() if known == model_id)
                rows = numpy.empty((count, model.record_size), numpy.uint8)
                taken = gather_records(self._data, model_id, rows)
                self.records[model] = rows[:taken].reshape(-1).view(model.dtype)

    def arrow(self, model: ModelOrClass | None = None, *, prices: Prices = "decimal") -> "pyarrow.RecordBatch":
        """Return the messages of a model, or of the only model, as an Arrow batch with `topic`, `seq` and the fields.
        Prices are exact decimals, or floats.
        """
        chosen = only_model(self.records, model)
        messages = [message for message in self if isinstance(message, Message) and message.model.id == chosen.id]
        return batch_of_messages(messages, chosen, prices)

    def _sample(self, count: int) -> list[Message]:
        return [message for message in itertools.islice(self, count) if isinstance(message, Message)]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ReadableRecord]:
        if self._content is None:
            self._content = self._messages._messages_of(self._data)
        return iter(self._content)


def check_rate(per_second: float) -> None:
    if not 0 <= per_second <= RATE_MAX:  # nor NaN
        raise ConfigurationError(f"{per_second} is not a rate", hint="updates per second; 0 asks for unmetered ones")
