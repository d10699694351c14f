"""The storage of a root or standby: its streams, the term, and a journal per stream, in which record n is the packet
with sequence number n.

    directory/
        tree.json                the tree's name, the term, the streams with their numbers
        publishers.json          the positions of publishers at some time; later positions are read from the journals
        tail                     the newest packets (tail.py)
        streams/3-orders/        a journal

A store belongs to one thread at a time, except for read(), find_time() and pass_damaged(), which any thread may call.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy
from numpy.typing import NDArray

from penstock.base.counters import Counters
from penstock.base.errors import (
    ConfigurationError,
    JournalCorruptError,
    JournalError,
    JournalFailedError,
    JournalGoneError,
)
from penstock.base.files import make_directory
from penstock.base.log import logger
from penstock.journal import JournalConfig, JournalReader, JournalWriter, RecordBatch
from penstock.journal.config import FollowConfig
from penstock.journal.live.truncation import cut
from penstock.net.secret import replace_private
from penstock.tree.config import StreamConfig
from penstock.tree.core.control import StreamInfo
from penstock.tree.core.events import Recovered
from penstock.tree.core.kernel._tail import TailMemory
from penstock.tree.core.root.publisher_positions import PublisherPositions
from penstock.tree.live.register import Publishers, Register, read_document
from penstock.tree.live.tail import Tail
from penstock.wire import Packet

TAIL_HALF_SIZE = 16 * 1024 * 1024
CHUNK_SIZE = 256 * 1024

log = logger("tree.persistence")


class Portion(msgspec.Struct, frozen=True):
    """A piece of a stream's past: whole packets, one after another."""

    packets: bytes
    after: int
    """The sequence number before the first packet."""
    through: int
    """The sequence number of the last packet; `after` if there is none."""


class StreamStore:
    """Made by open(), which recovers the disk: packets that a crash left in the tail are moved to the journals."""

    def __init__(
        self,
        directory: Path,
        tree: str,
        streams: Iterable[StreamConfig],
        config: JournalConfig,
        counters: Counters,
    ) -> None:
        self.term = 0
        self.is_root = False
        """True if this node was the root of the tree."""
        self.publishers = PublisherPositions()
        """The positions of publishers when the store was opened."""
        self._directory = directory
        self._tree = tree
        self._retention = {each.name: each for each in streams}
        self._config = config
        self._counters = counters
        self._streams: dict[int, StreamInfo] = {}
        self._journals: dict[int, JournalWriter] = {}
        self._readers: dict[int, JournalReader] = {}
        self._locks: dict[int, threading.Lock] = {}
        """By stream: the lock to read or replace its journal."""
        self._tail: Tail | None = None
        self._settled: dict[int, int] = {}
        """By stream: the last sequence number that must be on the disk before the unused half of the tail is
        overwritten."""

    @classmethod
    def open(
        cls,
        directory: Path,
        tree: str,
        streams: Iterable[StreamConfig],
        config: JournalConfig,
        counters: Counters,
        *,
        tail_half_size: int = TAIL_HALF_SIZE,
    ) -> "StreamStore":
        """JournalLockedError when another process has it."""
        store = cls(directory, tree, streams, config, counters)
        try:
            make_directory(directory)
            store._read_register()
            for number in store._streams:
                store._open_journal(number)
            store._tail = Tail(directory / "tail", tail_half_size, store._settle)
            store._take_tail()
            store._find_publishers()
        except OSError as error:
            store.close()
            raise JournalError(f"cannot be opened: {error.strerror}", where=str(directory)) from None
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Write everything to the disk and release it; a JournalError names what failed."""
        try:
            while self._journals:
                self._journals.popitem()[1].close()
        finally:
            for number, lock in self._locks.items():
                with lock:
                    self._close_reader(number)
            if self._tail is not None:
                self._tail.close()
                self._tail = None

    # Streams and the term

    def recovered(self) -> tuple[Recovered, ...]:
        return tuple(
            Recovered(info, self._first_sequence(number), self._journals[number].next_sequence - 1)
            for number, info in sorted(self._streams.items())
        )

    def define(self, info: StreamInfo) -> None:
        """Add a stream, or change its topics or its term. The change is on the disk when this returns, because a root
        must never serve in a term that it has left."""
        self._streams[info.number] = info
        self.begin_term(max((term for term, _ in info.begins), default=0))
        if info.number not in self._journals:
            self._open_journal(info.number)

    def begin_term(self, term: int, *, is_root: bool | None = None) -> None:
        """`is_root`: True if this node is the root in this term; None: as before."""
        self.term = max(self.term, term)
        self.is_root = self.is_root if is_root is None else is_root
        register = Register(self._tree, self.term, list(self._streams.values()), self.is_root)
        replace_private(self._directory / "tree.json", msgspec.json.encode(register))

    # Packets

    @property
    def append_size_max(self) -> int:
        """Maximum number of bytes that can be appended at once."""
        assert self._tail is not None
        return self._tail.size_max

    @property
    def tail(self) -> TailMemory:
        """A buffer for packets that compiled code prepares before the append."""
        assert self._tail is not None
        return self._tail.memory

    def next_sequence(self, number: int) -> int:
        return self._journals[number].next_sequence

    def append(
        self,
        number: int,
        packets: bytes,
        offsets: NDArray[numpy.uint32],
        sizes: NDArray[numpy.uint32],
        timestamp_ns: int,
        *,
        first: int,
        is_in_tail: bool = False,
    ) -> None:
        """Append the stream's next packets, from sequence number `first` on, contiguous in memory; the tail may have
        them already. They survive this process from now on. If packets before `first` are missing at a standby, no node
        retains them: the journal then begins with `first`. A root retains all packets that it has numbered: a hole is a
        JournalFailedError, and its records are kept.

        JournalFullError while the disk is full: no packet was appended.
        """
        assert self._tail is not None
        if self._journals[number].next_sequence < first:
            if self.is_root:
                name, expected = self._streams[number].name, self._journals[number].next_sequence
                raise JournalFailedError(f"{expected} of {name} is missing before {first}", where=str(self._directory))
            self.cut(number, 0, first_sequence=first)
        begin, end = int(offsets[0]), int(offsets[-1]) + int(sizes[-1])
        if not is_in_tail:
            self._tail.make_room(end - begin)  # may find the disk full: before the journal has accepted a packet
        stamps_ns = numpy.empty(len(sizes), numpy.int64)
        stamps_ns.fill(timestamp_ns)
        self._journals[number].append_packed(packets, offsets, sizes, stamps_ns)
        if not is_in_tail:
            self._tail.write(memoryview(packets)[begin:end])

    def cut(self, number: int, after: int, *, first_sequence: int = 1) -> None:
        """Remove records after this sequence number, because they are not part of the stream."""
        journal = self._journals[number]
        if after >= journal.next_sequence - 1:
            return
        log.warning("stream_cut", stream=self._streams[number].name, after=after, last=journal.next_sequence - 1)
        with self._locks[number]:
            journal.close()
            self._close_reader(number)
            cut(self._path(number), after)
            self._open_journal(number, first_sequence)

    def commit(self) -> None:
        for journal in self._journals.values():
            journal.commit()

    def _settle(self) -> None:
        """The packets of the other half of the tail are on the disk: it becomes the half in use."""
        for number, through in self._settled.items():
            journal = self._journals[number]
            journal.commit(min(through, journal.next_sequence - 1))  # less, if the journal was truncated
        self._settled = {number: journal.next_sequence - 1 for number, journal in self._journals.items()}

    def when_durable(self, number: int, sequence: int, call: Callable[[Exception | None], None]) -> None:
        """Call `call` in another thread: when the packet is on the disk, or with the error."""
        self._journals[number].when_durable(sequence).add_done_callback(lambda answer: call(answer_error(answer)))

    def read(self, number: int, after: int, bytes_max: int) -> Portion:
        """The retained packets after a sequence number; at least one, if there is one. JournalFullError if all of them
        wait for space on the disk, JournalCorruptError if the next one is damaged."""
        with self._reading(number) as reader:
            portion = _read(reader, after, bytes_max)
            if not portion.packets and after < self._journals[number].next_sequence - 1:
                self._journals[number].commit()  # it is being written
                portion = _read(reader, after, bytes_max)
            return portion

    def find_time(self, number: int, time_ns: int) -> int:
        """The sequence number before the first packet that is not older than this time."""
        with self._reading(number) as reader:
            self._journals[number].commit()
            reader.seek_time(time_ns)
            batch = reader.read_batch(1)
            return int(batch.rows[0]["sequence"]) - 1 if len(batch) else reader.find_end() - 1

    def pass_damaged(self, number: int, after: int) -> int:
        """The sequence number after which reading can continue if the next packet is damaged."""
        with self._reading(number) as reader:
            return reader.next_segment(after + 1, self._journals[number].durable_sequence + 1) - 1

    # Publishers

    def note_publishers(self, marks: PublisherPositions) -> None:
        """Store the publishers' positions, whose messages have all been appended, so that the next start need not read
        all streams."""
        through = {number: journal.next_sequence - 1 for number, journal in self._journals.items()}
        beyond = {key: sorted(each) for key, each in marks.beyond.items()}
        known = Publishers(through, dict(marks.through), beyond, dict(marks.bearers))
        replace_private(self._directory / "publishers.json", msgspec.json.encode(known))

    def _find_publishers(self) -> None:
        path = self._directory / "publishers.json"
        known = read_document(path, Publishers) if path.exists() else Publishers({}, {})
        found = PublisherPositions(known.numbers, known.bearers)
        for publisher, numbers in known.beyond.items():
            found.note_numbers(publisher, numbers)
        self.commit()
        for number in self._streams:
            after = known.through.get(number, 0)
            while (portion := self.read(number, after, CHUNK_SIZE)).packets:
                found.note(portion.packets)
                after = portion.through
        self.publishers = found

    # After a crash

    def _take_tail(self) -> None:
        assert self._tail is not None
        left = sorted(
            ((each.group, each.sequence, bytes(each.data)) for each in self._tail.packets() if self._is_of_now(each)),
            key=lambda each: each[:2],
        )
        taken = 0
        for number, sequence, data in left:
            journal = self._journals.get(number)
            if journal is not None and journal.next_sequence == sequence:
                journal.append(data)
                taken += 1
        if taken:
            log.warning("tail_taken", packets=taken)
            self.commit()
        self._tail.forget_others()

    def _is_of_now(self, packet: Packet) -> bool:
        """False if the packet's term ended before it: such packets were removed, and others have their sequence
        numbers."""
        info = self._streams.get(packet.group)
        begun = [] if info is None else [term for term, after in info.begins if after < packet.sequence]
        return not begun or packet.epoch == begun[-1]

    # Files

    def _path(self, number: int) -> Path:
        return self._directory / "streams" / f"{number}-{self._streams[number].name}"

    def _read_register(self) -> None:
        path = self._directory / "tree.json"
        if not path.exists():
            return
        register = read_document(path, Register)
        if register.tree != self._tree:
            raise ConfigurationError(f"belongs to tree {register.tree!r}, not {self._tree!r}", where=str(path))
        self.term, self.is_root = register.term, register.is_root
        self._streams = {each.number: each for each in register.streams}

    def _open_journal(self, number: int, first_sequence: int = 1) -> None:
        retention = self._retention.get(self._streams[number].name, StreamConfig(name="other", topics=(">",)))
        config = msgspec.structs.replace(
            self._config, retention_seconds=retention.retain_s, retention_bytes=retention.retain_bytes
        )
        self._locks.setdefault(number, threading.Lock())
        self._journals[number] = JournalWriter.open(
            self._path(number), config, counters=self._counters, first=first_sequence
        )

    def _first_sequence(self, number: int) -> int:
        with self._reading(number) as reader:
            first = reader.first_sequence
        return max(first, 1) if self._journals[number].next_sequence > 1 else 1

    @contextmanager
    def _reading(self, number: int) -> Iterator[JournalReader]:
        with self._locks[number]:
            reader = self._readers.get(number)
            if reader is None:
                reader = JournalReader.open(self._path(number), FollowConfig(chunk_bytes=CHUNK_SIZE))
                self._readers[number] = reader
            yield reader

    def _close_reader(self, number: int) -> None:
        found = self._readers.pop(number, None)
        if found is not None:
            found.close()


def answer_error(answer: "Future[int]") -> Exception | None:
    error = answer.exception()
    return error if isinstance(error, Exception) else None


def _read(reader: JournalReader, after: int, bytes_max: int) -> Portion:
    try:
        reader.seek(after + 1)
    except JournalGoneError as gone:
        reader.seek(gone.first_sequence)
    after = max(after, reader.next_sequence - 1)
    parts: list[bytes] = []
    size, through = 0, after
    while size < bytes_max:
        try:
            batch = reader.read_batch()
        except JournalCorruptError:
            if parts:
                break  # records before the damage are valid
            raise
        if not len(batch):
            break
        rows = batch.rows
        ends = numpy.cumsum(rows["size"].astype(numpy.int64)) + size
        count = max(int(numpy.searchsorted(ends, bytes_max, side="right")), 0 if parts else 1)
        if count == 0:
            break
        parts.append(_joined(batch, count))
        size, through = int(ends[count - 1]), int(rows[count - 1]["sequence"])
        if count < len(rows):
            break
    return Portion(b"".join(parts), after, through)


def _joined(batch: RecordBatch, count: int) -> bytes:
    data = batch.data
    places = zip(batch.rows["offset"][:count].tolist(), batch.rows["size"][:count].tolist(), strict=True)
    return b"".join([data[offset : offset + size] for offset, size in places])
