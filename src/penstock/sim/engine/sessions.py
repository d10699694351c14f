"""Sessions in a simulated distribution plant: items of a source stream whose sessions end while consumers are slow,
late, overrun or crashed, and while nodes crash.

SessionChecker    consumers receive sessions in order; in the end each consumer knows the running session.
                  After the end of a session, a consumer receives no record of it; in the end, no such record is
                  current at the ticker plant or at multiplexers
"""

from typing import TYPE_CHECKING

import msgspec

from penstock.engine import Event
from penstock.engine.core.events import SessionChanged, Updates
from penstock.engine.core.kernel._event import EventKind
from penstock.engine.core.session_events import decode_session
from penstock.middleware.core.events import SessionEvent, SessionKind
from penstock.model import Message
from penstock.sim.engine.checkers import EngineChecker
from penstock.sim.engine.consumers import Connection, Defined
from penstock.sim.engine.market import NEWEST, Market
from penstock.wire import Extension, Origin, OriginFlag, PacketMessage, encode_origin
from penstock.wire.term import SESSION_TAG_SHIFT, session_tag

if TYPE_CHECKING:
    from penstock.sim.engine.plant import EnginePlant

STREAM, FEED = 1, "sim"


class SessionSource:
    """The source stream, with the session of each publication."""

    def __init__(self, market: Market) -> None:
        self._market = market
        self.number = 1
        self.changes = 0
        self.sessions: dict[int, int] = {}
        """The session of each publication, by the publication's number."""

    @property
    def _name(self) -> str:
        return f"day#{self.number}"

    def event(self, kind: SessionKind) -> SessionChanged:
        return SessionChanged(SessionEvent(kind, STREAM, self._name, "", session_tag(self._name), FEED))

    def change(self, *, is_announced: bool) -> list[SessionChanged]:
        """End the session, and begin another."""
        told = [self.event("end")] if is_announced else []
        self.number += 1
        self.changes += 1
        return [*told, self.event("begin")]

    def publish(self, topic: str, value: int, now_ns: int) -> Updates:
        publication = self._market.publish(topic, value, now_ns)
        self.sessions[publication.number] = self.number
        flags = int(OriginFlag.SYNCHRONISED) | session_tag(self._name) << SESSION_TAG_SHIFT
        origin = encode_origin(Origin(STREAM, 1, 0, flags, publication.number, publication.number))
        message = PacketMessage(
            topic, publication.record(NEWEST), NEWEST.id, NEWEST.version, extensions={Extension.ORIGIN: origin}
        )
        return Updates([message], FEED)


class _Told(msgspec.Struct):
    """The session events that one connection of a consumer received."""

    running: int = 0
    """The session of the last event; 0: none."""
    over: int = 0
    """The newest session whose end the consumer received."""
    current: dict[str, int] = {}
    """By topic: the session of the consumer's current record."""


class SessionChecker(EngineChecker):
    def __init__(self, market: Market, source: SessionSource) -> None:
        super().__init__(market)
        self._source = source
        self._told: dict[Connection, _Told] = {}
        self.withdrawn = 0

    def told(self, connection: Connection, event: Event, defined: Defined | None, message: Message | None) -> None:
        told = self._told.setdefault(connection, _Told())
        if event.kind == EventKind.SESSION:
            self._tell(told, decode_session(event.session), str(connection))
        elif defined is None or defined.topic not in self.market.dated:
            return
        elif event.kind == EventKind.WITHDRAW:
            self.withdrawn += 1
            told.current.pop(defined.topic, None)
        elif event.kind == EventKind.REMOVE:
            told.current.pop(defined.topic, None)
        elif message is not None:
            session = self._source.sessions[message.number]
            where = f"{connection}, {defined.topic}: {EventKind(event.kind).name} of session {session}"
            self.require(session > told.over, f"{where}, after it received the end of session {told.over}")
            told.current[defined.topic] = session

    def _tell(self, told: _Told, event: SessionEvent, where: str) -> None:
        number = int(event.session.partition("#")[2])
        where = f"{where} receives session {number}, {event.kind}"
        self.require(number >= told.running, f"{where}, after {told.running}")
        self.require(event.kind != "begin" or number > told.over, f"{where}, which was over")
        told.running = number
        told.over = max(told.over, number if event.kind == "end" else number - 1)

    def finish(self, plant: "EnginePlant") -> None:
        for consumer in plant.consumers:
            told = self._told.get(consumer.connection)
            if consumer.taste.sink == "region" or not consumer.is_up or told is None:
                continue
            where = str(consumer.connection)
            self.require(told.running == self._source.number, f"{where} last received session {told.running}")
            for topic, session in told.current.items():
                what = f"{where}, {topic}: a record of session {session} is current, although {told.running} runs"
                self.require(session > told.over, what)
