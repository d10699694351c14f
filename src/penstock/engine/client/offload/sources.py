"""The application's side of an offload process: sources that pass all calls to it."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any, NoReturn

import msgspec

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import (
    ConfigurationError,
    LocalProtocolError,
    ProcessError,
    ProducerGoneError,
    RingClosedError,
)
from penstock.base.segment import Segment
from penstock.engine.client._fields import FieldTable
from penstock.engine.client._store import RecordState
from penstock.engine.client.consumer import NO_GUARD, ConsumerRequest
from penstock.engine.client.conversion import converted_model
from penstock.engine.client.filter_watch import FOREVER_S
from penstock.engine.client.filters import NotificationFilter
from penstock.engine.client.offload.calls import (
    CALL_SIZE_MAX,
    CALL_WAIT_S_MAX,
    HELLO_FDS_MAX,
    HELLO_SIZE_MAX,
    RING_EVENTS,
    Answer,
    Call,
    Kind,
    Start,
    answer_decoder,
    encoder,
    error_of,
)
from penstock.engine.client.sources import EventBlock, EventCounts, RecordCounts
from penstock.middleware.core.events import SessionEvent
from penstock.model import MessageModel
from penstock.net.guard import Guard
from penstock.net.live.unix import Connection
from penstock.shm import RingReader, RingWriter

MODULE = "penstock.engine.client.offload.process"
START_WAIT_S = 60.0
"""Time limit for the start of the process, in addition to the node's."""

END_WAIT_S = 5.0
QUEUE_BYTES = 64 * 1024 * 1024
"""Bytes of events that an offload process reads ahead of its application."""


class OffloadProcess:
    """One process for one consumer. Any thread may call; calls are made one at a time."""

    def __init__(self, kind: Kind, request: ConsumerRequest, queue_bytes: int = QUEUE_BYTES) -> None:
        self._lock = threading.Lock()
        self._is_closed = False
        self._calls = RingWriter.create(RING_EVENTS * CALL_SIZE_MAX, CALL_SIZE_MAX)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection = Connection(ours)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        self._segment: Segment | None = None
        self._answers: RingReader | None = None
        try:
            self._start(Start(kind, request, queue_bytes))
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, name: str, *arguments: Any) -> Any:
        """Make a call in the process and return its result. Raises its error."""
        with self._lock:
            if self._is_closed or self._answers is None:
                raise LocalProtocolError("the offload process was closed")
            try:
                self._calls.write(encoder.encode(Call(name, list(arguments))))
                data = self._answers.read()
            except (ProducerGoneError, RingClosedError):
                self._gone()
        answer: Answer = answer_decoder.decode(data)  # type: ignore[arg-type]
        if answer.code:
            raise error_of(answer)
        return answer.result

    def close(self) -> None:
        """End the process and wait."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._connection.close()
            if self._answers is not None:
                self._answers.close()
            if self._segment is not None:
                self._segment.close()
            self._calls.close()
            try:
                self._process.wait(END_WAIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _start(self, start: Start) -> None:
        self._connection.send(encoder.encode(start), self._calls.segment.fds)
        patience_ns = int((START_WAIT_S + start.request.timeout_s) * NS_PER_SECOND)
        try:
            data, fds = self._connection.receive(HELLO_SIZE_MAX, HELLO_FDS_MAX, patience_ns)
        except OSError:
            raise ProcessError("the offload process did not start in time") from None
        if not data:
            self._gone()
        if fds:
            self._segment = Segment("ring", tuple(fds), self._connection)
        answer: Answer = answer_decoder.decode(data)
        if answer.code:
            raise error_of(answer)
        if self._segment is None:
            raise ProcessError("the offload process sent no ring")
        self._answers = RingReader(self._segment, wait=start.request.wait)

    def _gone(self) -> NoReturn:
        try:
            code = self._process.wait(END_WAIT_S)
        except subprocess.TimeoutExpired:
            raise ProcessError("the offload process closed its connection") from None
        why = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        raise ProcessError(f"the offload process has ended {why}", hint="open it again; its state is lost")


class _Offloaded:
    """The common part of events and records."""

    def __init__(self, kind: Kind, request: ConsumerRequest, queue_bytes: int = QUEUE_BYTES) -> None:
        self.process = OffloadProcess(kind, request, queue_bytes)
        self.request = request
        self._models: dict[tuple[int, int], MessageModel] = {}

    def model(self, model_id: int, version: int) -> MessageModel | None:
        key = model_id, version
        if key not in self._models:
            document = self.process.call("model", model_id, version)
            if not document:
                return None
            self._models[key] = MessageModel.parse(document, where="model of the node")
        return self._models[key]

    def renew(self, token: str) -> None:
        self.process.call("renew", token)

    def close(self) -> None:
        self.process.close()


class OffloadedEvents(_Offloaded):
    """An EventSource in an offload process."""

    def take(self, timeout: float) -> EventBlock:
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            data, notes = self.process.call("take", max(0.0, min(left, CALL_WAIT_S_MAX)))
            if data or notes or left <= 0:
                return EventBlock(data, notes)

    def counted(self) -> EventCounts:
        return msgspec.convert(self.process.call("counted"), EventCounts)

    def change_rate(self, per_second: float) -> float:
        return float(self.process.call("change_rate", per_second))


class OffloadedRecords(_Offloaded):
    """A RecordSource in an offload process."""

    def __init__(self, request: ConsumerRequest) -> None:
        super().__init__("records", request)
        self._tables: dict[tuple[int, int], tuple[FieldTable, MessageModel]] = {}

    def topics(self) -> list[str]:
        return list(self.process.call("topics"))

    def read(self, topic: str, timeout: float | None, *, only_updated: bool) -> RecordState | None:
        deadline = time.monotonic() + (FOREVER_S if timeout is None else timeout)
        while True:
            left = deadline - time.monotonic()
            found = self.process.call("read", topic, max(0.0, min(left, CALL_WAIT_S_MAX)), only_updated)
            if found is not None:
                return self._restored(*found)
            if left <= 0:
                return None

    def is_updated(self, topic: str) -> bool:
        return bool(self.process.call("is_updated", topic))

    def delta(self, topic: str) -> tuple[str, ...]:
        return tuple(self.process.call("delta", topic))

    def watch(self, rule: NotificationFilter) -> int:
        return int(self.process.call("watch", msgspec.to_builtins(rule)))

    def change_watch(self, number: int, rule: NotificationFilter) -> None:
        self.process.call("change_watch", number, msgspec.to_builtins(rule))

    def end_watch(self, number: int) -> None:
        self.process.call("end_watch", number)

    def take_changes(self, number: int, count_max: int, timeout: float) -> list[tuple[str, RecordState]]:
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            found = self.process.call("take_changes", number, count_max, max(0.0, min(left, CALL_WAIT_S_MAX)))
            if found or left <= 0:
                return [(topic, self._restored(*content)) for topic, *content in found]

    def sessions(self) -> list[SessionEvent]:
        return msgspec.convert(self.process.call("sessions"), list[SessionEvent])

    def models(self) -> list[MessageModel]:
        return [MessageModel.parse(document) for document in self.process.call("models")]

    def is_live(self) -> bool:
        return bool(self.process.call("is_live"))

    def counted(self) -> RecordCounts:
        return msgspec.convert(self.process.call("counted"), RecordCounts)

    def _restored(self, model_id: int, version: int, content: list[Any]) -> RecordState:
        key = model_id, version
        if key not in self._tables:
            model = self.model(model_id, version)
            if model is None:
                raise ProcessError(f"the offload process has records of model {model_id}, which is unknown")
            read_by = converted_model(model) if self.request.is_converting else model
            self._tables[key] = FieldTable(model), read_by
        return RecordState.restore(*self._tables[key], tuple(content))


def offloaded_events(
    request: ConsumerRequest,
    guard: Guard = NO_GUARD,
    queue_bytes: int = QUEUE_BYTES,
) -> OffloadedEvents:
    """EventReader(request) in an offload process."""
    _check(guard)
    return OffloadedEvents("events", request, queue_bytes)


def offloaded_records(request: ConsumerRequest, guard: Guard = NO_GUARD) -> OffloadedRecords:
    """RecordsReader(request) in an offload process."""
    _check(guard)
    return OffloadedRecords(request)


def _check(guard: Guard) -> None:
    if guard.secret is not None or guard.tls is not None:
        raise ConfigurationError("an offload process supports neither a secret nor TLS", hint="use a node on this host")
