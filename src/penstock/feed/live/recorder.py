"""The adapter's own capture: a thread writes the published packets to a journal; the data thread never waits for it.

A record is a packet, as protocol/capture.md says, and its time is taken after the packet was published. When the
disk is full or fails, the adapter continues, `trouble` has the reason, and a GONE record marks the missing packets once
the journal accepts records again.
"""

import select
import threading
import time
from pathlib import Path

import numpy

from penstock.base.counters import Cause, Counters
from penstock.base.errors import JournalError, JournalFullError
from penstock.base.log import logger
from penstock.feed.core.service.published import PublishedBatch, Unpacker
from penstock.feed.live._tap import Tap
from penstock.journal import JournalConfig, JournalWriter
from penstock.wire import encode_gone

LOOK_SECONDS = 0.05
OPEN_AGAIN_SECONDS = 1.0

log = logger("feed.recorder")


class Recorder:
    """Records from start() to stop(). `trouble` is the current error, empty if there is none."""

    def __init__(
        self,
        tap: Tap,
        path: Path,
        config: JournalConfig,
        *,
        publisher_id: int,
        group: int,
        epoch: int,
        counters: Counters,
    ) -> None:
        self.trouble = ""
        self._tap = tap
        self._path = path
        self._config = config
        self._stream = (publisher_id, group, epoch)
        self._counters = counters
        self._journal: JournalWriter | None = None
        self._open_at = 0.0
        self._missing: tuple[int, int] | None = None
        self._newest_ns = 0
        self._unpacker = Unpacker()
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-recorder", daemon=True)

    def start(self) -> None:
        """Open the journal, or raise JournalError. Later disk failures raise nothing."""
        self._journal = JournalWriter.open(self._path, self._config, counters=self._counters)
        self._thread.start()

    def stop(self) -> None:
        """Record everything published so far, and close the journal."""
        self._is_stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._tap.fileno(), select.POLLIN)
        while not self._is_stopped.is_set():
            if self._tap.arm():
                poller.poll(LOOK_SECONDS * 1_000)
            self._tap.clear()
            self._take()
        self._take()
        if self._journal is not None:
            try:
                self._journal.close()
            except JournalError as error:
                log.error("journal_not_closed", path=str(self._path), error=str(error))

    def _take(self) -> None:
        while (taken := self._tap.take()) is not None:
            first, data, offsets, sizes = taken
            for lost, batch in self._unpacker.unpack_taken(first, data, offsets, sizes):
                if lost:
                    self._note_missing(first, first + lost - 1, Cause.WINDOW)
                self._record(batch)
                first += lost + len(batch.packets)

    def _record(self, batch: PublishedBatch) -> None:
        if not len(batch.packets):
            return
        try:
            journal = self._opened()
            if self._missing is not None:
                journal.append(encode_gone(*self._stream, [self._missing]), self._now_ns())
                self._missing = None
            packets = batch.packets
            times = numpy.full(len(packets), self._now_ns(), numpy.int64)
            journal.append_packed(batch.data.data, packets["offset"].copy(), packets["size"].copy(), times)
        except JournalError as error:
            first, last = int(batch.packets[0]["sequence"]), int(batch.packets[-1]["sequence"])
            self._note_missing(first, last, error.code)
            self._note_trouble(error)
        else:
            if self.trouble:
                log.info("recording_again", path=str(self._path))
                self.trouble = ""

    def _opened(self) -> JournalWriter:
        if self._journal is None:
            if time.monotonic() < self._open_at:
                raise JournalError("is closed after a failure", where=str(self._path))
            self._open_at = time.monotonic() + OPEN_AGAIN_SECONDS
            self._journal = JournalWriter.open(self._path, self._config, counters=self._counters)
        return self._journal

    def _note_trouble(self, error: JournalError) -> None:
        if not self.trouble:
            log.error("not_recording", path=str(self._path), code=error.code, error=str(error))
            self.trouble = str(error)
        if self._journal is not None and not isinstance(error, JournalFullError):
            journal, self._journal = self._journal, None
            try:
                journal.close()
            except JournalError as failure:
                log.warning("journal_not_closed", path=str(self._path), error=str(failure))

    def _note_missing(self, first: int, last: int, cause: str) -> None:
        self._missing = (first if self._missing is None else self._missing[0], last)
        self._counters.add("packets_unrecorded", last - first + 1, cause=cause)

    def _now_ns(self) -> int:
        self._newest_ns = max(self._newest_ns, time.time_ns())
        return self._newest_ns
