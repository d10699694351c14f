"""The delayed stream of an adapter: its messages go into the journal and are published after exactly the delay."""

import errno
import threading
from pathlib import Path

import pytest

from penstock.base.clock import NS_PER_SECOND
from penstock.base.counters import Counters
from penstock.feed.core.service.published import Unpacker
from penstock.feed.live._tap import Tap
from penstock.feed.live.delayed_stream import DelayedReader
from penstock.feed.live.recorder import Recorder
from penstock.journal import JournalConfig, JournalReader, JournalWriter
from penstock.journal.live.files import WritableDirectory
from penstock.wire import Kind, PacketStore, decode
from unit.service_kit import START_NS, PublishedStream

DELAY_S = 900


def topics_of(history: DelayedReader, now_ns: int) -> list[str]:
    found = []
    for batch in history.take(now_ns):
        for row in batch.rows:
            start = int(row["topic_offset"])
            found.append(bytes(batch.data[start : start + int(row["topic_size"])]).decode())
    return found


@pytest.mark.spec("ADM-2")
def test_each_message_is_published_when_it_is_old_enough_and_not_earlier(tmp_path: Path) -> None:
    stream = PublishedStream()
    with JournalWriter.open(tmp_path) as journal:
        for second in range(5):
            journal.append(stream.packet(f"t.{second}"), START_NS + second * NS_PER_SECOND)
        journal.commit()
        now_ns = START_NS + DELAY_S * NS_PER_SECOND
        history = DelayedReader.open(tmp_path, DELAY_S, START_NS, now_ns - 1)
        assert topics_of(history, now_ns - 1) == []
        assert history.wait_ns(now_ns - 1) == 1
        assert topics_of(history, now_ns) == ["t.0"]
        assert history.wait_ns(now_ns) == NS_PER_SECOND
        assert topics_of(history, now_ns + NS_PER_SECOND - 1) == []
        assert topics_of(history, now_ns + 3 * NS_PER_SECOND) == ["t.1", "t.2", "t.3"]
        journal.append(stream.packet("t.5"), START_NS + 5 * NS_PER_SECOND)  # and then it follows
        journal.commit()
        assert topics_of(history, now_ns + 9 * NS_PER_SECOND) == ["t.4"]
        assert topics_of(history, now_ns + 9 * NS_PER_SECOND) == ["t.5"]
        history.close()


def test_a_delayed_stream_begins_with_the_next_message_to_reach_the_delay(tmp_path: Path) -> None:
    stream = PublishedStream()
    now_ns = START_NS + (DELAY_S + 2) * NS_PER_SECOND
    with JournalWriter.open(tmp_path) as journal:
        for second in range(5):
            journal.append(stream.packet(f"t.{second}"), START_NS + second * NS_PER_SECOND)
        journal.commit()
        history = DelayedReader.open(tmp_path, DELAY_S, 0, now_ns)
        assert topics_of(history, now_ns) == ["t.2"]
        history.close()


def test_a_tap_returns_every_packet_once_in_order() -> None:
    stream, store = PublishedStream(), PacketStore(64, 65_536)
    store.keep(stream.packet("before"))
    tap = Tap(store)
    assert tap.take() is None
    assert tap.arm()
    for _ in range(3):
        store.keep(stream.packet("a.b"))
    assert tap.take() is None  # not announced yet
    tap.announce(store.next_sequence)
    tap.clear()
    taken = tap.take()
    assert taken is not None
    (found,) = Unpacker().unpack_taken(*taken)
    assert (found[0], found[1].packets["sequence"].tolist()) == (0, [2, 3, 4])
    assert tap.take() is None
    tap.close()


def test_a_tap_that_was_too_slow_reports_how_much_is_missing() -> None:
    stream, store = PublishedStream(), PacketStore(4, 65_536)
    tap = Tap(store)
    for _ in range(6):
        store.keep(stream.packet("a.b"))
    tap.announce(store.next_sequence)
    taken = tap.take()
    assert taken is not None
    (found,) = Unpacker().unpack_taken(*taken)
    assert (found[0], found[1].packets["sequence"].tolist()) == (2, [3, 4, 5, 6])
    assert found[1].rows["packet_index"].tolist() == [0, 1, 2, 3]
    tap.close()


def test_a_tap_wakes_the_waiting_reader() -> None:
    stream, store = PublishedStream(), PacketStore(64, 65_536)
    tap = Tap(store)
    assert tap.arm()
    store.keep(stream.packet("a.b"))
    maker = threading.Thread(target=tap.announce, args=[store.next_sequence])
    maker.start()
    maker.join()
    import select

    assert select.select([tap.fileno()], [], [], 10)[0]
    assert not tap.arm()
    tap.close()


def recorder(tap: Tap, path: Path, counters: Counters) -> Recorder:
    return Recorder(tap, path, JournalConfig(retry_ms=1), publisher_id=7, group=0xEF010101, epoch=1, counters=counters)


def test_published_messages_are_recorded(tmp_path: Path) -> None:
    stream, store = PublishedStream(), PacketStore(64, 65_536)
    tap = Tap(store)
    recording = recorder(tap, tmp_path, Counters("x"))
    recording.start()
    packets = [stream.packet(f"t.{number}") for number in range(10)]
    for packet in packets:
        store.keep(packet)
        tap.announce(store.next_sequence)
    recording.stop()
    with JournalReader.open(tmp_path) as journal:
        assert [payload for _, _, payload in journal.read()] == packets
    assert recording.trouble == ""
    tap.close()


def test_a_full_disk_is_reported_and_missing_messages_are_recorded_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, store, counters = PublishedStream(), PacketStore(64, 65_536), Counters("x")
    tap = Tap(store)
    recording = recorder(tap, tmp_path, counters)
    recording.start()
    is_full = threading.Event()
    real = WritableDirectory.carry_out

    def carry_out(directory: WritableDirectory, instruction: object) -> object:
        from penstock.journal.core.events import DiskFailed

        if is_full.is_set():
            return DiskFailed(errno.ENOSPC)
        return real(directory, instruction)  # type: ignore[arg-type]

    monkeypatch.setattr(WritableDirectory, "carry_out", carry_out)
    is_full.set()

    def publish() -> None:
        store.keep(stream.packet("a.b"))
        tap.announce(store.next_sequence)

    def publish_until(condition: object) -> None:
        for _ in range(5_000):
            if condition():  # type: ignore[operator]
                return
            publish()
            threading.Event().wait(0.002)
        raise AssertionError("it did not come true")

    publish_until(lambda: recording.trouble)
    assert "full" in recording.trouble
    assert counters["packets_unrecorded"] > 0
    is_full.clear()
    publish_until(lambda: not recording.trouble)
    recording.stop()
    with JournalReader.open(tmp_path) as journal:
        records = [decode(payload) for _, _, payload in journal.read()]
    gone = [record for record in records if record.kind == Kind.GONE]
    numbers = [record.sequence for record in records if record.kind == Kind.DATA]
    missing = {number for each in gone for first, last in each.ranges for number in range(first, last + 1)}
    assert sorted({*numbers, *missing}) == list(range(1, store.next_sequence))
    assert len(missing) == counters["packets_unrecorded"]
    tap.close()
