"""A message router's core that serves a publisher on a real socket by inline commit, on a real journal."""

import select
import socket
import time
from pathlib import Path

from assured_kit import WALL_NS, MemoryJournal, Router
from penstock.assured.config import EndpointConfig
from penstock.assured.core.router.events import Append, Data, Stored
from penstock.assured.live._inline_commit import InlineCommitKernel
from penstock.assured.wire.frames import decode_frames
from penstock.journal import InlineWriter, JournalConfig, JournalReader, JournalWriter
from penstock.net._tcp import Receiver

SPIN_NS = 100_000
RECEIVED_MAX = 65_536


class RealJournal(MemoryJournal):
    """Like MemoryJournal, with a journal on the disk."""

    def __init__(self, path: Path, config: JournalConfig | None = None) -> None:
        super().__init__()
        self.path = path
        self.writer = JournalWriter.open(path, config)

    def append(self, event: Append) -> None:
        assert event.first == self.writer.next_sequence
        self.writer.append_packed(event.data, event.offsets, event.sizes, event.timestamps_ns)
        self.writer.commit()
        self.look()

    def look(self) -> None:
        """Called after records were written to the disk by another path."""
        self.next_sequence = self.writer.next_sequence
        self.records = self.read()

    def remove_before(self, sequence: int) -> None:
        """Do nothing: all records are inspected at the end."""

    def read(self) -> dict[int, tuple[int, bytes]]:
        """All records, as MemoryJournal has them."""
        with JournalReader.open(self.path) as reader:
            return {each.sequence: (each.timestamp_ns, bytes(each.payload)) for each in reader.read()}


class ServedRouter(Router):
    """Link 1 is a socket. Frames that the inline path does not serve are passed to the core, as in the driver."""

    journal: RealJournal

    def __init__(self, *endpoints: EndpointConfig, journal: RealJournal, **settings: object) -> None:
        super().__init__(*endpoints, journal=journal, **settings)
        self.client, self._socket = socket.socketpair()
        self.other_links = select.epoll()
        topics = self.core.endpoints.matcher.topics
        self.kernel = InlineCommitKernel(self.core.tables, topics, Receiver(SPIN_NS), self.other_links.fileno())
        self._began_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self.rest = b""
        self.link(1)

    def close(self) -> None:
        self.client.close()
        self._socket.close()
        self.other_links.close()
        self.journal.writer.close()

    def serve(self, data: bytes, for_ns: int = 0) -> bool:
        """Send bytes as the client; returns True if the inline path served all of them."""
        self.client.sendall(data)
        before, began_ns = self.kernel.served, self._now_ns()

        def work(journal: InlineWriter) -> None:
            owners = self.core.endpoints.matcher.owners
            offset_ns = WALL_NS - self._began_ns
            self.rest = self.kernel.serve(journal, self._socket.fileno(), 1, owners, offset_ns, for_ns)

        assert self.journal.writer.inline_commit(work) is not None
        is_served = self.kernel.served > before
        self.now_ns = self.core.tables.wall_ns - WALL_NS if is_served else self._now_ns()
        assert began_ns <= self.now_ns <= self._now_ns()
        self.sent[1] += decode_frames(self.answers())
        if is_served:
            self.store()
        if self.rest:
            self.tell(Data(1, self.rest))
        return is_served and not self.rest

    def store(self) -> None:
        self.journal.look()
        self.journal.durable = self.journal.writer.durable_sequence
        self.tell(Stored(self.journal.durable))

    def answers(self) -> bytes:
        """The client's answers from the inline path."""
        try:
            return self.client.recv(RECEIVED_MAX, socket.MSG_DONTWAIT) + self.kernel.unsent
        except BlockingIOError:
            return self.kernel.unsent

    def _now_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - self._began_ns
