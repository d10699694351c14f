"""The journal of a simulated message router: appended to and read as the real driver does, on a disk that fails."""

from collections import deque
from typing import Protocol

import numpy

from penstock.assured.core.router.events import Append, DiskRecovered, DiskTroubled, ReadRecords, RecordsRead, Stored
from penstock.base.clock import NS_PER_MS
from penstock.base.errors import JournalError, JournalFullError, LimitError
from penstock.journal.config import FollowConfig
from penstock.journal.core._log import RECORD_DTYPE
from penstock.journal.core.events import Commit, JournalInstruction, Recovered, RemoveBefore
from penstock.journal.core.records import RecordBatch
from penstock.journal.live.reader import JournalReader
from penstock.sim.journal.node import JournalNode, JournalOwner

READ_DELAY_NS_MAX = 5 * NS_PER_MS
RETRY_NS = 20 * NS_PER_MS


class DiskUser(JournalOwner, Protocol):
    def journal_said(self, event: Stored | DiskTroubled | DiskRecovered | RecordsRead) -> None: ...


class AssuredDisk(JournalNode):
    def __init__(self, user: DiskUser, name: str) -> None:
        super().__init__(user, name)
        self._user = user
        self._delays = user.world.randomness.fork(f"{name}/reads")
        self._waiting: deque[Append] = deque()
        self._is_troubled = False
        self._following: JournalReader | None = None
        self._records: dict[int, tuple[int, bytes]] = {}
        """Records read since the process started, by number; reading them again would take long."""
        self._oldest = 0
        """Number of the oldest of these records."""

    def work(self, incarnation: int) -> None:
        """Unused: the node appends records."""

    def on_crash(self) -> None:
        self._waiting.clear()
        self._is_troubled = False
        self._following = None
        self._records = {}

    def carry_out(self, instruction: JournalInstruction) -> None:
        super().carry_out(instruction)
        if isinstance(instruction, Recovered):
            self._append_all()

    # Appending

    def append(self, event: Append) -> None:
        self._waiting.append(event)
        if len(self._waiting) == 1:
            self._append_all()

    def _append_all(self) -> None:
        while self._waiting and (journal := self.journal()) is not None:
            event = self._waiting[0]
            assert event.first == journal.next_sequence
            try:
                journal.append_rows(event.data, event.offsets, event.sizes, event.timestamps_ns, self.world.now_ns())
            except LimitError:
                self.world.after(RETRY_NS, self._for_this_run(self._append_all))
                return
            except JournalError as error:
                if not self._is_troubled and isinstance(error, JournalFullError):
                    self._is_troubled = True
                    self._user.journal_said(DiskTroubled(str(error)))
                return
            self._waiting.popleft()
            self.handle(Commit())
        if self._is_troubled:
            self._is_troubled = False
            self._user.journal_said(DiskRecovered())

    def remove_before(self, sequence: int) -> None:
        self.handle(RemoveBefore(sequence))

    # Reading

    def everything(self) -> RecordBatch:
        """All records on the disk."""
        reader = self._reader()
        data, rows = b"", []
        while len(batch := reader.read_batch()):
            moved = batch.rows.copy()
            moved["offset"] += len(data)
            data += batch.data
            rows.append(moved)
        return RecordBatch(data, numpy.concatenate(rows)) if rows else batch

    def read(self, request: ReadRecords) -> None:
        delay_ns = self._delays.below(READ_DELAY_NS_MAX)
        self.world.after(delay_ns, self._for_this_run(lambda: self._answer_read(request)))

    def _answer_read(self, request: ReadRecords) -> None:
        if self._delays.chance(0.05):
            nothing = numpy.empty(0, RECORD_DTYPE)
            self._user.journal_said(RecordsRead(request.request, b"", nothing, 0, is_failed=True))
            return
        first = self._follow()
        if len(request.sequences):
            numbers = [number for number in request.sequences.tolist() if number in self._records]
            numbers = numbers[: self._delays.between(1, max(1, len(numbers)))]
        else:
            numbers = [each for each in self._records if each > request.after]
            numbers = [each for each in numbers if self._records[each][0] >= request.time_ns]
            numbers = numbers[: self._delays.between(1, 50)]
        rows = numpy.zeros(len(numbers), RECORD_DTYPE)
        data = bytearray()
        for row, number in enumerate(numbers):
            stamp, payload = self._records[number]
            rows[row] = (number, stamp, 0, len(data), len(payload))
            data += payload
        self._user.journal_said(RecordsRead(request.request, bytes(data), rows, first))

    def _follow(self) -> int:
        """Read the records that are new on the disk, and return the number of the oldest."""
        if self._following is None:
            self._following = self._reader()
            self._oldest = self._following.first_sequence
        first = self._following.first_sequence
        if self._following.next_sequence < first:  # removed by retention
            self._following.seek(first)
        while len(batch := self._following.read_batch()):
            for sequence, timestamp_ns, payload in batch:
                self._records[sequence] = (timestamp_ns, payload)
        for number in range(self._oldest, first):
            self._records.pop(number, None)
        self._oldest = max(self._oldest, first)
        return first

    def _reader(self) -> JournalReader:
        return JournalReader(self.source, self.boot_id(), FollowConfig(chunk_bytes=65_536), "simulated")
