"""For any cuts of a recorded feed, the slices give the messages of the whole feed, byte by byte."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from feed_slices_kit import (
    ITCH,
    blocks_of,
    converted_slices,
    converted_whole,
    messages_of,
    mold_day,
    pcap_of,
    write_day,
)
from penstock.model import shipped
from penstock.spark.feedindex import plan_slices
from penstock.spark.feedslices import Conversion, FeedOptions, FeedReader


@pytest.mark.spec("PIPE-3", "PIPE-4")
@pytest.mark.parametrize(("name", "messages"), [("day.itch", 5_000), ("day.itch.gz", 45_000)])
def test_slices_of_a_day_are_the_day(tmp_path: Path, name: str, messages: int) -> None:
    path = tmp_path / name
    size = len(write_day(path, messages))
    whole = converted_whole(path)
    assert len(whole) > 5_000
    source = random.Random(name)
    for _ in range(4):
        slices = plan_slices(
            path,
            conversion=ITCH,
            slice_size=source.randrange(size // 20, size),
            cache=tmp_path / "cache",
        )
        source.shuffle(slices)  # slices are independent of each other
        made = {piece.number: converted_slices([piece]) for piece in slices}
        assert [message for number in sorted(made) for message in made[number]] == whole


@pytest.mark.spec("PIPE-3", "PIPE-4")
@pytest.mark.parametrize("seed", range(3))
def test_slices_of_a_capture_are_what_its_lines_bring_together(tmp_path: Path, seed: int) -> None:
    """Two lines that lose, repeat and reorder messages; two consecutive sessions; messages that neither line
    delivers."""
    source = random.Random(seed)
    messages = blocks_of(write_day(tmp_path / "day.itch", 2_000))
    frames = []
    time_ns = 1_700_000_000_000_000_000
    for session, count in (("MORNING", 1_200), ("EVENING", 700)):
        datagrams = mold_day(messages[:count], session)
        nobody_has = set(source.sample(range(1, len(datagrams) - 1), 2))
        last = len(datagrams) - 1
        for index, datagram in enumerate(datagrams):
            time_ns += source.randrange(1_000_000)
            is_brought = [index == last or (source.random() < 0.9 and index not in nobody_has) for _ in (0, 1)]
            delays = [source.randrange(2_000_000) * (index != last) for _ in (0, 1)]
            frames += [(time_ns + delays[line], line, datagram) for line in (0, 1) if is_brought[line]]
        time_ns += 10**10
    frames.sort(key=lambda frame: frame[0])
    path = tmp_path / "lines.pcap"
    path.write_bytes(pcap_of(frames))
    whole = converted_whole(path)
    assert len(whole) > 1_000
    for size in (3_000, 40_000, 10**9):
        slices = plan_slices(path, conversion=ITCH, slice_size=size, cache=tmp_path / "cache")
        assert converted_slices(slices) == whole
    readers = [FeedReader(piece) for piece in slices]
    for reader in readers:
        for _ in reader:
            pass
    assert sum(reader.account.lost for reader in readers) > 0


@pytest.mark.spec("PIPE-3")
def test_slices_of_a_text_are_the_text(tmp_path: Path) -> None:
    path = tmp_path / "ticks.csv"
    path.write_text("\n".join(["kind,time,symbol,and the rest", *_ticks(random.Random(1))]) + "\n")
    table = Conversion("csv-ticks")
    options = FeedOptions(has_header=True)
    whole = converted_whole(path, table, options)
    assert len(whole) > 500
    for size in (1, 10**9):
        slices = plan_slices(path, conversion=table, options=options, slice_size=size, cache=tmp_path / "cache")
        assert converted_slices(slices) == whole


def _ticks(source: random.Random) -> Iterator[str]:
    for number in range(600):
        symbol, time_ns = source.choice(["IBM", "BAC"]), 1_700_000_000_000_000_000 + number
        price, size = source.randrange(1, 10_000) / 100, source.randrange(1, 900)
        if source.random() < 0.5:
            yield f"trade,{time_ns},{symbol},{price},{size},{number}"
        else:
            yield f"quote,{time_ns},{symbol},{price},{size},{price + 1},{size}"
        if source.random() < 0.05:
            yield source.choice(["", "nonsense,1,2", "trade,x,IBM,1,1,1"])


def test_only_wanted_models_are_made_and_keep_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "day.itch"
    write_day(path, 2_000)
    whole = converted_whole(path)
    (piece,) = plan_slices(path, conversion=ITCH, cache=tmp_path / "cache")
    assert piece.size == -1
    for wanted, model_id in ((["trade"], 2), (["book_event"], 3)):
        reader = FeedReader(piece, wanted)
        made = [message for rows in reader for message in messages_of(rows)]
        assert made == [message for message in whole if message[2] == model_id]
        assert reader.account.made == len(whole)


def test_records_of_one_model_are_read_where_they_lie(tmp_path: Path) -> None:
    path = tmp_path / "day.itch"
    write_day(path, 2_000)
    (piece,) = plan_slices(path, conversion=ITCH)
    model = shipped("book_event")
    for models, is_even in ((["book_event"], True), (None, False)):
        are_shared = []
        for rows in FeedReader(piece, models):
            mine = rows.select(rows.sound(model))
            here = mine.fields(model, list(model.fields_by_name))
            assert (here == mine.records(model)).all()
            are_shared.append(bool(np.shares_memory(here, rows.payloads)))
        assert all(are_shared) == is_even
