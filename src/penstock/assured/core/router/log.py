"""The log of a router: appending, reading and cleaning.

The journal's records are the log (_records.pxd). It is divided into sections of about equal size. When more of the log
is dead than alive, the live records of its oldest section are logged again at its end; when these are on the disk, the
section is deleted. The log therefore has about twice the size of its live records, plus records retained for replay,
and a start takes the time to read that.
"""

from enum import Enum, auto

import msgspec
import numpy
from numpy.typing import NDArray

from penstock.assured.config import Role, RouterConfig
from penstock.assured.core.router._cleaning import log_publishers, move_oldest, take_records
from penstock.assured.core.router._delivery import end_fetch
from penstock.assured.core.router._groups import log_consumed
from penstock.assured.core.router._messages import delete_endpoint
from penstock.assured.core.router._records import (
    EPOCH_DEGRADED,
    EPOCH_PARTIAL,
    EPOCH_SIZE,
    EPOCH_STANDBY,
    PUBLISHER_HEAD_SIZE,
    RECORD_ENDPOINT,
    RECORD_EPOCH,
    WINDOW_WORDS,
)
from penstock.assured.core.router._recovery import finish_recovery, pass_row_of, recover_rows
from penstock.assured.core.router._tables import Tables
from penstock.assured.core.router.endpoints import Endpoints
from penstock.assured.core.router.events import Append, Instruction, ReadRecords, RecordsRead, RemoveBefore, Replay
from penstock.base.clock import NS_PER_MS, NS_PER_SECOND

EPOCH_BITS = 40
"""Number of low bits of an id: a counter that starts at 1 in each epoch; the epoch is above."""

RETRY_NS = 100 * NS_PER_MS
"""Pause after a failed read."""

PUBLISHER_SIZE_MAX = PUBLISHER_HEAD_SIZE + WINDOW_WORDS * 8
CLEAN_SECTIONS_MIN = 2
"""So many sections may be dead in any case."""

PRESSED_GAIN = 2
"""While the disk is full: so many dead bytes for each that has to be logged again."""


class _Purpose(Enum):
    DELIVER = auto()
    MOVE = auto()


class _Reading(msgspec.Struct, frozen=True):
    purpose: _Purpose
    endpoint: int
    ids: NDArray[numpy.uint64]


class Since(msgspec.Struct, frozen=True):
    """The begin of a router's active role in a pair: later messages of the other router were never sent to it."""

    epoch: int = 0
    id: int = 0
    """The last message of the other router at that time."""


class Log:
    def __init__(self, config: RouterConfig, tables: Tables, endpoints: Endpoints) -> None:
        self.epoch = 0
        self.role: Role = "active"
        """The role in the log."""
        self.since = Since()
        self.is_partial = False
        """True if it was catching up with the active router."""
        self.is_degraded = False
        """True if it has acknowledged, as the active router, messages that the other one may lack."""
        self.stored_through = 0
        self.is_troubled = False
        self.is_pressed = False
        """The disk is full except for the reserve: everything removable is removed."""
        self.is_held = False
        """Cleaning is suspended: the log is being read."""
        self._config = config
        self._tables = tables
        self._endpoints = endpoints
        self._epoch_sequence = 0
        self._readings: dict[int, _Reading] = {}
        self._request = 0
        self._retry: list[int] = []
        """Endpoints whose messages could not be read."""
        self._retry_ns: int | None = None
        self._boundary = 0
        """The section being cleaned ends before this record; 0: none."""
        self._is_moving = False
        self._remove_after = 0
        """The section can be deleted when this record is on the disk; 0: it has live records."""

    # Changes of state; is_partial, is_degraded, is_troubled, is_pressed and is_held are set here only

    def begin_active(self, since: Since, *, is_degraded: bool) -> None:
        """The router is about to become active; the following EPOCH record says so."""
        self.since, self.is_degraded, self.is_partial = since, is_degraded, False

    def note_degraded(self, is_degraded: bool) -> int:
        """Log whether the active router acknowledges messages that the other one may lack. Return the record's
        number."""
        self.is_degraded = is_degraded
        return self.append_epoch(self.role, self.epoch)

    def become_partial(self) -> None:
        """Log that the router is catching up with the active one, before it does."""
        if not self.is_partial:
            self.is_partial = True
            self.append_epoch(self.role, self.epoch)

    def become_whole(self) -> None:
        """The router has caught up; the following EPOCH record says so."""
        self.is_partial = False

    def trouble(self, *, is_pressed: bool) -> None:
        """The disk accepts nothing; or (`is_pressed`) only records that free space."""
        self.is_troubled, self.is_pressed = not is_pressed, is_pressed

    def recovered(self) -> None:
        """The disk accepts everything again."""
        self.is_troubled = self.is_pressed = False

    def hold(self, is_held: bool) -> None:
        """Suspend or resume cleaning, because the log is being read."""
        self.is_held = is_held

    @property
    def newest_sequence(self) -> int:
        """The number of the newest record, on the disk or not."""
        return self._tables.log.next_sequence - 1

    @property
    def has_pending(self) -> bool:
        """True if there are records that flush() has not taken."""
        return self._tables.log.pending_size > 0

    # Recovery

    def recover(self, event: Replay) -> None:
        data = bytes(event.data)
        at = 0
        while (at := recover_rows(self._tables, data, event.rows, at)) < len(event.rows):
            row = event.rows[at]
            record = data[row["offset"] : row["offset"] + row["size"]]
            pass_row_of(self._tables, event.rows, at)
            if record[0] == RECORD_ENDPOINT:
                self._endpoints.recover(record, int(row["sequence"]))
            else:
                self._recover_epoch(record, int(row["sequence"]))
            at += 1

    def _recover_epoch(self, record: bytes, sequence: int) -> None:
        self.epoch = int.from_bytes(record[8:16], "little")
        self.role = "standby" if record[1] & EPOCH_STANDBY else "active"
        self._tables.skip_ids(int.from_bytes(record[16:24], "little"))
        since_epoch, since_id = int.from_bytes(record[24:32], "little"), int.from_bytes(record[32:40], "little")
        self.since = Since(since_epoch, since_id)
        self.is_partial, self.is_degraded = bool(record[1] & EPOCH_PARTIAL), bool(record[1] & EPOCH_DEGRADED)
        self._epoch_sequence = sequence

    def start(self, next_sequence: int) -> None:
        self._tables.log.start(next_sequence)
        self.stored_through = next_sequence - 1
        for number in self._tables.undefined_endpoints():
            delete_endpoint(self._tables, number)
        finish_recovery(self._tables)

    # Appending

    def know_of(self, id_highest: int) -> int:
        """Note that messages up to this one exist, even if they never arrived here; the next EPOCH record says so.
        Return the highest known id."""
        self._tables.skip_ids(id_highest)
        return self._tables.next_id - 1

    def append_epoch(self, role: Role, epoch: int) -> int:
        """Append an EPOCH record and return its number."""
        self.role, self.epoch = role, epoch
        record = bytearray(EPOCH_SIZE)
        record[0] = RECORD_EPOCH
        record[1] = (
            EPOCH_STANDBY * (role == "standby") | EPOCH_DEGRADED * self.is_degraded | EPOCH_PARTIAL * self.is_partial
        )
        record[4:8] = EPOCH_SIZE.to_bytes(4, "little")
        record[8:16] = epoch.to_bytes(8, "little")
        record[16:24] = (self._tables.next_id - 1).to_bytes(8, "little")
        record[24:32] = self.since.epoch.to_bytes(8, "little")
        record[32:40] = self.since.id.to_bytes(8, "little")
        self._epoch_sequence = self._tables.log.append(bytes(record), self._tables.wall_ns)
        return self._epoch_sequence

    def flush(self) -> list[Instruction]:
        """Return the rows logged since the last call, for the journal; while the disk is full they wait."""
        if self.is_troubled or (taken := self._tables.log.take()) is None:
            return []
        data, offsets, sizes, first = taken
        timestamps_ns = numpy.full(len(offsets), self._tables.wall_ns, numpy.int64)
        return [Append(data, offsets, sizes, timestamps_ns, first, first + len(offsets) - 1)]

    def stored(self, through: int) -> list[Instruction]:
        self.stored_through = max(self.stored_through, through)
        if not self._remove_after or self.stored_through < self._remove_after:
            return []
        removed = RemoveBefore(self._boundary)
        self._tables.log.drop_section()
        self._boundary = self._remove_after = 0
        return [removed]

    # Reading

    def fetch(self, endpoint: int, ids: NDArray[numpy.uint64], sequences: NDArray[numpy.uint64]) -> ReadRecords:
        """Read an endpoint's next messages."""
        return self._read(_Reading(_Purpose.DELIVER, endpoint, ids), sequences)

    def _read(self, reading: _Reading, sequences: NDArray[numpy.uint64]) -> ReadRecords:
        request = self.new_request()
        self._readings[request] = reading
        return ReadRecords(request, sequences)

    def new_request(self) -> int:
        self._request += 1
        return self._request

    def records_read(self, event: RecordsRead, now_ns: int) -> None:
        reading = self._readings.pop(event.request, None)
        if reading is None:
            return
        found = 0
        if not event.is_failed:
            is_moving = reading.purpose is _Purpose.MOVE
            found = take_records(self._tables, reading.ids, bytes(event.data), event.rows, is_moving)
        if reading.purpose is _Purpose.MOVE:
            self._is_moving = False
        elif found:
            end_fetch(self._tables, reading.endpoint)
        else:
            self._retry.append(reading.endpoint)
        if not found:
            self._retry_ns = now_ns + RETRY_NS

    def next_deadline_ns(self) -> int | None:
        return self._retry_ns

    def tick(self, now_ns: int) -> None:
        if self._retry_ns is not None and now_ns >= self._retry_ns:
            for endpoint in self._retry:
                end_fetch(self._tables, endpoint)
            self._retry, self._retry_ns = [], None

    # Cleaning

    @property
    def has_work(self) -> bool:
        """True if clean() has something to do now."""
        return bool(self._boundary) and not (self._is_moving or self._remove_after or self._retry_ns is not None)

    def clean(self) -> list[Instruction]:
        """Do the next bit of cleaning, if any."""
        if not self._boundary and not self.is_held:
            self._boundary = self._section_to_clean()
        if not self.has_work or self.is_troubled:
            return []
        config, tables = self._config, self._tables
        ids, sequences = move_oldest(tables, config.fetch_messages_max, config.fetch_bytes_max)
        if len(ids):
            self._is_moving = True
            return [self._read(_Reading(_Purpose.MOVE, 0, ids), sequences)]
        oldest = tables.log.oldest_section
        if oldest is not None and oldest[2] == 0:
            log_publishers(tables, self._boundary)
            log_consumed(tables)
            self._endpoints.log_older(self._boundary)
            self._remove_after = self.append_epoch(self.role, self.epoch)
        return []

    def _section_to_clean(self) -> int:
        """Return the end of the oldest section, if cleaning it is worthwhile; otherwise 0."""
        oldest = self._tables.log.oldest_section
        if oldest is None:
            return 0
        _, boundary, live_count, ended_ns, oldest_live_size = oldest
        if boundary - 1 > self.stored_through:
            return 0
        if self._config.retain_s and self._tables.wall_ns - ended_ns < self._config.retain_s * NS_PER_SECOND:
            return 0
        dead_size = self._tables.log.size - self._tables.log.live_size
        if self.is_pressed:
            return boundary if dead_size >= PRESSED_GAIN * oldest_live_size else 0
        # every deleted section logs these again, whatever its live records
        definitions_size = self._endpoints.log_size + PUBLISHER_SIZE_MAX * self._tables.publishers.count
        least = max(CLEAN_SECTIONS_MIN * self._config.section_bytes, 2 * definitions_size)
        return boundary if dead_size > (least if live_count == 0 else max(self._tables.log.live_size, least)) else 0
