"""`penstock capture`: the journal has exactly the published messages."""

from pathlib import Path

from integration.command_kit import completed, kill, running
from penstock.base.errors import JournalError
from penstock.capture import replay
from penstock.journal import JournalReader, JournalWriter
from penstock.middleware import Deliver
from penstock.net.udp import free_channel
from penstock.wire import PacketFlag
from waiting import wait_until


def payloads(path: Path) -> list[bytes]:
    """The delivered payloads in the journal; empty while there is no journal."""
    try:
        with JournalReader.open(path) as journal:
            delivered = [each for _, each in replay(journal.read()) if isinstance(each, Deliver)]
    except JournalError:
        return []
    return [bytes(message.payload) for each in delivered for message in each.messages]


def pub(channel: str, lines: list[bytes], *options: str) -> None:
    done = completed("pub", channel, "--raw", "--topic", "a.b", *options, given=b"\n".join(lines))
    assert done.returncode == 0, done.stderr


def test_everything_published_is_captured(tmp_path: Path) -> None:
    channel = str(free_channel())
    lines = [b"%d" % number if number % 50 else b"%d " % number * 2_000 for number in range(1, 500)]
    with running("capture", channel, "--to", str(tmp_path / "j")) as capture:
        capture.wait_for_output("listening")
        pub(channel, lines, "--rate", "2000")
        capture.wait_for_output("cause=goodbye")
        assert capture.interrupt() == 0, capture.err
        assert "499 messages in" in capture.err
        assert "0 packets lost" in capture.err
    assert payloads(tmp_path / "j") == lines
    with JournalReader.open(tmp_path / "j") as journal:
        story = list(replay(journal.read()))
    times = [timestamp_ns for timestamp_ns, _ in story]
    assert times == sorted(times)
    assert times[0] > 10**18  # by the wall clock
    numbers = [(each.first, each.sequence) for _, each in story if isinstance(each, Deliver)]
    assert numbers == [(number, number) for number in range(1, len(story) + 1)]  # keep-alives too: no hole
    last = story[-1][1]
    assert isinstance(last, Deliver)
    assert last.flags & PacketFlag.GOODBYE


def test_a_second_capture_goes_on_in_the_same_journal(tmp_path: Path) -> None:
    channel = str(free_channel())
    for number in (b"1", b"2"):
        with running("capture", channel, "--to", str(tmp_path / "j")) as capture:
            capture.wait_for_output("listening")
            pub(channel, [number])
            capture.wait_for_output("cause=goodbye")
            assert capture.interrupt() == 0
    assert payloads(tmp_path / "j") == [b"1", b"2"]


def test_a_capture_that_is_killed_leaves_a_good_journal(tmp_path: Path) -> None:
    channel, path = str(free_channel()), tmp_path / "j"
    with (
        running("capture", channel, "--to", str(path)) as capture,
        running("pub", channel, "--raw", "--topic", "a.b", "--rate", "500") as publisher,
    ):
        capture.wait_for_output("listening")
        publisher.write(b"".join(b"%d\n" % number for number in range(5_000)))
        wait_until(lambda: len(payloads(path)) >= 100, "a hundred captured messages")
        before = payloads(path)
        kill(capture.pid)
        capture.end()
        with JournalWriter.open(path):  # it recovers
            after = payloads(path)
        assert len(after) >= len(before) >= 100
        assert after == [b"%d" % number for number in range(len(after))]


def test_a_full_disk_ends_it_and_nothing_is_claimed(tmp_path: Path) -> None:
    channel, path = str(free_channel()), tmp_path / "j"
    limit = ("sh", "-c", 'ulimit -f 64; exec "$@"', "sh")  # files of 32 KiB
    with running("capture", channel, "--to", str(path), prefix=limit) as capture:
        capture.wait_for_output("listening")
        pub(channel, [b"%06d" % number + b"x" * 1_000 for number in range(100)], "--rate", "1000")
        assert capture.end() == 1, capture.err
        assert "error [journal-full]" in capture.err
        assert "Traceback" not in capture.err
        kept = payloads(path)
        assert 0 < len(kept) < 100
        assert kept == [b"%06d" % number + b"x" * 1_000 for number in range(len(kept))]
        assert f"{len(kept)} records of this run are on the disk" in capture.err
