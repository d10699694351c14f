"""Adapters of one feed: a message from one adapter reaches another at once, unless the line between them is cut."""

from collections import deque
from typing import Any

from penstock.base.clock import NS_PER_MS
from penstock.base.core import Tick
from penstock.convert import SourceBatch
from penstock.feed.config import SynchroniserConfig
from penstock.feed.core.events import (
    Announce,
    PeerConnected,
    PeerDisconnected,
    PeerMessageReceived,
    PersistTerm,
    PublishConverted,
    SendPeer,
    SessionBegan,
    SourceBroken,
    SourceMessages,
    TermPersisted,
)
from penstock.feed.core.session_dates import SessionDates
from penstock.feed.core.sync.synchroniser import Synchroniser
from penstock.wire import Origin, OriginFlag, decode_origin
from sim.toy_conversion import ToyConversion

STREAM = 1
SYNCHRONISED = int(OriginFlag.SYNCHRONISED)


def source(sequence: int) -> bytes:
    """The exchange's message with this number."""
    return f"S{sequence % 7}:{sequence}".encode()


class Adapter:
    """A synchroniser with its toy converter, its disk, and a log of its instructions."""

    def __init__(self, table: "Table", index: int, term: int, **options: Any) -> None:
        self.index = index
        self.table = table
        self.converter = ToyConversion(STREAM)
        calendar = options.pop("calendar", None)
        dates = None if calendar is None else {STREAM: SessionDates(calendar)}
        config = SynchroniserConfig(index=index, **options)
        self.core = Synchroniser(config, {STREAM: self.converter}, term=term, now_ns=table.now_ns, dates=dates)
        self.disk = term
        self.disk_waits = False
        self.sent: list[tuple[Origin, bytes]] = []
        self.said: list[Any] = []

    def handle(self, event: Any) -> list[Any]:
        instructions = self.core.handle(event, self.table.now_ns)
        for instruction in instructions:
            self._carry_out(instruction)
        return instructions

    def _carry_out(self, instruction: Any) -> None:
        self.said.append(instruction)
        match instruction:
            case SendPeer(index, message):
                self.table.queue.append((self.index, index, message))
            case PersistTerm(term):
                if not self.disk_waits:
                    self.disk = max(self.disk, term)
                    self.table.queue.append((self.index, self.index, TermPersisted(term)))
            case PublishConverted(_, converted):
                rows, payloads = converted.rows, converted.payloads.tobytes()
                for row in rows.tolist():
                    named = dict(zip(rows.dtype.names, row, strict=True))
                    extension = payloads[named["extensions_offset"] :][: named["extensions_size"]]
                    payload = payloads[named["payload_offset"] :][: named["payload_size"]]
                    self.sent.append((decode_origin(extension[4:32]), payload))
            case Announce(_, message):
                self.sent.append((decode_origin(message.extensions[4:32]), bytes(message.payload)))

    def take(self, first: int, last: int) -> None:
        """Deliver source messages to the synchroniser."""
        batch = SourceBatch.from_messages([source(n) for n in range(first, last + 1)], first)
        self.handle(SourceMessages(STREAM, batch))

    def lose(self, first: int, last: int) -> None:
        self.handle(SourceBroken(STREAM, first, last))

    def of_kind(self, kind: type) -> list[Any]:
        return [each for each in self.said if isinstance(each, kind)]

    def usable(self) -> dict[tuple[int, int], bytes]:
        """Synchronised messages by term and number."""
        plain = (
            each for each in self.sent if each[0].flags & SYNCHRONISED and not each[0].flags & OriginFlag.DISCONTINUITY
        )
        return {(origin.term, origin.message_sequence): payload for origin, payload in plain}


class Table:
    """All adapters of the feed, and the time."""

    def __init__(self, count: int, **options: Any) -> None:
        self.now_ns = 1_000_000
        self.options = options
        self.queue: deque[tuple[int, int, Any]] = deque()
        self.adapters: dict[int, Adapter] = {}
        self.links: set[frozenset[int]] = set()
        for index in range(count):
            self.start(index)

    def __getitem__(self, index: int) -> Adapter:
        return self.adapters[index]

    def start(
        self, index: int, *, term: int = 0, session: str | None = "day 1", first: int = 1, **options: Any
    ) -> Adapter:
        adapter = self.adapters[index] = Adapter(self, index, term, **{**self.options, **options})
        for other in list(self.adapters):
            if other != index:
                self.connect(index, other)
        if session is not None:
            adapter.handle(SessionBegan(STREAM, session, first))
        self.settle()
        return adapter

    def kill(self, index: int) -> None:
        self.adapters.pop(index)
        for other in list(self.adapters):
            self.cut(index, other)

    def connect(self, one: int, other: int) -> None:
        self.links.add(frozenset((one, other)))
        self[one].handle(PeerConnected(other))
        self[other].handle(PeerConnected(one))
        self.settle()

    def cut(self, one: int, other: int) -> None:
        self.links.discard(frozenset((one, other)))
        for here, there in ((one, other), (other, one)):
            if here in self.adapters:
                self[here].handle(PeerDisconnected(there))
        self.settle()

    def settle(self) -> None:
        """Deliver all messages that are under way."""
        while self.queue:
            source_index, index, message = self.queue.popleft()
            if isinstance(message, TermPersisted):
                if index in self.adapters:
                    self[index].handle(message)
            elif frozenset((source_index, index)) in self.links and index in self.adapters:
                self[index].handle(PeerMessageReceived(source_index, message))

    def wait(self, milliseconds: int) -> None:
        """Advance the time, with a Tick for each adapter at its deadlines."""
        end_ns = self.now_ns + milliseconds * NS_PER_MS
        while True:
            deadlines = [adapter.core.next_deadline_ns() or end_ns for adapter in self.adapters.values()]
            self.now_ns = min(end_ns, max(self.now_ns, min(deadlines)))
            if self.now_ns >= end_ns:
                return
            for adapter in list(self.adapters.values()):
                if (adapter.core.next_deadline_ns() or end_ns) <= self.now_ns:
                    adapter.handle(Tick())
            self.settle()

    def feed(self, first: int, last: int, *, only: list[int] | None = None) -> None:
        """Send from the exchange; each adapter gets all messages, in pieces of three."""
        for start in range(first, last + 1, 3):
            for adapter in list(self.adapters.values()):
                if only is None or adapter.index in only:
                    adapter.take(start, min(last, start + 2))
            self.settle()

    def active(self) -> Adapter:
        (active,) = [each for each in self.adapters.values() if each.core.role == "active"]
        return active
