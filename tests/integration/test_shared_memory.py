"""Shared memory between real processes, which are killed at any moment."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from integration.shm_child import PAYLOAD_SIZE, is_whole, payload_of
from penstock.base.errors import HandoverError, OverrunError, ProducerGoneError, RecordUnavailableError
from penstock.base.segment import Lifeline
from penstock.net.live.handover import Handover, receive_segment
from penstock.shm import RegionReader, RingReader, RingWriter
from waiting import wait_until

CHILD = Path(__file__).with_name("shm_child.py")
PATIENCE_SECONDS = 120
READERS = 3
READS, READS_SOAK = 100_000, 10_000_000
ROUNDS_MAX = 50
KILLS, KILLS_SOAK = 4, 200


@contextmanager
def child(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process in a role of shm_child.py, gone at the end."""
    process = subprocess.Popen(
        [sys.executable, str(CHILD), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == "ready\n", process.communicate()[1] if process.poll() is not None else line


def said(process: subprocess.Popen[str]) -> dict[str, int]:
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors
    answer: dict[str, int] = json.loads(output)
    return answer


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "private" / "handover")


def hunt(path: str, reads: int) -> None:
    with child("write_region", path) as writer:
        ready(writer)
        with ExitStack() as stack:
            readers = [stack.enter_context(child("read_region", path, str(reads))) for _ in range(READERS)]
            answers = [said(reader) for reader in readers]
    for answer in answers:
        assert answer["torn"] == answer["backwards"] == answer["unavailable"] == 0
        assert answer["last"] > 0


@pytest.mark.spec("ADPT-1", "ADPT-4")
def test_no_reader_ever_gets_a_torn_record(path: str) -> None:
    hunt(path, READS)


@pytest.mark.soak
@pytest.mark.spec("ADPT-4")
def test_no_reader_ever_gets_a_torn_record_for_long(path: str) -> None:
    hunt(path, READS_SOAK)


def hunt_partly(path: str, reads: int) -> None:
    with child("write_partly", path) as writer:
        ready(writer)
        with ExitStack() as stack:
            readers = [stack.enter_context(child("read_partly", path, str(reads))) for _ in range(READERS)]
            answers = [said(reader) for reader in readers]
    for answer in answers:
        assert answer["torn"] == answer["mixed"] == 0
        assert answer["last"] > 0


@pytest.mark.spec("ADPT-1", "ADPT-4")
def test_a_side_is_always_read_with_the_common_part_it_was_written_with(path: str) -> None:
    hunt_partly(path, READS)


@pytest.mark.soak
@pytest.mark.spec("ADPT-4")
def test_a_side_is_always_read_with_the_common_part_it_was_written_with_for_long(path: str) -> None:
    hunt_partly(path, READS_SOAK)


@pytest.mark.spec("ADPT-4")
def test_a_reader_does_not_wait_for_a_writer_that_died_inside_a_write(path: str) -> None:
    for _ in range(ROUNDS_MAX):
        with child("die_inside", path) as writer:
            ready(writer)
            with receive_segment(path, "region") as segment, RegionReader(segment) as reader:
                writer.kill()
                writer.wait()
                first = reader.read(0, timeout_ns=None)  # a complete record is read as usual
                assert first is not None
                assert first.update_count == 1
                try:
                    reader.read(1, timeout_ns=None)
                except ProducerGoneError:
                    return
    pytest.fail("no writer was killed inside a write")


@pytest.mark.spec("CRIT-1", "CRIT-2")
def test_a_writer_killed_at_any_moment_leaves_whole_events(path: str, soak: bool) -> None:
    source = random.Random(5)
    for _ in range(KILLS_SOAK if soak else KILLS):
        with child("write_ring", path) as writer:
            ready(writer)
            with receive_segment(path, "ring") as segment, RingReader(segment, wait="block") as reader:
                last = read_until_gone(reader, writer, source.randrange(1, 50_000))
                assert reader.next_sequence == last + 1


def read_until_gone(reader: RingReader, writer: subprocess.Popen[str], wanted: int) -> int:
    """Check every event, kill the writer after `wanted` of them, and return the number of the last one."""
    rows, last = np.zeros((4_096, PAYLOAD_SIZE), np.uint8), 0
    while True:
        try:
            count = reader.read_batch(rows)
        except ProducerGoneError:
            return last
        assert (rows[:count].view("<u8") == np.arange(last + 1, last + count + 1)[:, None]).all()
        last += count
        if last >= wanted:
            writer.kill()


@pytest.mark.spec("CRIT-3")
def test_an_overrun_reader_gets_whole_events_only_and_starts_again(path: str, soak: bool) -> None:
    overruns, events, wanted = 0, 0, 2_000 if soak else 20
    deadline = time.monotonic() + PATIENCE_SECONDS
    with child("overrun_ring", path) as writer:
        ready(writer)
        with receive_segment(path, "ring") as segment, RingReader(segment) as reader:
            while overruns < wanted or events < wanted:
                assert time.monotonic() < deadline, f"{overruns} overruns, {events} events"
                try:
                    payload = reader.read()
                except OverrunError:
                    overruns += reader.restart()
                    continue
                assert payload == payload_of(reader.next_sequence - 1)
                events += 1


@pytest.mark.spec("ADPT-4")
def test_a_record_whose_writer_died_inside_a_write_is_reported_and_repaired(soak: bool) -> None:
    with child("repair_region", str(100 if soak else 3)) as process:
        answer = said(process)
    assert answer["inside"] == (100 if soak else 3)
    assert answer["torn"] == 0


@pytest.mark.spec("CRIT-1")
@pytest.mark.parametrize("wait", ["spin", "block"])
def test_a_reader_killed_inside_a_read_costs_the_producer_nothing(path: str, wait: str) -> None:
    with RingWriter.create(1 << 20, PAYLOAD_SIZE) as ring, Handover(path) as handover:
        handover.offer("ring", ring.segment)
        for _ in range(3):
            with child("read_ring", path, wait) as process:
                ready(process)
                for number in range(100):
                    ring.write(b"%d" % number)
                # the producer's own thread may note it a moment after the consumer has its segment
                wait_until(lambda: [each.pid for each in handover.consumers()] == [process.pid])
                process.kill()
                for number in range(100):
                    ring.write(b"%d" % number)
            wait_until(lambda: handover.consumers() == [])
            ring.restart()
        with receive_segment(path, "ring") as segment, RingReader(segment) as reader:
            ring.write(b"still there")
            assert reader.read() == b"still there"


@pytest.mark.spec("CRIT-5")
@pytest.mark.parametrize("wait", ["spin", "block"])
def test_ctrl_c_ends_a_wait(path: str, wait: str) -> None:
    with RingWriter.create(1 << 20, PAYLOAD_SIZE) as ring, Handover(path) as handover:
        handover.offer("ring", ring.segment)
        with child("read_ring", path, wait) as process:
            ready(process)
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert output == "interrupted\n", errors


@pytest.mark.spec("OPS-2")
def test_nothing_is_left_behind_by_a_killed_producer(path: str) -> None:
    name = f"@penstock-test-left-{os.getpid()}"
    before = set(os.listdir("/dev/shm"))
    for place in (name, path):
        with child("write_region", place) as writer:
            ready(writer)
            with receive_segment(place, "region") as segment, RegionReader(segment) as reader:
                writer.kill()
                assert segment.lifeline is not None
                wait_until(partial(is_gone, segment.lifeline))
                assert is_readable_or_torn(reader)
        with pytest.raises(HandoverError, match="Connection refused"):
            receive_segment(place, "region")
    assert name not in Path("/proc/net/unix").read_text()
    assert [each for each in set(os.listdir("/dev/shm")) - before if "penstock" in each] == []
    with Handover(path):  # the socket's file is all that a dead producer leaves, and its successor removes it
        assert os.listdir(os.path.dirname(path)) == ["handover"]
    assert os.listdir(os.path.dirname(path)) == []


def is_gone(lifeline: Lifeline) -> bool:
    return not lifeline.peer_is_alive()


def is_readable_or_torn(reader: RegionReader) -> bool:
    """The consumer's mapping outlives the producer."""
    try:
        record = reader.read(0)
    except (RecordUnavailableError, ProducerGoneError):
        return True
    return record is not None and is_whole(record.payload)
