"""A journal's directory on a real disk: segments, mark, lock."""

import errno
import fcntl
import os
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from typing_extensions import Buffer

from penstock.base.clock import random_bytes
from penstock.base.errors import JournalError, JournalLockedError
from penstock.base.files import create_or_open, make_directory
from penstock.base.log import logger
from penstock.journal.core._log import MARK_SIZE, SEGMENT_HEADER_SIZE
from penstock.journal.core.events import (
    CreateSegment,
    DiskFailed,
    DiskInstruction,
    InlineDone,
    InlinePlace,
    JournalEvent,
    SegmentCreated,
    Sync,
    SyncDone,
    Write,
    WriteDone,
)
from penstock.journal.core.format import (
    MARK_NAME,
    NEW_SUFFIX,
    OLDEST_NAME,
    OLDEST_SIZE,
    OLDEST_SLOT_SIZE,
    Mark,
    Oldest,
    decode_header,
    decode_mark,
    decode_oldest,
    encode_mark,
    encode_oldest,
    newest_slot,
    parse_segment_name,
    segment_name,
)
from penstock.journal.core.recovery import Recovery, Segment, check_name, recover
from penstock.journal.live._inline_commit import InlineWriter

log = logger("journal.files")

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MARK_READS_MAX = 100
"""Number of times that a mark is read again if it was read during its renewal."""


def boot_id() -> bytes:
    """Return an id of the machine's current boot; zeros if the system gives none, which counts as a single endless
    boot.
    """
    try:
        return bytes.fromhex(BOOT_ID.read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)


def pause(seconds: float) -> None:
    time.sleep(seconds)


class SegmentFile:
    """A segment open for reading."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.header = decode_header(self.read(0, SEGMENT_HEADER_SIZE), where=str(path))
            check_name(path.name, self.header)
        except BaseException:
            self.close()
            raise

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._fd, size, offset)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Directory:
    """Operations of readers on a journal's files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def first_sequences(self) -> list[int]:
        """Return the first sequence number of each segment, in order; refuse files that only look like segments."""
        firsts = []
        for name in self._names():
            first = parse_segment_name(name)
            if first is not None:
                firsts.append(first)
            elif name.endswith(".journal"):
                raise JournalError(
                    "the file name is not a valid segment name", where=name, hint="move foreign files elsewhere"
                )
        return sorted(firsts)

    def open_segment(self, first_sequence: int) -> SegmentFile | None:
        """Open a segment; None when it was removed."""
        path = self.path / segment_name(first_sequence)
        try:
            return SegmentFile(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable(path, error) from None

    def segments(self) -> list[Segment]:
        """Return all segments with headers and sizes."""
        found = []
        for first in self.first_sequences():
            if (file := self.open_segment(first)) is not None:
                try:
                    found.append(Segment(file.header, file.size()))
                finally:
                    file.close()
        return found

    def read_mark(self) -> Mark | None:
        for _ in range(MARK_READS_MAX):
            try:
                data = (self.path / MARK_NAME).read_bytes()
            except FileNotFoundError:
                return None
            except OSError as error:
                raise unreadable(self.path / MARK_NAME, error) from None
            if len(data) < MARK_SIZE or (mark := decode_mark(data)) is not None:
                return mark if len(data) >= MARK_SIZE else None
        return None

    def read_oldest(self) -> list[Oldest | None]:
        """Read the slots of the file that names the oldest retained record."""
        path = self.path / OLDEST_NAME
        try:
            with path.open("rb") as file:
                data = file.read(OLDEST_SIZE)
        except FileNotFoundError:
            data = b""
        except OSError as error:
            raise unreadable(path, error) from None
        return decode_oldest(data, where=str(path))

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.path)
        except OSError as error:
            raise JournalError(f"cannot list the directory: {error.strerror}", where=str(self.path)) from None


class WritableDirectory(Directory):
    """Operations of the only writer. Failures raise OSError, except in optional operations."""

    def __init__(self, path: Path, preallocate_bytes: int = 0) -> None:
        """Create the directory if it is missing, and lock it against other writers."""
        super().__init__(path)
        self._preallocate_bytes = preallocate_bytes
        self._active: _ActiveFile | None = None
        self._mark: Mark | None = None
        self._oldest_at: int | None = None
        """The current slot of the file that names the oldest record."""
        self._obsolete: list[int] = []
        """Segments to remove, oldest first."""
        self._directory_fd = self._mark_fd = -1
        try:
            _make_directory(path)
            self._directory_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._mark_fd = create_or_open(path / MARK_NAME, os.O_RDWR)
            fcntl.flock(self._mark_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            if error.errno == errno.EWOULDBLOCK:
                raise JournalLockedError(
                    "another writer has the journal open", where=str(path), hint="a journal has one writer at a time"
                ) from None
            raise JournalError(f"cannot open the journal for writing: {error.strerror}", where=str(path)) from None

    def close(self) -> None:
        if self._active is not None:
            os.close(self._active.fd)
            self._active = None
        for fd in (self._mark_fd, self._directory_fd):
            if fd >= 0:
                os.close(fd)
        self._mark_fd = self._directory_fd = -1

    def carry_out(self, instruction: DiskInstruction) -> JournalEvent:
        """Execute the core's instruction and return the answer."""
        try:
            match instruction:
                case Write(first_sequence, offset, data):
                    self.write(first_sequence, offset, data)
                    return WriteDone()
                case Sync(first_sequence):
                    self.sync(first_sequence)
                    return SyncDone()
                case CreateSegment(first_sequence, header, data):
                    self.create(first_sequence, header, data)
                    return SegmentCreated()
        except OSError as error:
            log.warning("disk_failed", path=str(self.path), error=os.strerror(error.errno or errno.EIO))
            return DiskFailed(error.errno or errno.EIO)

    def recover(self, run_id: bytes, first_sequence: int = 1) -> Recovery:
        """Read and repair the existing journal; see recovery.py."""
        self._remove_unfinished()
        segments = self.segments()
        content = (self.path / segments[-1].name).read_bytes() if segments else b""
        recovery = recover(
            segments,
            content,
            self.read_mark(),
            self.read_oldest(),
            boot_id=run_id,
            new_journal_id=random_bytes(16),
            first_sequence=first_sequence,
        )
        if segments and recovery.truncate_at is not None:
            log.warning("torn_tail_cut", segment=segments[-1].name, size=len(content), good=recovery.truncate_at)
            self._truncate(segments[-1].first_sequence, recovery.truncate_at)
        elif segments and not len(recovery.doubtful):
            self.sync(segments[-1].first_sequence)
        first = segments[0].first_sequence if segments else recovery.next_sequence
        self._prepare_oldest(recovery.journal_id, first, is_begun=bool(segments))
        self._sync_names()  # a killed process may have named a segment without syncing the name
        self.write_mark(Mark(journal_id=recovery.journal_id, boot_id=run_id, durable=recovery.next_sequence - 1))
        return recovery

    def _prepare_oldest(self, journal_id: bytes, first: int, *, is_begun: bool) -> None:
        """Store this journal's oldest record in the file, and allocate both slots, so that a segment can be removed on
        a full disk.
        """
        slots, oldest = self.read_oldest(), Oldest(journal_id=journal_id, sequence=first)
        self._oldest_at = newest_slot(slots, journal_id)
        if self._oldest_at is not None and (is_begun or slots[self._oldest_at] == oldest):
            return
        fd = create_or_open(self.path / OLDEST_NAME, os.O_WRONLY)
        try:
            write_all(fd, encode_oldest(oldest) + bytes(OLDEST_SLOT_SIZE), 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        self._oldest_at = 0

    def _remove_unfinished(self) -> None:
        """Remove segments that a crash left half created."""
        for name in self._names():
            if name.endswith(NEW_SUFFIX) and parse_segment_name(name.removesuffix(NEW_SUFFIX)) is not None:
                (self.path / name).unlink(missing_ok=True)

    def _truncate(self, first_sequence: int, size: int) -> None:
        file = self._open(first_sequence)
        os.ftruncate(file.fd, size)
        os.fsync(file.fd)
        file.allocated = file.end = size

    def create(self, first_sequence: int, header: bytes, data: Buffer) -> None:
        """Write the content first, then the name, then sync the directory, so that no crash leaves a segment without
        its records.
        """
        path = self.path / segment_name(first_sequence)
        new = path.with_name(path.name + NEW_SUFFIX)
        fd = create_or_open(new, os.O_RDWR | os.O_TRUNC)
        try:
            write_all(fd, header, 0)
            write_all(fd, data, len(header))
            os.fsync(fd)
            os.rename(new, path)
            self._sync_names()
        except BaseException:
            os.close(fd)
            raise
        self.trim()
        self._use(first_sequence, fd, len(header) + memoryview(data).nbytes)

    def write(self, first_sequence: int, offset: int, data: Buffer) -> None:
        file = self._open(first_sequence)
        end = offset + memoryview(data).nbytes
        if end > file.allocated and self._preallocate_bytes:
            self._preallocate(file, end)
        file.end = max(file.end, end)
        write_all(file.fd, data, offset)

    def inline_writer(self, place: InlinePlace) -> InlineWriter | None:
        """Return a writer for records in the open segment, up to its end and the preallocated size; None if it is not
        open.
        """
        file = self._active
        if file is None or file.first_sequence != place.first_sequence:
            return None
        end = min(place.end, file.allocated) if self._preallocate_bytes else place.end
        return InlineWriter(file.fd, place.nonce, place.offset, end, place.batch, place.next_sequence)

    def inline_done(self, written: InlineWriter) -> InlineDone:
        """Close the inline writer and return its outcome for the core."""
        written.close()
        assert self._active is not None
        self._active.end += written.size
        return InlineDone(written.count, written.size, written.failure, written.is_written)

    def sync(self, first_sequence: int) -> None:
        os.fdatasync(self._open(first_sequence).fd)

    def trim(self) -> None:
        """Release the space preallocated beyond the last record of a finished segment."""
        file = self._active
        if file is None or file.allocated <= file.end:
            return
        try:
            os.ftruncate(file.fd, file.end)
        except OSError as error:
            log.warning("not_trimmed", path=str(self.path), error=error.strerror)  # zeros at its end are harmless
        file.allocated = file.end

    def remove_oldest(self, first_sequences: Sequence[int], oldest: int) -> None:
        """Remove the first segments, so that the journal begins with record `oldest`; the number is synced before any
        segment is removed. Segments are removed in order: a segment that cannot be removed now is retried before later
        ones.
        """
        assert self._mark is not None
        self._obsolete += first_sequences
        try:
            self._write_oldest(Oldest(journal_id=self._mark.journal_id, sequence=oldest))
            while self._obsolete:
                self.remove(self._obsolete[0])
                self._obsolete.pop(0)
        except OSError as error:
            log.warning("segment_not_removed", first_sequence=self._obsolete[0], error=error.strerror)

    def _write_oldest(self, oldest: Oldest) -> None:
        """Overwrite the slot that is not current, so that the current slot survives a torn write."""
        assert self._oldest_at is not None
        at = 1 - self._oldest_at
        fd = os.open(self.path / OLDEST_NAME, os.O_WRONLY | os.O_CLOEXEC)
        try:
            write_all(fd, encode_oldest(oldest), at * OLDEST_SLOT_SIZE)
            os.fsync(fd)
        finally:
            os.close(fd)
        self._oldest_at = at

    def remove(self, first_sequence: int) -> None:
        """Remove a segment and sync the directory, so that segments disappear in order."""
        (self.path / segment_name(first_sequence)).unlink(missing_ok=True)
        self._sync_names()

    def truncate(self, first_sequence: int, size: int) -> None:
        """Truncate a segment permanently."""
        self._truncate(first_sequence, size)

    def drop_mark(self) -> None:
        """Remove the mark: no record counts as being on disk."""
        os.ftruncate(self._mark_fd, 0)
        self.sync_mark()

    def write_mark(self, mark: Mark) -> None:
        self._mark = mark
        write_all(self._mark_fd, encode_mark(mark), 0)

    def renew_mark(self, durable: int) -> None:
        """Renew the mark. A failure is harmless: readers see records later, and recovery scans more."""
        assert self._mark is not None
        try:
            self.write_mark(msgspec.structs.replace(self._mark, durable=durable))
        except OSError as error:
            log.warning("mark_not_renewed", path=str(self.path), error=error.strerror)

    def sync_mark(self) -> None:
        os.fsync(self._mark_fd)

    def _sync_names(self) -> None:
        os.fsync(self._directory_fd)

    def _open(self, first_sequence: int) -> "_ActiveFile":
        if self._directory_fd < 0:
            raise OSError(errno.EBADF, "the journal is closed")  # the descriptor may belong to another writer by now
        if self._active is None or self._active.first_sequence != first_sequence:
            fd = os.open(self.path / segment_name(first_sequence), os.O_RDWR | os.O_CLOEXEC)
            self._use(first_sequence, fd, os.fstat(fd).st_size)
        assert self._active is not None
        return self._active

    def _use(self, first_sequence: int, fd: int, size: int) -> None:
        if self._active is not None:
            os.close(self._active.fd)
        self._active = _ActiveFile(first_sequence, fd, size, size)

    def _preallocate(self, file: "_ActiveFile", end: int) -> None:
        """Extend the file beyond its data, so that not every sync has to write its length as well.

        This only saves time: if there is no space for it, the write itself will report whether it fits.
        """
        try:
            os.posix_fallocate(file.fd, file.allocated, end + self._preallocate_bytes - file.allocated)
        except OSError as error:
            log.debug("not_preallocated", path=str(self.path), error=error.strerror)
            file.allocated = end
        else:
            file.allocated = end + self._preallocate_bytes


class _ActiveFile(msgspec.Struct):
    """The current segment: `end` of the written data, and `allocated` size."""

    first_sequence: int
    fd: int
    end: int
    allocated: int


def write_all(fd: int, data: Buffer, offset: int) -> None:
    with memoryview(data) as whole:
        done = 0
        while done < len(whole):
            written = os.pwrite(fd, whole[done:], offset + done)
            if written == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            done += written


def unreadable(path: Path, error: OSError) -> JournalError:
    return JournalError(f"cannot read the file: {error.strerror}", where=str(path))


def _make_directory(path: Path) -> None:
    """Create a directory and its parents, and sync their names.

    The name of an existing directory is synced as well, because a killed process may have created it without syncing.
    """
    made = [each for each in (path, *path.parents) if not each.exists()]
    make_directory(path)
    for each in made or [path]:
        fd = os.open(each.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
