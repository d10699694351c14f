"""The index of a recorded feed: when it is built and rebuilt, and its errors for damaged files."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from feed_slices_kit import ITCH, converted_slices, converted_whole, write_day
from penstock.base.errors import ConfigurationError, FeedIndexError, LocalProtocolError, RemoteProtocolError
from penstock.convert import SourceBatch
from penstock.feed.core.lines.events import SessionStarted, SourceLost, SourceReady
from penstock.feed.recorded._tape import TapeRows, encode_messages, scan_blocks
from penstock.feed.recorded.tape import encode, read_tape
from penstock.spark.feedcache import DOCUMENT, FeedCache, Making
from penstock.spark.feedindex import plan_slices
from penstock.spark.feedslices import Conversion, FeedReader, FeedSlice


def planned(path: Path, **more: object) -> list[FeedSlice]:
    return plan_slices(path, conversion=ITCH, slice_size=20_000, cache=path.parent / "cache", **more)  # type: ignore[arg-type]


def bad_of(slices: list[FeedSlice]) -> list[tuple[int, str, str]]:
    found = []
    for piece in slices:
        reader = FeedReader(piece)
        for _ in reader:
            pass
        assert reader.account.is_balanced
        found += [(each.position, each.code, each.reason) for each in reader.bad]
    return found


def test_a_small_file_needs_no_index(tmp_path: Path) -> None:
    write_day(tmp_path / "day.itch", 500)
    (piece,) = plan_slices(tmp_path / "day.itch", conversion=ITCH, cache=tmp_path / "cache")
    assert piece.start is None
    assert not (tmp_path / "cache").exists()


def test_an_index_is_built_once(tmp_path: Path) -> None:
    path = tmp_path / "day.itch"
    write_day(path, 2_000)
    seen: list[tuple[str, int, int]] = []
    first = planned(path, progress=lambda *each: seen.append(each))
    assert len(first) > 2
    assert {what for what, _, _ in seen} == {"framing", "converting"}
    assert all(0 <= done <= total for _, done, total in seen)
    seen.clear()
    assert planned(path, progress=lambda *each: seen.append(each)) == first
    assert seen == []


@pytest.mark.parametrize("harm", ["document", "image", "gone", "half"])
def test_an_incomplete_index_is_rebuilt(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "day.itch"
    write_day(path, 2_000)
    slices = planned(path)
    assert slices[1].start is not None
    image = Path(slices[1].start.image)
    if harm == "document":
        text = (image.parent / DOCUMENT).read_bytes()
        (image.parent / DOCUMENT).write_bytes(text.replace(b"day.itch", b"DAY.itch", 1))
    elif harm == "image":
        image.write_bytes(image.read_bytes()[:-1])
    elif harm == "gone":
        image.unlink()
    else:
        image.parent.rename(image.parent.parent / "making")
    assert planned(path) == slices
    assert converted_slices(planned(path)) == converted_whole(path)
    assert not (image.parent.parent / "making").exists()


def test_a_changed_file_is_indexed_again_and_the_old_index_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "day.itch"
    write_day(path, 2_000)
    old = planned(path)
    write_day(path, 2_500, seed=9)
    new = planned(path)
    assert converted_slices(new) == converted_whole(path)
    assert old[1].start is not None
    assert not Path(old[1].start.image).exists()
    with pytest.raises(FeedIndexError, match="cannot read the file"):
        converted_slices(old[1:2])


def test_another_table_or_date_has_other_states(tmp_path: Path) -> None:
    path = tmp_path / "day.itch"
    write_day(path, 2_000)
    one = planned(path)
    two = plan_slices(
        path, conversion=Conversion("itch", trading_date="2024-01-03"), slice_size=20_000, cache=tmp_path / "cache"
    )
    assert one[1].offset == two[1].offset
    assert one[1].start != two[1].start


def test_flipped_bits_in_the_cache_are_detected_on_the_read(tmp_path: Path) -> None:
    path = tmp_path / "day.itch.gz"
    write_day(path, 45_000)
    slices = planned(path)
    assert slices[1].start is not None
    for name, what in ((slices[1].data, "tape"), (slices[1].start.image, "image")):
        data = bytearray(Path(name).read_bytes())
        at = slices[1].offset + 100 if what == "tape" else len(data) // 2
        data[at] ^= 1
        Path(name).write_bytes(data)
        with pytest.raises(FeedIndexError, match=f"{what} is damaged"):
            converted_slices(slices[1:2])
        data[at] ^= 1
        Path(name).write_bytes(data)
    assert converted_slices(slices) == converted_whole(path)


@pytest.mark.spec("PIPE-11")
@pytest.mark.parametrize("name", ["day.itch", "day.itch.gz"])
@pytest.mark.parametrize("slice_size", [None, 20_000])
def test_truncated_or_damaged_files_are_converted_as_far_as_possible(
    tmp_path: Path, name: str, slice_size: int | None
) -> None:
    """Valid messages are converted and invalid ones are reported with their place, with and without an index."""
    path = tmp_path / name
    data = write_day(tmp_path / "whole.itch", 2_000)
    places, at = [], 0
    while at < len(data):
        places.append(at)
        at += 2 + int.from_bytes(data[at : at + 2], "big")
    changed = bytearray(data[:-3])
    changed[places[700] + 2] = ord("?")  # an unknown type
    path.write_bytes(gzip.compress(changed) if path.suffix == ".gz" else changed)
    slices = plan_slices(path, conversion=ITCH, slice_size=slice_size, cache=tmp_path / "cache")
    assert (len(slices) == 1) == (slice_size is None)  # a compressed file is truncated between two chunks
    assert converted_slices(slices) == converted_whole(path)
    bad = bad_of(slices)
    kinds = [each for each in bad if each[1] == "kind"]
    (cut,) = [each for each in bad if each[1] == "damaged"]
    assert cut[0] == places[-1]
    assert "truncated" in cut[2]
    assert len(kinds) == 1
    assert kinds[0][0] == (places[700] + 2 if slice_size and name == "day.itch" else 701)
    assert "message 701 of" in kinds[0][2]
    assert len(bad) == 2


def test_a_truncated_compressed_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "day.itch.gz"
    write_day(path, 3_000)
    path.write_bytes(path.read_bytes()[:-2_000])
    slices = planned(path)
    assert converted_slices(slices) == converted_whole(path)
    (bad,) = [each for each in bad_of(slices) if "compressed" in each[2]]
    assert bad[1] == "damaged"


def test_mistakes_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "day.itch"
    write_day(path, 500)
    with pytest.raises(ConfigurationError, match="needs a date"):
        plan_slices(path, conversion=Conversion("itch"))
    with pytest.raises(ConfigurationError, match="is not a date"):
        plan_slices(path, conversion=Conversion("itch", trading_date="yesterday"))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        plan_slices(tmp_path / "nowhere", conversion=ITCH)
    (piece,) = plan_slices(path, conversion=ITCH)
    with pytest.raises(ConfigurationError, match="does not produce model 'trades'"):
        FeedReader(piece, ["trades"])
    (raw,) = plan_slices(path)
    with pytest.raises(ConfigurationError, match="no converter table"):
        FeedReader(raw)
    (tmp_path / "full").write_bytes(b"")
    with pytest.raises(FeedIndexError, match="cannot build the index"):
        plan_slices(path, slice_size=100, cache=tmp_path / "full")


def test_a_file_that_changes_during_the_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "day.itch"
    write_day(path, 500)
    cache = FeedCache(tmp_path / "cache", path)

    def make(into: Making) -> int:
        path.write_bytes(b"else")
        return 1

    with pytest.raises(FeedIndexError, match="changed while"):
        cache.get_or_make("key", int, make)


def test_concurrent_processes_build_an_index_once(tmp_path: Path) -> None:
    path = tmp_path / "day.itch"
    write_day(path, 3_000)
    script = f"import sys; sys.path[:0] = {sys.path!r}; path = {str(path)!r}\n{CHILD}"
    children = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=os.environ)
        for _ in range(3)
    ]
    answers = [child.communicate(timeout=120)[0].split() for child in children]
    assert [child.returncode for child in children] == [0, 0, 0]
    assert sorted("".join(made.removeprefix("-") for made, _ in answers)) == ["c", "f"], "each process builds a part"
    assert len({slices for _, slices in answers}) == 1


CHILD = """
from hashlib import sha256
from pathlib import Path
from feed_slices_kit import ITCH
from penstock.spark.feedindex import plan_slices
seen = set()
slices = plan_slices(Path(path), conversion=ITCH, slice_size=20_000, cache=Path(path).parent / "cache",
                     progress=lambda part, *_: seen.add(part[0]))
print("-" + "".join(seen), sha256(repr(slices).encode()).hexdigest())
"""


# Tapes


def test_a_tape_returns_the_written_messages() -> None:
    batch = SourceBatch()
    batch.point_at(b"abcdef")
    for sequence, offset, size, time in ((5, 0, 2, 7), (6, 2, 1, 7), (7, 3, 0, 8), (9, 3, 3, 8)):
        batch.append(sequence, offset, size, time)
    tape = encode(SessionStarted("day", 5, True)) + encode(SourceReady(batch)) + encode(SourceLost(10, 12, "window"))
    started, ready, lost = _listed(tape)
    assert started == SessionStarted("day", 5, True)
    assert ready == [(5, b"ab", 7), (6, b"c", 7), (7, b"", 8), (9, b"def", 8)]
    assert lost == SourceLost(10, 12, "window")
    for size in range(1, len(tape)):
        try:
            _listed(tape[:size])
        except RemoteProtocolError:
            continue
        assert size in (
            len(encode(SessionStarted("day", 5, True))),
            len(tape) - len(encode(lost)),
        ) or size in _entry_ends(tape)


def _entry_ends(tape: bytes) -> list[int]:
    ends, at = [], 0
    while at < len(tape):
        at += 24 + int.from_bytes(tape[at + 4 : at + 8], "little")
        ends.append(at)
    return ends


def _listed(tape: bytes) -> list[object]:
    return [
        [(sequence, data, each.batch.receive_ns(at)) for at, (sequence, data) in enumerate(each.batch)]
        if isinstance(each, SourceReady)
        else each
        for each in read_tape(tape)
    ]


def test_a_scan_ends_at_a_message_boundary() -> None:
    blocks = b"\0\1a\0\2bc\0\0\0\5de"
    assert scan_blocks(blocks, 0, 1) == (3, 1)
    assert scan_blocks(blocks, 0, 3) == (3, 1)
    assert scan_blocks(blocks, 0, 4) == (7, 2)
    assert scan_blocks(blocks, 0, 100) == (9, 3)
    assert scan_blocks(b"", 0, 5) == (0, 0)
    with pytest.raises(LocalProtocolError):
        scan_blocks(blocks, 50, 100)
    with pytest.raises(LocalProtocolError):
        TapeRows().batch(b"", 1, 1)
    assert encode_messages(SourceBatch()) == b""
