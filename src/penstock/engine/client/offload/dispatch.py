"""Dispatches the calls of the application in an offload process."""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from penstock.base.errors import LocalProtocolError, PenstockError
from penstock.engine.client._store import RecordState
from penstock.engine.client.consumer import SLICE_S, ConsumerRequest
from penstock.engine.client.event_reader import EventReader
from penstock.engine.client.filters import NotificationFilter
from penstock.engine.client.offload.calls import (
    ANSWER_SIZE_MAX,
    CALL_WAIT_S_MAX,
    Answer,
    Call,
    answer_of,
    call_decoder,
    encoder,
)
from penstock.engine.client.record_reader import RecordsReader
from penstock.engine.client.sources import EventBlock, Note

BLOCKS_SIZE_MAX = ANSWER_SIZE_MAX // 2
CHANGES_SIZE_MAX = ANSWER_SIZE_MAX // 2
ROOM_WAIT_S = 0.001


class CallDispatcher:
    """Dispatches calls by name."""

    def __init__(self) -> None:
        self._calls: dict[str, Callable[..., Any]] = {}

    def offer(self, **calls: Callable[..., Any]) -> None:
        self._calls |= calls

    def answer(self, data: bytes) -> bytes:
        try:
            call: Call = call_decoder.decode(data)
            do = self._calls.get(call.name)
            if do is None:
                raise LocalProtocolError(f"unknown call {call.name!r} to an offload process")
            return encoder.encode(Answer(do(*call.arguments)))
        except PenstockError as error:
            return encoder.encode(answer_of(error))


class EventPrefetcher:
    """Reads events ahead of the application, up to a limit. Further events wait in the ring."""

    def __init__(self, reader: EventReader, queue_bytes: int) -> None:
        self._reader = reader
        self._queue_bytes = queue_bytes
        self._queue: deque[EventBlock] = deque()
        self._size = 0
        self._changed = threading.Condition()
        self._error: PenstockError | None = None
        threading.Thread(target=self._run, name="penstock-offload", daemon=True).start()

    def offer(self, dispatcher: CallDispatcher) -> None:
        reader = self._reader
        dispatcher.offer(
            take=self.take,
            model=lambda *key: _document(reader, *key),
            counted=lambda: msgspec.to_builtins(reader.counted()),
            renew=reader.renew,
            change_rate=reader.change_rate,
        )

    def take(self, timeout: float) -> EventBlock:
        """Return several blocks at once, if available."""
        data: list[bytes] = []
        notes: list[Note] = []
        size = 0
        with self._changed:
            if not self._queue and self._error is None:
                self._changed.wait(min(timeout, CALL_WAIT_S_MAX))
            # a note refers to the events after it
            while self._queue and (not data or (not self._queue[0].notes and size < BLOCKS_SIZE_MAX)):
                taken = self._queue.popleft()
                data.append(taken.data)
                notes += taken.notes
                size += len(taken.data)
            self._size -= size
            if not data and self._error is not None:
                raise self._error
        return EventBlock(b"".join(data), notes)

    def _run(self) -> None:
        while self._error is None:
            if self._size >= self._queue_bytes:
                time.sleep(ROOM_WAIT_S)
                continue
            try:
                taken = self._reader.take(SLICE_S)
            except PenstockError as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            if taken.data or taken.notes:
                with self._changed:
                    self._queue.append(taken)
                    self._size += len(taken.data)
                    self._changed.notify_all()


class RecordCalls:
    """Reads records when the application asks for them."""

    def __init__(self, reader: RecordsReader) -> None:
        self._reader = reader

    def offer(self, dispatcher: CallDispatcher) -> None:
        reader = self._reader
        dispatcher.offer(
            topics=reader.topics,
            read=self._read,
            is_updated=reader.is_updated,
            delta=reader.delta,
            watch=lambda rule: reader.watch(_rule(rule)),
            change_watch=lambda number, rule: reader.change_watch(number, _rule(rule)),
            end_watch=reader.end_watch,
            take_changes=self._take_changes,
            sessions=lambda: msgspec.to_builtins(reader.sessions()),
            models=lambda: [model.text for model in reader.models()],
            model=lambda *key: _document(reader, *key),
            is_live=reader.is_live,
            counted=lambda: msgspec.to_builtins(reader.counted()),
            renew=reader.renew,
        )

    def _read(self, topic: str, timeout: float, only_updated: bool) -> Any:
        state = self._reader.read(topic, min(timeout, CALL_WAIT_S_MAX), only_updated=only_updated)
        return None if state is None else _content(state)

    def _take_changes(self, number: int, count_max: int, timeout: float) -> Any:
        record_size = max((model.record_size for model in self._reader.models()), default=1)
        count_max = max(1, min(count_max, CHANGES_SIZE_MAX // record_size))
        changes = self._reader.take_changes(number, count_max, min(timeout, CALL_WAIT_S_MAX))
        return [(topic, *_content(state)) for topic, state in changes]


def events_dispatcher(request: ConsumerRequest, queue_bytes: int) -> tuple[CallDispatcher, EventReader]:
    dispatcher, reader = CallDispatcher(), EventReader(request)
    EventPrefetcher(reader, queue_bytes).offer(dispatcher)
    return dispatcher, reader


def records_dispatcher(request: ConsumerRequest) -> tuple[CallDispatcher, RecordsReader]:
    dispatcher, reader = CallDispatcher(), RecordsReader(request)
    RecordCalls(reader).offer(dispatcher)
    return dispatcher, reader


def _content(state: RecordState) -> tuple[int, int, Any]:
    return state.model.id, state.model.version, state.content


def _document(reader: EventReader | RecordsReader, model_id: int, version: int) -> str:
    model = reader.model(model_id, version)
    return "" if model is None else model.text


def _rule(rule: Any) -> NotificationFilter:
    return msgspec.convert(rule, NotificationFilter)
