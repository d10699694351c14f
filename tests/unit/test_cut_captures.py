"""The rows and sessions of a capture do not depend on its division into runs, steps and slices; without Spark."""

import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.spark.journals import JournalPlace
from penstock.spark.pipeline.archive.commits import Catalogue, Commit, SessionEntry
from penstock.spark.pipeline.sessions import session_changes
from penstock.spark.pipeline.sources.capture import JournalSource
from penstock.spark.pipeline.sources.normalise import read_slice
from spark.pipeline_kit import capture_of, two_sessions, write_journal

SEEDS = 40
ABOUT_SLICES = {"delivery", "agreement", "latency", "loss", "quarantine"}

MESSAGES = two_sessions(300)


class Reader:
    """Reads a growing journal step by step, as runs of the pipeline do."""

    def __init__(self, path: Path) -> None:
        self.place = JournalPlace(str(path))
        self.catalogue = Catalogue()
        self.rows: Counter[tuple[str, int, str]] = Counter()

    def take(self, cores: int, records_max: int | None) -> None:
        for piece in JournalSource(self.place, cores, records_max).pieces(self.catalogue):
            reading = read_slice(piece.slice)
            for rows in reading:
                if rows.table not in ABOUT_SLICES:
                    values = zip(rows.streams.tolist(), rows.batch.to_pylist(), strict=True)
                    self.rows.update((rows.table, stream, repr(row)) for stream, row in values)
            number = self.catalogue.number + 1
            assert reading.account.is_balanced
            self.catalogue.take(
                Commit(
                    number=number, kind="append", run="", made_ns=0, account=reading.account, cursors=reading.cursors,
                    sources={piece.source: piece.position},
                    sessions=session_changes(self.catalogue, [reading.sessions], number),
                )
            )  # fmt: skip

    def sessions(self) -> list[tuple[str, SessionEntry]]:
        return [
            (
                stream,
                SessionEntry(place=each.place, tag=each.tag, begun=0, first_ns=each.first_ns, last_ns=each.last_ns),
            )
            for stream, entries in self.catalogue.sessions.items()
            for each in entries
        ]


@pytest.mark.spec("DAY-4", "PIPE-5")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_capture_divided_at_random_places_has_the_same_rows_and_sessions(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    records = capture_of(MESSAGES, seed)
    cuts = sorted({0, len(records), *(chance.randrange(len(records)) for _ in range(chance.randrange(1, 12)))})
    cut, whole = Reader(tmp_path / "journal"), Reader(tmp_path / "journal")
    for first, last in pairwise(cuts):
        write_journal(tmp_path / "journal", records[first:last], first + 1)
        while int(cut.catalogue.sources.get(f"journal:{tmp_path / 'journal'}", {}).get("last", 0)) < last:
            cut.take(chance.randrange(1, 4), chance.choice([None, 1, 7, 100]))
    whole.take(1, None)
    assert cut.rows == whole.rows
    assert cut.sessions() == whole.sessions()
    assert len(whole.sessions()) == 2
    assert {"book_event", "trade", "quote", "session"} & {table for table, _, _ in whole.rows} >= {"trade", "quote"}
    for name in ("taken", "rows", "repeated", "skipped"):
        assert getattr(cut.catalogue.account, name) == getattr(whole.catalogue.account, name)
