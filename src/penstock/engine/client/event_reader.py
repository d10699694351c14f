"""Reads blocks of events from a node, and recovers from overruns and lost connections."""

import time

from penstock.base.errors import (
    FilterExpressionError,
    OverrunError,
    ProducerGoneError,
    RemoteProtocolError,
    RingClosedError,
)
from penstock.base.log import logger
from penstock.engine.client._fields import FieldTable
from penstock.engine.client._intake import Intake
from penstock.engine.client.consumer import (
    NO_GUARD,
    SLICE_S,
    ConsumerRequest,
    ModelFinder,
    NodeConsumer,
    slice_ns,
)
from penstock.engine.client.inbox import Attached, Detached, EventsReceived
from penstock.engine.client.sources import EventBlock, EventCounts, Note
from penstock.model import MessageModel
from penstock.net.guard import Guard
from penstock.shm import RingReader
from penstock.topics import Predicate
from penstock.topics._predicate import REJECT, Program

log = logger("engine.reader")

NOTHING = Program([], REJECT, b"")
"""A condition that rejects every record."""


class EventReader(NodeConsumer):
    """One thread calls take(); any thread may close."""

    def __init__(self, request: ConsumerRequest, models: ModelFinder | None = None, guard: Guard = NO_GUARD) -> None:
        self._intake = Intake(request.items_max, self._plan)
        self._attached: Attached | None = None
        self._ring: RingReader | None = None
        self._notes: list[Note] = []
        self._overruns = 0
        super().__init__(request, models, guard)

    def take(self, timeout: float) -> EventBlock:
        """Events that are available, or arrive within `timeout` seconds. Raises the error that ended the consumer."""
        self.raise_if_over()
        is_ordinary = self._ring is not None and not self._notes and self._inbox.is_empty
        if is_ordinary and (data := self._from_ring(slice_ns(timeout))):
            return EventBlock(data)
        deadline = time.monotonic() + timeout
        while True:
            self.raise_if_over()
            data = self._take_notifications()
            if not data:
                data = self._from_ring(slice_ns(deadline - time.monotonic()))
            if data or self._notes:
                notes, self._notes = self._notes, []
                return EventBlock(data, notes)
            left = deadline - time.monotonic()
            if left <= 0:
                return EventBlock()
            if self._ring is None:
                self._inbox.wait(min(left, SLICE_S))

    def counted(self) -> EventCounts:
        intake = self._intake
        return EventCounts(
            events=intake.events,
            duplicates=intake.duplicates,
            undefined=intake.undefined,
            filtered=intake.filtered,
            overruns=self._overruns,
            detachments=self.detachments,
        )

    def close(self) -> None:
        super().close()
        self._leave()

    def _take_notifications(self) -> bytes:
        """Handle notifications of the node up to the first one with events, and return these events."""
        while (told := self._inbox.take()) is not None:
            match told:
                case Attached():
                    self._enter(told)
                case Detached():
                    self.detachments += 1
                    self._leave()
                    self._notes.append("detached")
                case EventsReceived():
                    try:
                        if data := self._intake.load(told.data):
                            self.last_number = self._intake.last_number
                            return data
                    except RemoteProtocolError as error:
                        log.warning("events_refused", error=str(error))
                case _:
                    told.close()
        return b""

    def _enter(self, attached: Attached) -> None:
        self._leave()
        self._attached = attached
        if attached.welcome.epoch != self.epoch:
            self._intake.forget()
            self.last_number = 0
            if self.epoch:
                self._notes.append("restarted")
        else:
            self._notes.append("resumed")
        self.epoch = attached.welcome.epoch
        if attached.ring is not None:
            self._ring = RingReader(attached.ring, wait=self.request.wait)

    def _leave(self) -> None:
        ring, self._ring = self._ring, None
        if ring is not None:
            ring.close()
        attached, self._attached = self._attached, None
        if attached is not None:
            attached.close()

    def _from_ring(self, timeout_ns: int) -> bytes:
        ring = self._ring
        if ring is None:
            return b""
        try:
            data = self._intake.take(ring, timeout_ns)
            self.last_number = self._intake.last_number
            return data
        except (OverrunError, RemoteProtocolError) as error:
            log.info("ring_overrun", after=self.last_number, error=str(error))
            self._overruns += 1
            self._notes.append("overrun")
            if self._restart("events"):
                ring.restart()
            else:
                self._leave()
        except (ProducerGoneError, RingClosedError):
            self._leave()
        return b""

    def _plan(self, model_id: int, version: int) -> tuple[FieldTable | None, Program | None]:
        """The conversion and the condition for a model, prepared when its first item is defined."""
        model = self.model(model_id, version)
        table = FieldTable(model) if model is not None and self.request.is_converting else None
        return table, self._condition(model, version) if self.request.where else None

    def _condition(self, model: MessageModel | None, version: int) -> Program:
        """The compiled condition for records of a model. Records of a model without its fields never match."""
        try:
            if model is not None:
                return Predicate.compile(self.request.where, model, min(version, model.version)).program
        except FilterExpressionError as error:
            log.info("model_left_out", version=version, error=str(error))
        return NOTHING
