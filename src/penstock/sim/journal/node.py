"""The journal's writer on a simulated disk, and the disk as readers see it."""

import errno
import functools
from collections.abc import Callable
from typing import Protocol

import msgspec

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.base.errors import JournalError, LimitError
from penstock.journal.config import JournalConfig
from penstock.journal.core.events import (
    Acknowledged,
    Append,
    Commit,
    CreateSegment,
    DiskFailed,
    Failed,
    InlineDone,
    InlinePlace,
    JournalEvent,
    JournalInstruction,
    RemoveSegment,
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
from penstock.journal.core.journal import Journal
from penstock.journal.core.recovery import Recovery, Segment, recover
from penstock.sim.disk import Disk, DiskFaults
from penstock.sim.node import Node
from penstock.sim.world import World

WRITE_DELAY_NS_MAX = 100_000
WRITEBACK = 0.05
"""Probability that the operating system writes the mark back to the disk."""
RESTART_DELAY_NS_MAX = NS_PER_SECOND
INLINE_SHARE = 0.3
"""The share of bursts that are committed inline, one record at a time."""


class DiskSegment:
    """A segment open for reading."""

    def __init__(self, name: str, content: Callable[[], bytes]) -> None:
        self._content = content
        self.header = decode_header(content(), where=name)

    def read(self, offset: int, size: int) -> bytes:
        return self._content()[offset : offset + size]

    def size(self) -> int:
        return len(self._content())

    def close(self) -> None:
        self._content = bytes


_first_of = functools.lru_cache(maxsize=65_536)(parse_segment_name)
"""Cached, because a run lists the same thousands of names thousands of times."""


class DiskSource:
    """A journal's directory on a simulated disk."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def first_sequences(self) -> list[int]:
        firsts = (_first_of(name) for name in self._disk.names())
        return sorted(first for first in firsts if first is not None)

    def open_segment(self, first_sequence: int) -> DiskSegment | None:
        name = segment_name(first_sequence)
        content = self._disk.open(name)
        return DiskSegment(name, content) if content else None

    def segments(self) -> list[Segment]:
        opened = (self.open_segment(first) for first in self.first_sequences())
        return [Segment(each.header, each.size()) for each in opened if each is not None]

    def read_mark(self) -> Mark | None:
        return decode_mark(self._disk.read(MARK_NAME))

    def read_oldest(self) -> list[Oldest | None]:
        return decode_oldest(self._disk.read(OLDEST_NAME), where=OLDEST_NAME)


class DiskOptions(Protocol):
    """Options of a journal and its disk."""

    @property
    def payload_size_max(self) -> int: ...
    @property
    def journal(self) -> JournalConfig: ...
    @property
    def disk(self) -> DiskFaults: ...


class JournalOwner(Protocol):
    """The owner of the journal."""

    @property
    def world(self) -> World: ...
    @property
    def options(self) -> DiskOptions: ...

    def appended(self, sequence: int, timestamp_ns: int, payload: bytes) -> None: ...
    def acknowledged(self, through: int) -> None: ...

    def recovered(self, durable: int, last: int) -> None:
        """The writer continues after `last`. Records up to `durable` are durable; it appends the others again."""
        ...

    def kill(self, *, is_machine: bool) -> None: ...


class _InlineCommit(msgspec.Struct):
    """An inline commit in progress: `left` more records are written, synced and acknowledged one at a time."""

    place: InlinePlace
    left: int
    count: int = 0
    size: int = 0
    waiting: list[JournalEvent] = msgspec.field(default_factory=list)
    """Events that wait until the inline commit is done."""


class JournalNode(Node):
    """Appends bursts of distinct records; uses the disk like the real driver."""

    def __init__(self, plant: JournalOwner, name: str = "writer") -> None:
        super().__init__(plant.world, name, "journal")
        self.plant = plant
        self.disk = Disk(plant.world, self.name, msgspec.structs.replace(plant.options.disk))
        self.source = DiskSource(self.disk)
        self.boots = 1
        self._randomness = plant.world.randomness.fork(self.name)
        self._is_resting = False
        self._appended = 0
        self.inline_commits = 0
        self._inline: _InlineCommit | None = None
        self._mark = Mark(journal_id=bytes(16), boot_id=bytes(16), durable=0)
        self._removals: list[RemoveSegment] = []
        self._is_removing = False

    def boot_id(self) -> bytes:
        return self.boots.to_bytes(16, "little")

    def journal(self) -> Journal | None:
        assert self.core is None or isinstance(self.core, Journal)
        return self.core

    # Starting and ending

    def on_start(self) -> None:
        for name in self.disk.names():
            if name.endswith(NEW_SUFFIX):
                self.disk.remove(name)
        segments = self.source.segments()
        content = self.disk.read(segments[-1].name) if segments else b""
        recovery = recover(
            segments,
            content,
            self.source.read_mark(),
            self.source.read_oldest(),
            boot_id=self.boot_id(),
            new_journal_id=self._randomness.bytes(16),
        )
        self.log(f"recovered up to {recovery.next_sequence - 1}, {len(recovery.doubtful)} doubtful")
        if segments and recovery.truncate_at is not None:
            self.disk.truncate(segments[-1].name, recovery.truncate_at)

        def sync_names(is_done: bool) -> None:
            if is_done:
                self.disk.fsync_directory(self._for_this_run(lambda is_done: self._begin(recovery, is_done)))
            else:
                self._begin(recovery, False)

        def prepare_oldest(is_done: bool) -> None:
            first = segments[0].first_sequence if segments else recovery.next_sequence
            oldest = Oldest(journal_id=recovery.journal_id, sequence=first)
            slots = self.source.read_oldest()
            at = newest_slot(slots, recovery.journal_id)
            if not is_done or (at is not None and (segments or slots[at] == oldest)):
                sync_names(is_done)
                return
            try:
                self.disk.write(OLDEST_NAME, 0, encode_oldest(oldest) + bytes(OLDEST_SLOT_SIZE))
            except OSError:
                sync_names(False)
            else:
                self.disk.fsync(OLDEST_NAME, self._for_this_run(sync_names))

        if segments and not len(recovery.doubtful):
            self.disk.fsync(segments[-1].name, self._for_this_run(prepare_oldest))
        else:
            prepare_oldest(True)

    def _begin(self, recovery: Recovery, is_synced: bool) -> None:
        if not is_synced:
            self.log("cannot be opened")
            self.plant.kill(is_machine=False)
            return
        self._mark = Mark(journal_id=recovery.journal_id, boot_id=self.boot_id(), durable=recovery.next_sequence - 1)
        if not self._write_mark():
            self.plant.kill(is_machine=False)
            return
        self._inline = None
        self._removals = []
        self._is_removing = False
        now_ns = self.world.now_ns()
        core = Journal(
            self.plant.options.journal, recovery, self._randomness, self.counters, now_ns=now_ns, wall_ns=now_ns
        )
        self.run(core)
        self.plant.recovered(recovery.next_sequence - 1, core.next_sequence - 1)
        self.work(self.incarnation)

    def on_crash(self) -> None:
        """The plant decides if the machine crashes as well; the plant then also crashes the disk."""

    def rest(self) -> None:
        self._is_resting = True

    # The workload

    def work(self, incarnation: int) -> None:
        if self.incarnation != incarnation or not self.is_up:
            return
        if not self._is_resting and self._inline is None:
            self._append_or_commit_inline()
        self.world.after(self._randomness.below(8 * NS_PER_MS), lambda: self.work(incarnation))

    def _append_or_commit_inline(self) -> None:
        if (journal := self.journal()) is None:
            return
        count = self._randomness.below(6)
        if self._randomness.chance(INLINE_SHARE) and (place := journal.inline_place()) is not None:
            self._inline = _InlineCommit(place, count)
            self._commit_next(self._inline)
        else:
            self._append(journal, count)

    def _payload(self) -> bytes:
        self._appended += 1
        size = self._randomness.below(self.plant.options.payload_size_max)
        return self._appended.to_bytes(8, "little") + self._randomness.bytes(size)

    def _append(self, journal: Journal, count: int) -> None:
        for _ in range(count):
            payload = self._payload()
            sequence = journal.next_sequence
            try:
                self.take(Append([payload], self.world.now_ns()))
            except (JournalError, LimitError) as error:
                self.log(f"refused: {error.code}")
                break
            self.plant.appended(sequence, self.world.now_ns(), payload)
        self._set_timer()
        if self._randomness.chance(0.3):
            self.handle(Commit())

    # Records that are committed one at a time

    def handle(self, event: JournalEvent) -> None:
        if self._inline is not None and not isinstance(event, InlineDone):
            self._inline.waiting.append(event)
        else:
            super().handle(event)

    def take(self, event: JournalEvent) -> None:
        inline, self._inline = self._inline, None
        super().take(event)
        if inline is not None:
            for each in inline.waiting:
                self.handle(each)

    def _commit_next(self, inline: _InlineCommit) -> None:
        """Write a record, sync it, acknowledge it, and the next."""
        place, payload, now_ns = inline.place, self._payload(), self.world.now_ns()
        sequence, offset = place.next_sequence + inline.count, place.offset + inline.size
        place.batch.clear(sequence)
        place.batch.append(payload, now_ns)
        place.batch.seal(place.nonce, sequence - 1)
        content, name = bytes(place.batch), segment_name(place.first_sequence)
        if inline.left == 0 or offset + len(content) > place.end:
            self.handle(InlineDone(inline.count, inline.size))
            return

        def write() -> None:
            self.log(f"write {name} at {offset}: {len(content)} bytes, inline")
            self.plant.appended(sequence, now_ns, payload)
            try:
                self.disk.write(name, offset, content)
            except OSError as error:
                self.handle(InlineDone(inline.count, inline.size, error.errno or errno.EIO))
            else:
                self.disk.fsync(name, self._for_this_run(synced))

        def synced(is_done: bool) -> None:
            if not is_done:
                self.handle(InlineDone(inline.count, inline.size, errno.EIO, is_written=True))
                return
            self.inline_commits += 1
            inline.count, inline.size, inline.left = inline.count + 1, inline.size + len(content), inline.left - 1
            self.plant.acknowledged(sequence)
            self._commit_next(inline)

        self.world.after(self._randomness.below(WRITE_DELAY_NS_MAX), self._for_this_run(write))

    # Instructions of the core

    def carry_out(self, instruction: JournalInstruction) -> None:
        match instruction:
            case CreateSegment(first_sequence, header, data):
                self._create(segment_name(first_sequence), header + bytes(data))
            case Write(first_sequence, offset, data):
                name, content = segment_name(first_sequence), bytes(data)
                delay_ns = self._randomness.below(WRITE_DELAY_NS_MAX)
                self.log(f"write {name} at {offset}: {len(content)} bytes")
                self.world.after(delay_ns, self._for_this_run(lambda: self._write(name, offset, content)))
            case Sync(first_sequence):
                self.disk.fsync(segment_name(first_sequence), self._answer(SyncDone()))
            case RemoveSegment():
                self._removals.append(instruction)
                if not self._is_removing:
                    self._remove_next()
            case Acknowledged(through):
                self.log(f"acknowledged {through}")
                self._mark = msgspec.structs.replace(self._mark, durable=through)
                self._write_mark()
                self.plant.acknowledged(through)
            case Failed():
                self.log(f"{instruction}")
                self.world.after(NS_PER_MS, self._for_this_run(lambda: self.plant.kill(is_machine=False)))
            case _:
                self.log(f"{instruction}")

    def _remove_next(self) -> None:
        """Write the number of the oldest record to the disk, then remove the segment before it. If that fails, the
        segment is removed together with the next one."""
        removal = self._removals[0]
        self._is_removing = True
        slots = self.source.read_oldest()
        at = newest_slot(slots, self._mark.journal_id)
        assert at is not None

        def noted(is_done: bool) -> None:
            self._is_removing = False
            if not is_done:
                return
            self.log(f"remove {segment_name(removal.first_sequence)}")
            self.disk.remove(segment_name(removal.first_sequence))
            self._removals.pop(0)
            if self._removals:
                self._remove_next()

        slot = encode_oldest(Oldest(journal_id=self._mark.journal_id, sequence=removal.oldest))
        try:
            self.disk.write(OLDEST_NAME, (1 - at) * OLDEST_SLOT_SIZE, slot)
        except OSError:
            self.world.after(1, self._for_this_run(lambda: noted(False)))
        else:
            self.disk.fsync(OLDEST_NAME, self._for_this_run(noted))

    def _create(self, name: str, content: bytes) -> None:
        self.log(f"create {name}: {len(content)} bytes")
        new = name + NEW_SUFFIX
        try:
            self.disk.create(new)
            self.disk.write(new, 0, content)
        except OSError as error:
            self._later(DiskFailed(error.errno or errno.EIO))
            return

        def name_it(is_done: bool) -> None:
            if not is_done:
                self.handle(DiskFailed(errno.EIO))
                return
            self.disk.rename(new, name)
            self.disk.fsync_directory(self._answer(SegmentCreated()))

        self.disk.fsync(new, self._for_this_run(name_it))

    def _write(self, name: str, offset: int, data: bytes) -> None:
        try:
            self.disk.write(name, offset, data)
        except OSError as error:
            self.handle(DiskFailed(error.errno or errno.EIO))
        else:
            self.handle(WriteDone())

    def _write_mark(self) -> bool:
        """Write the mark to memory that survives the process and is lost with the machine."""
        try:
            self.disk.write(MARK_NAME, 0, encode_mark(self._mark))
        except OSError:
            return False
        if self._randomness.chance(WRITEBACK):
            self.disk.fsync(MARK_NAME, lambda is_done: None)
        return True

    def _answer(self, event: JournalEvent) -> Callable[[bool], None]:
        return self._for_this_run(lambda is_done: self.handle(event if is_done else DiskFailed(errno.EIO)))

    def _later(self, event: JournalEvent) -> None:
        self.world.after(1, self._for_this_run(lambda: self.handle(event)))

    def _for_this_run(self, action: Callable[..., None]) -> Callable[..., None]:
        """Does nothing once the process has ended."""
        incarnation = self.incarnation

        def act(*arguments: object) -> None:
            if self.is_up and self.incarnation == incarnation:
                action(*arguments)

        return act
