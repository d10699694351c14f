"""The journal with real processes and disks: kill -9, a full disk, two writers, followers."""

import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from integration.journal_writer import payload_of
from penstock.base.errors import JournalGoneError, JournalLockedError
from penstock.journal import JournalConfig, JournalReader, JournalWriter, Record
from penstock.journal.live.files import Directory
from penstock.journal.live.verify import inspect
from waiting import wait_until

WRITER = Path(__file__).with_name("journal_writer.py")
ENDLESS = 10**9
PATIENCE_SECONDS = 120


def start_writer(path: Path, seed: int, records_max: int = ENDLESS) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(WRITER), str(path), str(seed), str(records_max)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def journal_path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def kill(process: "subprocess.Popen[str]") -> str:
    """Kill the process with kill -9; return its output."""
    process.send_signal(signal.SIGKILL)
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert errors == ""
    return output


def test_what_was_acknowledged_survives_kill_9(journal_path: Path) -> None:
    choice = random.Random(20)
    records = alone = 0
    for round_ in range(12):
        process = start_writer(journal_path, round_)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("open")
        said = [process.stdout.readline() for _ in range(choice.randrange(1, 120))]  # then kill it at any point
        said += kill(process).splitlines(keepends=True)
        words = [line.split() for line in said if line.endswith("\n")]
        check_all(journal_path, max((int(each[0]) for each in words if len(each) == 1), default=records))
        with JournalWriter.open(journal_path) as journal:
            assert journal.durable_sequence >= int(words[-1][-1])
        records = check_all(journal_path, journal.durable_sequence)  # with the last inline records
        alone += sum(len(each) > 1 for each in words)
    assert records > 500
    assert alone > 100


def check_all(path: Path, acknowledged: int) -> int:
    """Check that every appended record is present, from 1 on. Return their number."""
    count = 0
    with JournalReader.open(path) as reader:
        for count, record in enumerate(reader.read(), start=1):
            assert record == Record(count, count * 1_000, payload_of(count))
    assert count >= acknowledged
    return count


def test_a_second_writer_is_refused_while_the_first_lives(journal_path: Path) -> None:
    process = start_writer(journal_path, 1)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(JournalLockedError):
            JournalWriter.open(journal_path)
    finally:
        kill(process)
    JournalWriter.open(journal_path).close()


def test_a_reader_follows_a_writer_in_another_process(journal_path: Path) -> None:
    process = start_writer(journal_path, 3, records_max=3_000)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        deadline = time.monotonic() + PATIENCE_SECONDS
        with JournalReader.open(journal_path) as reader:
            records = reader.follow(from_sequence=1, is_over=lambda: time.monotonic() > deadline)
            for expected, record in zip(range(1, 3_001), records, strict=False):
                assert record == Record(expected, expected * 1_000, payload_of(expected))
            assert expected == 3_000
            _, errors = process.communicate(timeout=PATIENCE_SECONDS)
            assert process.returncode == 0, errors
    finally:
        process.kill()
        process.wait()


def test_a_follower_sees_the_last_record_without_another_one_coming(journal_path: Path) -> None:
    with JournalWriter.open(journal_path) as journal, JournalReader.open(journal_path) as reader:
        deadline = time.monotonic() + PATIENCE_SECONDS
        records = reader.follow(is_over=lambda: time.monotonic() > deadline)
        for number in range(1, 20):
            journal.append(b"x" * number)  # without a commit() call, the writer's own thread commits
            assert next(records)[0] == number


def test_a_follower_that_falls_behind_retention_is_told_where_to_go_on(journal_path: Path) -> None:
    config = JournalConfig(segment_bytes=4_096, retention_bytes=16_384, preallocate_bytes=0)
    with JournalWriter.open(journal_path, config) as journal, JournalReader.open(journal_path) as reader:
        journal.append(b"first")
        journal.commit()
        records = reader.follow(from_sequence=1)
        assert next(records).payload == b"first"
        for _ in range(200):
            journal.append(bytes(500))
            journal.commit()
        wait_until(lambda: len(list(journal_path.glob("*.journal"))) <= 8)
        with pytest.raises(JournalGoneError) as caught:
            list(zip(range(500), records, strict=False))
        reader.seek(caught.value.first_sequence)
        assert next(reader.read()).sequence == caught.value.first_sequence > 1


FULL_DISK = """
import os, sys, time
from pathlib import Path
from penstock.base.errors import JournalFullError
from penstock.journal import JournalConfig, JournalReader, JournalWriter

path = Path(sys.argv[1]) / "journal"
filler = Path(sys.argv[1]) / "filler"
with JournalWriter.open(path, JournalConfig(segment_bytes=65_536, retry_ms=10)) as journal:
    filler.write_bytes(bytes(600_000))
    payload = os.urandom(5_000)
    try:
        while True:
            journal.append(payload)
            last = journal.commit()
    except JournalFullError as error:
        print("full:", error.code, flush=True)
    waiting = journal.next_sequence - 1
    assert journal.durable_sequence == last < waiting
    with JournalReader.open(path) as reader:
        assert [each.sequence for each in reader.read()] == list(range(1, last + 1))
    try:
        journal.append(b"more")
        raise AssertionError("an append was taken by a full journal")
    except JournalFullError:
        pass
    filler.unlink()
    deadline = time.monotonic() + 60
    while journal.durable_sequence < waiting and time.monotonic() < deadline:
        time.sleep(0.01)
    assert journal.durable_sequence == waiting
    assert journal.append(b"goes on") == waiting + 1
with JournalReader.open(path) as reader:
    records = list(reader.read())
    assert [each.sequence for each in records] == list(range(1, waiting + 2))
    assert records[-1].payload == b"goes on"
print("recovered", flush=True)
"""


def test_a_full_disk_is_reported_and_the_journal_goes_on_when_there_is_room(tmp_path: Path) -> None:
    """Run on a file system of one megabyte, in a mount namespace of its own."""
    unshare = shutil.which("unshare")
    mount = f"mount -t tmpfs -o size=1m tmpfs {tmp_path}"
    if unshare is None or subprocess.run([unshare, "-m", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("mounting a small file system is not permitted here")
    command = [unshare, "-m", "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, "-c", FULL_DISK, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "full: journal-full\nrecovered\n"


LIMITED = """
import resource, sys
from penstock.base.errors import JournalFullError
from penstock.journal import JournalConfig, JournalReader, JournalWriter

resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
journal = JournalWriter.open(sys.argv[1], JournalConfig(preallocate_bytes=0, retry_ms=10_000))
try:
    while True:
        journal.append(bytes(1_500))
        last = journal.commit()
except JournalFullError:
    pass
try:
    journal.close()
except JournalFullError:
    print(last)
"""


def test_closing_a_journal_that_cannot_be_written_says_so_and_keeps_what_was_acknowledged(journal_path: Path) -> None:
    """The limit on a file's size cuts a write in the middle, as a full disk may."""
    result = subprocess.run(
        [sys.executable, "-c", LIMITED, str(journal_path)], capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert result.returncode == 0, result.stderr
    last = int(result.stdout)
    with JournalReader.open(journal_path) as reader:
        assert [each.sequence for each in reader.read()] == list(range(1, last + 1))
    with JournalWriter.open(journal_path) as journal:
        assert journal.next_sequence == last + 1
        journal.append(b"and on")
    assert [each.problem for each in inspect(Directory(journal_path))] == [""]


def test_many_threads_share_one_writer(journal_path: Path) -> None:
    per_thread, threads = 300, 6
    numbers: list[list[int]] = [[] for _ in range(threads)]

    def work(index: int) -> None:
        for count in range(per_thread):
            sequence = journal.append(f"{index}/{count}".encode())
            if count % 7 == 0:
                assert journal.commit(sequence) >= sequence
            numbers[index].append(sequence)

    with JournalWriter.open(journal_path, JournalConfig(gather_bytes_max=4_096)) as journal:
        workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(PATIENCE_SECONDS)
    with JournalReader.open(journal_path) as reader:
        records = {record.sequence: record.payload for record in reader.read()}
    assert len(records) == per_thread * threads
    for index, sequences in enumerate(numbers):
        assert [records[each] for each in sequences] == [f"{index}/{count}".encode() for count in range(per_thread)]
