"""Archives: atomic commits, damaged documents, two writers, compaction and retention."""

import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from penstock.base.errors import (
    ArchiveCorruptError,
    ArchiveError,
    ArchiveFullError,
    ArchiveLockedError,
    NotFoundError,
)
from penstock.cli.pipeline.command import app
from penstock.spark.pipeline.archive import commits, placing
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.archive.commits import STATE_INTERVAL, Account, CommitLog, commit_name, state_name
from penstock.spark.pipeline.archive.compaction import CROWD, compact, crowded_files, small_files
from unit.archive_kit import DDL, ROWS, check_whole, compact_all, drop_old, numbers_of, stage, step


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.mark.spec("PIPE-6")
def test_a_commit_is_atomic_across_tables(path: Path) -> None:
    with Archive.writing(path) as archive:
        step(archive)
        assert [(table.name, table.rows, table.files, table.streams) for table in archive.tables()] == [
            ("quote", 10, 2, 2), ("trade", 10, 2, 2),
        ]  # fmt: skip
        step(archive, "2024-01-03")
        info = archive.tables()[0]
        assert (info.first_date, info.last_date) == ("2024-01-02", "2024-01-03")
        assert len(archive.files("trade", dates=["2024-01-03"], streams=[1])) == 1
    assert check_whole(path) == 20


def test_files_that_were_never_committed_are_removed(path: Path) -> None:
    with Archive.writing(path) as archive:
        step(archive)
        staging = archive.begin()
        stage(staging, "trade", "2024-01-02", 0, [11, 12])
    Archive.writing(path).close()
    assert check_whole(path) == 10


def test_a_second_writer_is_refused_and_the_first_one_is_named(path: Path) -> None:
    with Archive.writing(path) as archive:
        step(archive)
        with pytest.raises(ArchiveLockedError, match=f"process {os.getpid()}"):
            Archive.writing(path)
        reader = Archive.open(path)
        assert reader.catalogue.number == 1
        with pytest.raises(ArchiveError, match="open for reading only"):
            reader.begin()
        step(archive)
        assert reader.catalogue.number == 1
        reader.refresh()
        assert reader.catalogue.number == 2


def test_a_commit_number_is_used_once_even_without_the_lock(path: Path) -> None:
    with Archive.writing(path) as archive:
        first = step(archive)
        with pytest.raises(ArchiveError, match="another process has made"):
            CommitLog(path / "_commits").append(first)
    assert check_whole(path) == 10


def test_a_reader_sees_a_commit_from_its_commit_point_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def look(reached: str) -> None:
        if reached in ("staged", "synced", "committed", "file-placed", "settled"):
            reader = Archive.open(path)
            seen.append((reached, len(pq.read_table(reader.paths("trade")))))

    with Archive.writing(path) as archive:
        step(archive)
        monkeypatch.setattr(commits, "reached", look)
        step(archive)
    assert seen == [("staged", 10), ("synced", 10), ("committed", 20), *[("file-placed", 20)] * 4, ("settled", 20)]


def tree_of(path: Path) -> dict[str, tuple[int, int]]:
    return {str(each): (each.stat().st_ino, each.stat().st_mtime_ns) for each in path.rglob("*")}


def test_a_reader_changes_nothing_in_the_leftovers_of_a_writer(path: Path) -> None:
    with Archive.writing(path) as archive:
        step(archive)
        stage(archive.begin(), "trade", "2024-01-02", 0, [11, 12])
        before = tree_of(path)
        assert Archive.open(path).catalogue.number == 1
        assert tree_of(path) == before
    reader = Archive.open(path)  # the lock is free
    assert sorted(pq.read_table(reader.paths("trade")).column("seq").to_pylist()) == list(range(1, 11))
    assert tree_of(path) == before


@pytest.mark.parametrize("change", [compact_all, drop_old])
def test_replaced_files_stay_for_the_grace_period(path: Path, change: Callable[[Archive], object]) -> None:
    with Archive.writing(path) as archive:
        for date in ("2024-01-01", "2024-01-02", "2024-01-01"):
            step(archive, date)
        reader = Archive.open(path)
        before = reader.paths("trade")
        change(archive)
        step(archive)
        assert sorted(pq.read_table(before).column("seq").to_pylist()) == list(range(1, 31))
        assert pq.read_table(before).column_names == ["seq", "topic", "date", "stream"]
        assert Archive.open(path).paths("trade") != before
        assert not archive.expired(time.time_ns())
    with Archive.writing(path, grace_seconds=0.0) as archive:
        assert archive.catalogue.replaced
        step(archive)
        assert not archive.catalogue.replaced
    assert not any(Path(each).exists() for each in before if "2024-01-01" in each)
    check_whole(path) if change is compact_all else None
    with pytest.raises(FileNotFoundError):
        pq.read_table(before)


def test_a_table_without_streams_is_removed_with_its_last_date(path: Path) -> None:
    with Archive.writing(path) as archive:
        staging = archive.begin()
        files = [stage(staging, "quarantine", date, None, [1, 2]) for date in ("2023-12-31", "2024-01-01")]
        archive.commit(staging, "append", files=files, account=Account(), schemas={"quarantine": DDL})
        step(archive)
        assert drop_old(archive) is not None
        assert [info.name for info in archive.tables()] == ["quote", "trade"]
        step(archive)
    assert not (path / "quarantine").exists()
    assert not list((path / "_staging").iterdir())
    assert numbers_of(path, "trade") == list(range(1, 2 * ROWS + 1))


@pytest.mark.parametrize("has_exchange", [True, False])
def test_compaction_and_retention_keep_every_current_row_and_drop_every_expired_one(
    path: Path, monkeypatch: pytest.MonkeyPatch, has_exchange: bool
) -> None:
    if not has_exchange:
        monkeypatch.setattr(placing, "RENAME_EXCHANGE", 1 << 20)  # a flag that no file system knows
    with Archive.writing(path) as archive:
        for date in ("2024-01-01", "2024-01-02", "2024-01-01", "2024-01-02"):
            step(archive, date)
        before = {table: archive.tables()[0].rows for table in ("trade", "quote")}
        assert compact_all(archive) is not None
        assert [info.files for info in archive.tables()] == [4, 4]
        assert {table: archive.tables()[0].rows for table in before} == before
        file = archive.files("trade", dates=["2024-01-01"], streams=[0])[0]
        assert (file.commit_first, file.commit_last, file.seq_min, file.seq_max, file.rows) == (1, 3, 1, 29, 10)
        assert compact_all(archive) is None
        assert numbers_of(path, "trade") == list(range(1, 41))
        assert drop_old(archive) is not None
        assert numbers_of(path, "trade") == [*range(11, 21), *range(31, 41)]
        assert not (path / "trade" / "date=2024-01-01").exists()
        assert drop_old(archive) is None


def test_rows_that_a_derivation_has_not_read_are_not_compacted(path: Path) -> None:
    with Archive.writing(path) as archive:
        step(archive)
        step(archive)
        archive.commit(archive.begin(), "derive", derived={"bars": 2})
        step(archive)
        assert {file.commit_last for group in small_files(archive) for file in group.files} == {1, 2}


@pytest.mark.spec("PIPE-6")
def test_a_following_writer_keeps_the_number_of_files_small(path: Path) -> None:
    with Archive.writing(path, grace_seconds=0.0) as archive:
        rewritten = 0
        for number in range(1, 101):
            step(archive)
            if number % 5 == 0:
                archive.commit(archive.begin(), "derive", derived={"bars": archive.catalogue.number + 1})
            groups = crowded_files(archive)
            rewritten += sum(file.rows for group in groups for file in group.files)
            if groups:
                compact(archive, groups)
            assert max(len(archive.files(table, streams=[0])) for table in ("trade", "quote")) <= CROWD + 5
        assert rewritten <= 10 * 2 * ROWS * 100
    assert check_whole(path) == 1_000
    assert len(list((path / "_files").rglob("*.parquet"))) < 100


def test_files_on_both_sides_of_a_derivations_position_are_not_merged(path: Path) -> None:
    with Archive.writing(path) as archive:
        step(archive)
        step(archive)
        archive.commit(archive.begin(), "derive", derived={"bars": 3})
        step(archive)
        archive.commit(archive.begin(), "derive", derived={"bars": 5})
        step(archive)
        step(archive)
        merged = {tuple(file.commit_first for file in group.files) for group in small_files(archive)}
        assert merged == {(1, 2, 4), (6, 7)}


def test_the_state_file_saves_reading_every_commit_and_is_optional(path: Path) -> None:
    with Archive.writing(path) as archive:
        archive.commit(archive.begin(), "append", schemas={"trade": DDL})
        for _ in range(2 * STATE_INTERVAL + 2):
            archive.commit(archive.begin(), "append")
        expected = archive.catalogue
    log = CommitLog(path / "_commits")
    assert log.read() == expected
    newest = path / "_commits" / state_name(2 * STATE_INTERVAL)
    newest.write_bytes(newest.read_bytes()[:-20])
    assert log.read() == expected, "a damaged state is not used"
    assert log.prune() == 0, "and no file that is needed without the state is removed"
    newest.unlink()
    with Archive.writing(path) as archive:
        for _ in range(STATE_INTERVAL):
            archive.commit(archive.begin(), "append")
        assert archive.prune_log() > 0
        expected = archive.catalogue
    assert log.read() == expected


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: text[:-5], "document is invalid"),
        (lambda text: text.replace(b'"rows":5', b'"rows":6', 1), "wrong checksum"),
        (lambda text: b"\xff\xfe", "document is invalid"),
        (lambda text: b"", "document is invalid"),
    ],
)
def test_a_damaged_document_is_reported_and_nothing_changes(path: Path, damage: object, says: str) -> None:
    with Archive.writing(path) as archive:
        step(archive)
        step(archive)
    document = path / "_commits" / commit_name(1)
    document.write_bytes(damage(document.read_bytes()))  # type: ignore[operator]
    for open_it in (Archive.open, Archive.writing):
        with pytest.raises(ArchiveCorruptError, match=says) as caught:
            open_it(path)
        assert commit_name(1) in caught.value.where
    document.unlink()
    with pytest.raises(ArchiveCorruptError, match="missing"):
        Archive.open(path)
    assert numbers_of(path, "trade") == list(range(1, 21))


def test_wrong_directories_and_newer_archives_are_refused(path: Path) -> None:
    with pytest.raises(ArchiveError, match="holds no archive"):
        Archive.open(path)
    path.mkdir()
    (path / "letters.txt").write_text("private")
    with pytest.raises(ArchiveError, match="not empty"):
        Archive.writing(path)
    (path / "letters.txt").unlink()
    with Archive.writing(path) as archive:
        step(archive)
        with pytest.raises(NotFoundError, match="unknown table 'bond'") as caught:
            archive.files("bond")
        assert "quote, trade" in caught.value.hint
    document = path / "_commits" / commit_name(1)
    document.write_bytes(document.read_bytes().replace(b'{"version":2', b'{"version":3', 1))
    with pytest.raises(ArchiveError, match="has version 3"):
        Archive.open(path)
    (path / "_archive.json").write_text(json.dumps({"format": "penstock archive", "version": 9}))
    with pytest.raises(ArchiveError, match="has version 9"):
        Archive.writing(path)
    (path / "_archive.json").write_text(json.dumps({"format": "penstock archive", "version": 1}))
    with pytest.raises(ArchiveError, match=r"has version 1.*reads version 2"):
        Archive.open(path)


def test_a_disk_that_fills_during_a_commit_leaves_no_partial_commit(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Archive.writing(path) as archive:
        step(archive)

        def full(document: object, target: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(commits.os, "link", full)
            with pytest.raises(ArchiveFullError, match="No space left"):
                step(archive)
        assert check_whole(path) == 10
        step(archive)
    assert check_whole(path) == 20


def fail_in(path: Path, *, steps: int = 0) -> None:
    with Archive.writing(path) as archive:
        for _ in range(steps):
            step(archive)
        raise RuntimeError("something failed")


def test_an_archive_created_for_a_failed_run_is_removed(path: Path) -> None:
    with pytest.raises(RuntimeError):
        fail_in(path)
    assert not path.exists()
    path.mkdir()
    (path / "_notes").write_text("mine")
    with pytest.raises(RuntimeError):
        fail_in(path)
    assert [each.name for each in path.iterdir()] == ["_notes"], "only created files are removed"
    with pytest.raises(RuntimeError):
        fail_in(path, steps=1)
    assert check_whole(path) == 10, "committed rows stay"
    with pytest.raises(RuntimeError):
        fail_in(path)
    assert check_whole(path) == 10, "an archive that existed before also stays"


def test_the_list_of_tables_says_how_far_each_source_is_read(path: Path) -> None:
    with Archive.writing(path) as archive:
        sources = {
            "journal:/captured.d": {"last": 12_345},
            "feed:0a1b": {"path": "day.itch", "slices": 4, "of": 4, "stream": 1, "date": "2024-01-02", "venue": "XNAS"},
            "feed:2c3d": {"path": "next.itch", "slices": 1, "of": 4, "stream": 2, "date": "", "venue": "XNAS"},
        }
        archive.commit(archive.begin(), "append", sources=sources)
    lines = CliRunner().invoke(app, ["tables", str(path)], catch_exceptions=False).output.splitlines()
    assert lines[1:] == [
        "feed day.itch (stream 1, 2024-01-02, XNAS): all of it",
        "feed next.itch (stream 2, XNAS): 1 of 4 slices; run the same command to continue",
        "journal /captured.d: up to record 12,345",
        "1 commits",
    ]
