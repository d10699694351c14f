"""A message router's core on a real journal: acknowledgements, recovery, and what a queued message takes in memory.

Publisher, router and consumer are in one thread here, without a network. The files are in a directory of their own
below the current one, so that a real disk is measured; they are removed afterwards.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.assured import EndpointConfig, MessageRouter, RouterConfig, Want
from penstock.assured.events import (
    Answer,
    Append,
    Data,
    Event,
    FlowOpened,
    LinkOpened,
    OpenFlow,
    OpenPublisher,
    PublisherOpened,
    Replay,
    SendData,
    Start,
    Stored,
)
from penstock.assured.frames import Deliver, Published, decode_frames, encode_publish, encode_settle
from penstock.base.clock import SystemRandomness
from penstock.bench.harness import Result, result
from penstock.journal import JournalReader, JournalWriter

IN_FLIGHT = 256
PAYLOAD_SIZE = 100
ROUND_SECONDS = 1.0
ROUNDS = 7
LIVE = 1_000_000
LIVE_AT_ONCE = 4_096
TOPIC = b"orders.eu.new"
ENDPOINT = EndpointConfig(name="orders", wants=(Want(topics=("orders.>",)),), messages_max=2 * LIVE)
CONFIG = RouterConfig(name="bench", endpoints=(ENDPOINT,))
CONDITIONS = f"{PAYLOAD_SIZE}-byte payloads, publisher, router and consumer in one Python thread, no network"
PUBLISHED = Published(TOPIC, os.urandom(PAYLOAD_SIZE))


class _Router:
    """A core with its journal, a publisher and, if wanted, a consumer that settles what it gets."""

    def __init__(self, path: Path, *, has_consumer: bool) -> None:
        self.core = MessageRouter(CONFIG, SystemRandomness())
        self._journal = JournalWriter.open(path)
        self._number = 1
        self._flow = 0
        self._publisher = 0
        self.tell(Start(self._journal.next_sequence, time.time_ns()))
        self.commit()
        self.tell(LinkOpened(1, "bench"))
        self.tell(OpenPublisher(1, 1, 7))
        if has_consumer:
            self.tell(OpenFlow(1, 2, ENDPOINT.name, 2**60))

    def close(self) -> None:
        self._journal.close()

    def tell(self, event: Event) -> None:
        settled = b""
        for instruction in self.core.handle(event, time.monotonic_ns()):
            match instruction:
                case Append(data, offsets, sizes, timestamps_ns):
                    self._journal.append_packed(data, offsets, sizes, timestamps_ns)
                case SendData(_, frames) if self._flow:
                    settled += self._settle(frames)
                case Answer(_, _, PublisherOpened(handle)):
                    self._publisher = handle
                case Answer(_, _, FlowOpened(handle)):
                    self._flow = handle
        if settled:
            self.tell(Data(1, settled))

    def _settle(self, frames: bytes) -> bytes:
        if frames[4] != 3:  # acknowledgements
            return b""
        runs = [
            (frame.messages[0].id, frame.messages[-1].id, 1)
            for frame in decode_frames(frames)
            if isinstance(frame, Deliver)
        ]
        return encode_settle(self._flow, runs)

    def commit(self) -> None:
        self.tell(Stored(self._journal.commit()))

    def publish(self, count: int) -> None:
        self.tell(Data(1, encode_publish(self._publisher, self._number, [PUBLISHED] * count)))
        self._number += count
        self.commit()


def run() -> Iterator[Result]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=".") as folder:
        yield from _rate(Path(folder))
        yield from _recovery(Path(folder))


def _rate(folder: Path) -> Iterator[Result]:
    router = _Router(folder / "rate", has_consumer=True)
    bare_fd = os.open(folder / "bare", os.O_RDWR | os.O_CREAT, 0o600)
    record = os.urandom(IN_FLIGHT * (PAYLOAD_SIZE + 128))
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(_per_second(lambda: router.publish(IN_FLIGHT)) * IN_FLIGHT)
        theirs.append(_per_second(lambda: _write(bare_fd, record)) * IN_FLIGHT)
    os.close(bare_fd)
    assert router.core.tables.message_count == 0
    router.close()
    yield result(
        "assured",
        "core_acks_per_s_256",
        statistics.median(ours),
        "messages/s",
        against="about the same bytes by bare write and fdatasync",
        against_value=statistics.median(theirs),
        conditions=f"{CONDITIONS}; {IN_FLIGHT} in flight, each on the disk, delivered and settled; median of {ROUNDS}",
    )


def _write(fd: int, data: bytes) -> None:
    os.write(fd, data)
    os.fdatasync(fd)


def _per_second(call: Callable[[], None]) -> float:
    started, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < ROUND_SECONDS / 2:
        call()
        count += 1
    return count / elapsed


def _recovery(folder: Path) -> Iterator[Result]:
    router = _Router(folder / "live", has_consumer=False)
    while router.core.tables.message_count < LIVE:
        router.publish(LIVE_AT_ONCE)
    count, memory = router.core.tables.message_count, router.core.tables.memory_bytes
    router.close()
    del router
    core = MessageRouter(CONFIG, SystemRandomness())
    started = time.perf_counter()
    with JournalReader.open(folder / "live") as reader:
        while len(batch := reader.read_batch()):
            core.handle(Replay(batch.data, batch.rows), 0)
        core.handle(Start(reader.next_sequence, time.time_ns()), 0)
    seconds = time.perf_counter() - started
    assert core.tables.message_count == count
    yield result(
        "assured",
        "recovery_s_per_million",
        seconds * 1e6 / count,
        "s",
        against="5 s",
        against_value=5.0,
        conditions=f"{CONDITIONS}; {count} live messages read from the journal (in the page cache) and queued again",
    )
    yield result(
        "assured",
        "bytes_per_queued_message",
        memory / count,
        "bytes",
        against="200 bytes",
        against_value=200.0,
        conditions=f"{count} messages in one endpoint: tables and index, without the bounded cache of contents",
    )
