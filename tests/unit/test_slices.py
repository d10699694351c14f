"""Slices of journals: each message once and complete, for any division; locally and over TCP."""

import asyncio
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.base.errors import ConfigurationError, JournalError
from penstock.capture.core.cursors import KEPT, Cursors
from penstock.capture.core.rows import MessageRows, PacketRows
from penstock.journal import JournalConfig, JournalReader, JournalWriter
from penstock.journal.live.extent import measure
from penstock.journal.server import JournalServer
from penstock.middleware.core.reserved_topics import DISCONTINUITY_TOPIC
from penstock.middleware.core.source_stream import DiscontinuityNote
from penstock.net.secret import read_secret
from penstock.spark.journals import JournalPlace, find_journals
from penstock.spark.slices import JournalSlice, JournalSliceReader, cut, decode_slice, encode_slice, scan
from penstock.wire import Extension, Origin, Packer, encode_extensions, encode_origin
from penstock.wire.term import LINEAGE_SHIFT, SESSION_TAG_SHIFT, session_tag
from unit.rows_kit import batch_of

GROUP = 0xEF010101
TERM = 1 << 14


def origin(seq: int, *, term: int = TERM, flags: int = 1, stream: int = 7) -> bytes:
    return encode_extensions({Extension.ORIGIN: encode_origin(Origin(stream, term, 0, flags, seq, seq))})


def redundant_packets(seed: int, messages: int = 300) -> list[bytes]:
    """The same source stream from two publishers; each loses some packets, one is behind, some messages are long."""
    chance = random.Random(seed)
    queues = []
    for publisher in (1, 2):
        packer, queue = Packer(publisher, GROUP, 1), []
        for seq in range(1, messages + 1):
            size = 4_000 if seq % 50 == 0 else 20
            queue += packer.add("a.b", seq.to_bytes(4, "big") * (size // 4), extensions=origin(seq))
            if chance.random() < 0.3 and (rest := packer.flush()) is not None:
                queue.append(rest)
        rest = packer.flush()
        queues.append([*queue, rest] if rest else queue)
    mixed = []
    while any(queues):
        queue = queues[0] if queues[0] and (not queues[1] or chance.random() < 0.6) else queues[1]
        mixed.append(queue.pop(0))
    return mixed


def write(path: Path, contents: list[bytes], segment_bytes: int = 8_192) -> JournalPlace:
    with JournalWriter.open(path, JournalConfig(segment_bytes=segment_bytes, preallocate_bytes=0)) as journal:
        for number, content in enumerate(contents):
            journal.append(content, 1_000 * number)
            if number % 7 == 0:
                journal.commit()
    return JournalPlace(str(path))


def seqs(rows: MessageRows) -> list[int]:
    return [int.from_bytes(rows.payload(index)[:4], "big") for index in range(len(rows))]


def read_all(slices: list[JournalSlice]) -> tuple[list[int], list[JournalSliceReader]]:
    found, readers = [], []
    for piece in slices:
        reader = JournalSliceReader(decode_slice(encode_slice(piece)))
        for rows in reader:
            found += seqs(rows)
        assert reader.account.is_balanced
        readers.append(reader)
    return found, readers


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the cache of scans here, not in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.spec("PIPE-1")
@pytest.mark.parametrize("seed", range(5))
def test_each_message_appears_once_for_any_division(tmp_path: Path, seed: int) -> None:
    place = write(tmp_path / "j.d", redundant_packets(seed))
    extent = place.measure()
    assert len(extent.firsts) > 3
    chance = random.Random(seed)
    at, cursors, found = 1, [], []
    while at < extent.next_sequence:
        last = min(at + chance.randrange(0, 90), extent.next_sequence - 1)
        slices = cut(place, at, last, cursors=cursors, slice_bytes=10_000, slices_min=chance.randrange(1, 5))
        assert [piece.first for piece in slices] == [at, *(piece.last + 1 for piece in slices[:-1])]
        found += read_all(slices)[0]
        cursors = scan(place, at, last, cursors)
        at = last + 1
    assert found == sorted(found) == list(range(1, 301))
    for _ in range(2):  # the second time from cached scans
        whole = cut(place, 1, extent.next_sequence - 1, slice_bytes=10_000)
        assert len(whole) > 3
        assert read_all(whole)[0] == found
    every, readers = read_all(cut(place, 1, extent.next_sequence - 1, copies="all", slice_bytes=10_000))
    assert sorted(every) == sorted(found * 2)
    assert sum(int(reader.streams["packets"].sum()) for reader in readers) == extent.next_sequence - 1


def rows_of(messages: list[tuple[int, int, int]]) -> MessageRows:
    """The (seq, term, flags) of each message."""
    packer = Packer(1, GROUP, 1, packet_size_max=60_000)
    packets = []
    for seq, term, flags in messages:
        packets += packer.add("a", b"x", extensions=origin(seq, term=term, flags=flags))
    return PacketRows().take(batch_of([*packets, packer.flush() or b""]))


def test_the_rule_of_the_merger() -> None:
    newer = 2 << 14
    told = [
        (5, TERM, 1), (5, TERM + 16, 1), (6, TERM, 1), (9, TERM, 1), (8, TERM, 1), (8, TERM, 1), (7, TERM, 1),
        (10, TERM, 0), (12, TERM, 4 | 1), (20, newer, 3), (11, TERM, 1), (20, newer, 1), (21, newer, 1),
    ]  # fmt: skip
    kept = Cursors()
    verdicts = []
    for each in told:  # one at a time, through plain data, like slices
        verdicts += kept.judge(rows_of([each])).tolist()
        kept = Cursors.of(kept.export())
    assert [verdict == KEPT for verdict in verdicts] == [
        True, False, True, True, True, False, True, False, True, False, False, False, True
    ]  # fmt: skip
    assert Cursors().judge(rows_of(told)).tolist() == verdicts


def announced(term: int, seq: int, session: str, day: str, *, reason: str, index: int = 0, flags: int = 3) -> bytes:
    """A packet with an announcement of a session."""
    packer = Packer(1, GROUP, 1)
    flags |= session_tag(session, day) << SESSION_TAG_SHIFT
    said = Origin(7, term, index, flags, 1, seq)
    body = DiscontinuityNote(reason, [], session, day).encode()
    extensions = encode_extensions({Extension.ORIGIN: encode_origin(said)})
    return b"".join([*packer.add(DISCONTINUITY_TOPIC, body, extensions=extensions), packer.flush() or b""])


def of_session(term: int, seqs: range, first: int, session: str, day: str) -> bytes:
    """A packet with messages of a session, of which the first has the number `first` in the source."""
    packer = Packer(1, GROUP, 1, packet_size_max=60_000)
    flags = 1 | session_tag(session, day) << SESSION_TAG_SHIFT
    for source_seq, seq in enumerate(seqs, start=first):
        extensions = encode_extensions({Extension.ORIGIN: encode_origin(Origin(7, term, 0, flags, source_seq, seq))})
        assert not packer.add("a", b"x", extensions=extensions)
    return packer.flush() or b""


@pytest.mark.spec("DAY-1", "DAY-4")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("AUX", "2026-01-30"), ("AUX", "2026-03-30")),
        (("0000007777", "2026-01-30"), ("0000007823", "2026-01-30")),
    ],
)
@pytest.mark.parametrize("reason", ["session", "promotion"])
def test_sessions_with_the_same_tag_are_told_apart_by_their_announcements(
    first: tuple[str, str], second: tuple[str, str], reason: str
) -> None:
    assert session_tag(*first) == session_tag(*second)
    packets = [
        announced(TERM, 0, *first, reason="start"),
        of_session(TERM, range(1, 11), 1, *first),
        announced(TERM, 10, *first, reason="end", index=1),
        announced(2 * TERM, 10, *first, reason="source_gap"),
        of_session(2 * TERM, range(11, 21), 6, *first),
        announced(3 * TERM, 20, *second, reason=reason),
        announced(3 * TERM, 20, *second, reason=reason, flags=7),
        of_session(3 * TERM, range(21, 31), 1, *second),
        announced(TERM, 0, *first, reason="start"),
        announced(3 * TERM, 20, *second, reason=reason, flags=7),
        announced(4 * TERM, 30, *second, reason="promotion"),
        of_session(4 * TERM, range(31, 41), 6, *second),
    ]
    whole, apart = Cursors(), Cursors()
    verdicts = []
    for packet in packets:  # one at a time, through plain data, like slices
        verdicts.append((apart.judge(PacketRows().take(batch_of([packet]))) == KEPT).tolist())
        apart = Cursors.of(apart.export())
    assert verdicts[1] == verdicts[7] == [True] * 10
    assert verdicts[4] == verdicts[11] == [False] * 5 + [True] * 5, "a session that continues repeats messages"
    together = whole.judge(PacketRows().take(batch_of(packets))) == KEPT
    assert together.tolist() == [verdict for each in verdicts for verdict in each]
    assert whole.beginnings == {7: [3 * TERM >> LINEAGE_SHIFT]} == apart.beginnings


def test_an_unreadable_announcement_changes_no_session() -> None:
    packer = Packer(1, GROUP, 1)
    said = encode_extensions({Extension.ORIGIN: encode_origin(Origin(7, 2 * TERM, 0, 3, 1, 10))})
    bad = [*packer.add(DISCONTINUITY_TOPIC, b'{"reason": 5}', extensions=said), packer.flush() or b""]
    cursors = Cursors()
    for packet in (of_session(TERM, range(1, 11), 1, "", ""), *bad):
        cursors.judge(PacketRows().take(batch_of([packet])))
    rows = PacketRows().take(batch_of([of_session(2 * TERM, range(11, 21), 6, "", "")]))
    assert (cursors.judge(rows) == KEPT).tolist() == [False] * 5 + [True] * 5


def test_many_holes_are_bounded() -> None:
    cursors = Cursors()
    assert (cursors.judge(rows_of([(seq, TERM, 1) for seq in range(2, 2_000, 2)])) == KEPT).all()
    assert len(cursors.export()[0].holes) == 256
    late = cursors.judge(rows_of([(seq, TERM, 1) for seq in range(3, 1_998, 2)]))
    assert int((late == KEPT).sum()) == 256


def test_a_hole_is_filled_in_any_order() -> None:
    for seed in range(20):
        order = list(range(2, 60))
        random.Random(seed).shuffle(order)
        cursors = Cursors()
        verdicts = cursors.judge(rows_of([(seq, TERM, 1) for seq in [1, 60, *order, *order]])).tolist()
        assert verdicts == [KEPT] * 60 + [1] * 58
        assert cursors.export()[0].holes == []


def test_a_damaged_cache_of_scans_is_ignored(tmp_path: Path, cache: Path) -> None:
    place = write(tmp_path / "j.d", redundant_packets(1))
    last = place.measure().next_sequence - 1
    slices = cut(place, 1, last, slice_bytes=10_000)
    (memory,) = (cache / "penstock" / "scans").iterdir()
    for damage in (b"", b"{", b'{"x": 1}', b"\xff" * 100):
        memory.write_bytes(damage)
        assert cut(place, 1, last, slice_bytes=10_000) == slices
    first = Path(place.where) / min(path.name for path in Path(place.where).glob("*.journal"))
    os.utime(first, ns=(1, 1))  # possibly another file
    assert cut(place, 1, last, slice_bytes=10_000) == slices


def test_missing_journals_are_reported(tmp_path: Path) -> None:
    with pytest.raises(JournalError):
        JournalPlace(str(tmp_path / "missing.d")).measure()
    (tmp_path / "empty.d").mkdir()
    with pytest.raises(JournalError, match="holds no journal"):
        JournalPlace(str(tmp_path / "empty.d")).measure()
    place = write(tmp_path / "j.d", redundant_packets(1, 20))
    with pytest.raises(JournalError, match="ends before"):
        list(place.read(1, 10**6))
    for patterns, connect in (((), ()), ((str(tmp_path / "no*"),), ()), ((), ("nowhere",))):
        with pytest.raises((JournalError, ConfigurationError)):
            find_journals(patterns, connect, "", "")
    assert [each.where for each in find_journals((str(tmp_path / "j*"),), ("h:1",), "s", "")] == [
        str(tmp_path / "j.d"),
        "tcp://h:1",
    ]


@pytest.mark.parametrize("with_mark", [True, False])
def test_the_extent_of_a_journal(tmp_path: Path, with_mark: bool) -> None:
    contents = redundant_packets(3, 60)
    place = write(tmp_path / "j.d", contents)
    if not with_mark:
        for path in (tmp_path / "j.d").iterdir():
            if not path.name.endswith(".journal"):
                path.unlink()
    found = measure(place.where, 1_000 * 10)
    assert (found.first_sequence, found.next_sequence, found.found_sequence) == (1, len(contents) + 1, 11)
    assert measure(place.where, 10**12).found_sequence == len(contents) + 1
    with JournalReader.open(place.where) as reader:
        assert reader.find_end() == len(contents) + 1
        assert not reader.read_batch()


@contextmanager
def served(path: str, **options: Any) -> Iterator[int]:
    """The journal on a free port, served by a thread."""
    loop = asyncio.new_event_loop()
    ports: list[int] = []
    started, stop = threading.Event(), asyncio.Event()

    async def main() -> None:
        async with JournalServer(path, **options) as server:
            ports.append(server.port)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    assert started.wait(20)
    yield ports[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(20)
    loop.close()


@pytest.mark.spec("PIPE-2")
def test_a_journal_on_another_machine(tmp_path: Path) -> None:
    local = write(tmp_path / "j.d", redundant_packets(4))
    secret = tmp_path / "secret"
    secret.write_text("s" * 32)
    secret.chmod(0o600)
    with served(local.where, secret=read_secret(secret)) as port:
        remote = JournalPlace(f"tcp://127.0.0.1:{port}", secret=str(secret))
        assert remote.measure(50_000) == local.measure(50_000)
        last = remote.measure().next_sequence - 1
        slices = cut(remote, 1, last, slice_bytes=10_000)
        assert len(slices) > 3
        assert read_all(slices)[0] == list(range(1, 301))
        with pytest.raises(Exception, match=r"secret|proof"):
            JournalPlace(f"tcp://127.0.0.1:{port}").measure()
