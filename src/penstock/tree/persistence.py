"""What a root keeps: its streams, the term, and of each stream a journal, in which record n is the packet of sequence n.

    directory/
        tree.json                the tree's name, the term, the streams with their numbers
        publishers.json          how far each publisher was at some time; what came after is read from the journals
        tail                     the newest packets (tail.py)
        streams/3-orders/        a journal

A store belongs to one thread at a time, but for read(), which any thread may call.
"""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy
from numpy.typing import NDArray
from typing_extensions import Buffer

from penstock.base.counters import Counters
from penstock.base.errors import JournalError
from penstock.base.log import logger
from penstock.journal import JournalConfig, JournalWriter, Record
from penstock.journal.config import FollowConfig
from penstock.journal.reader import JournalReader
from penstock.tree.config import StreamConfig
from penstock.tree.tail import Tail
from penstock.wire import Packet
from penstock.wire.packet import Extension

TAIL_HALF_SIZE = 16 * 1024 * 1024
HOPS = int(Extension.HOPS)

log = logger("tree.persistence")


class KeptStream(msgspec.Struct, frozen=True):
    number: int
    name: str
    topics: tuple[str, ...]
    retain: str = ""
    retain_bytes: int = 0
    is_removed: bool = False
    """Nothing more is published on it; its number is not given again."""


class _Register(msgspec.Struct, frozen=True):
    tree: str
    term: int
    streams: list[KeptStream]


class PublisherMark(msgspec.Struct, frozen=True, array_like=True):
    """How far a publisher is."""

    publisher: int
    number: int


class _Publishers(msgspec.Struct, frozen=True):
    through: dict[str, int]
    """By stream, the last sequence whose publisher is accounted for."""
    marks: list[PublisherMark]


class Portion(msgspec.Struct, frozen=True):
    """A piece of a stream's past: whole packets, one after another."""

    packets: bytes
    first: int
    last: int
    """Sequences of the first and the last of them; last is first - 1 when there is none."""


class StreamStore:
    """Made by open(); what is on the disk is then whole: what a crash left in the tail is in the journals."""

    def __init__(self, directory: Path, tree: str, config: JournalConfig, counters: Counters) -> None:
        self.streams: dict[int, KeptStream] = {}
        """By number."""
        self.term = 1
        self._directory = directory
        self._tree = tree
        self._config = config
        self._counters = counters
        self._journals: dict[int, JournalWriter] = {}
        self._readers: dict[int, tuple[JournalReader, threading.Lock]] = {}
        self._tail: Tail | None = None
        self._marked_from: dict[int, int] = {}

    @classmethod
    def open(
        cls,
        directory: Path,
        tree: str,
        config: JournalConfig,
        counters: Counters,
        *,
        tail_half_size: int = TAIL_HALF_SIZE,
    ) -> "StreamStore":
        """JournalLockedError when another process has it."""
        store = cls(directory, tree, config, counters)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            store._read_register()
            for number in list(store.streams):
                store._open_journal(number)
            store._tail = Tail(directory / "tail", tail_half_size, store.commit)
            store._take_tail()
        except OSError as error:
            store.close()
            raise JournalError(f"cannot be opened: {error.strerror}", where=str(directory)) from None
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Bring everything to the disk and let go of it; a JournalError says what could not be."""
        try:
            for number in list(self._journals):
                self._journals.pop(number).close()
        finally:
            for reader, _ in self._readers.values():
                reader.close()
            self._readers.clear()
            if self._tail is not None:
                self._tail.close()
                self._tail = None

    # Streams and the term

    def define(self, config: StreamConfig) -> KeptStream:
        """The stream of this name, new or with other topics and another retention than before."""
        known = next((each for each in self.streams.values() if each.name == config.name), None)
        number = known.number if known is not None else 1 + max(self.streams, default=0)
        stream = KeptStream(number, config.name, config.topics, config.retain, config.retain_bytes)
        if stream != known:
            self.streams[number] = stream
            self._write_register()
            if number in self._journals and known is not None and _retention(known) != _retention(stream):
                self._journals.pop(number).close()
            self._open_journal(number)
        return stream

    def adopt(self, stream: KeptStream) -> None:
        """As another root numbered it, whose standby this is."""
        if self.streams.get(stream.number) != stream:
            self.streams[stream.number] = stream
            self._write_register()
            self._open_journal(stream.number)

    def remove(self, number: int) -> None:
        self.streams[number] = msgspec.structs.replace(self.streams[number], is_removed=True)
        self._write_register()

    def begin_term(self, term: int) -> None:
        """It is on the disk when this returns: a root must never serve in a term that it has left."""
        self.term = term
        self._write_register()

    # Packets

    def next_sequence(self, number: int) -> int:
        return self._journals[number].next_sequence

    def durable_sequence(self, number: int) -> int:
        return self._journals[number].durable_sequence

    def first_sequence(self, number: int) -> int:
        """Of the oldest packet that is kept."""
        return self._reader(number)[0].first_sequence

    def append(
        self,
        number: int,
        data: Buffer,
        offsets: NDArray[numpy.uint32],
        sizes: NDArray[numpy.uint32],
        timestamp_ns: int,
    ) -> None:
        """The stream's next packets, which lie one behind the other in `data`. They outlive this process from now on.

        JournalFullError while the disk is full: none of them was taken.
        """
        journal = self._journals[number]
        assert self._tail is not None
        stamps_ns = numpy.full(len(offsets), timestamp_ns, numpy.int64)
        journal.append_packed(data, offsets, sizes, stamps_ns)
        with memoryview(data) as view:
            begin, end = int(offsets[0]), int(offsets[-1]) + int(sizes[-1])
            self._tail.write(view[begin:end])

    def commit(self) -> None:
        for journal in self._journals.values():
            journal.commit()

    def when_durable(self, number: int, sequence: int, call: Callable[[JournalError | None], None]) -> None:
        """`call` is made in another thread: when the packet is on the disk, or with the reason why it is not."""

        def done(future: object) -> None:
            call(error if isinstance(error := answer.exception(), JournalError) else None)

        answer = self._journals[number].when_durable(sequence)
        answer.add_done_callback(done)

    def read(self, number: int, after: int, bytes_max: int) -> Portion:
        """The next packets after a sequence, as far as they are on the disk; at least one if there is one.

        JournalGoneError when they are no longer kept; its `first_sequence` says from where they are.
        """
        reader, lock = self._reader(number)
        with lock:
            reader.seek(after + 1)
            return _portion(after, reader, bytes_max)

    def find_time(self, number: int, time_ns: int) -> int:
        """The sequence after which packets are not older than this."""
        reader, lock = self._reader(number)
        with lock:
            reader.seek_time(time_ns)
            batch = reader.read_batch(1)
            return int(batch.rows[0]["sequence"]) - 1 if len(batch) else self._journals[number].durable_sequence

    def newest(self, number: int, count_max: int) -> Iterator[Record]:
        """Its last packets, for whoever begins."""
        journal = self._journals[number]
        reader, lock = self._reader(number)
        with lock:
            first = max(reader.first_sequence, journal.durable_sequence - count_max + 1, 1)
            yield from reader.read(from_sequence=first)

    # Publishers

    def publishers(self, origin: Callable[[Packet], PublisherMark | None]) -> dict[int, int]:
        """How far each publisher was, by its id; `origin` says whose message a packet is."""
        raise NotImplementedError

    def _reader(self, number: int) -> tuple[JournalReader, threading.Lock]:
        found = self._readers.get(number)
        if found is None:
            reader = JournalReader.open(self._path(number), FollowConfig(chunk_bytes=256 * 1024))
            found = self._readers.setdefault(number, (reader, threading.Lock()))
        return found

    # Files

    def _path(self, number: int) -> Path:
        return self._directory / "streams" / f"{number}-{self.streams[number].name}"
