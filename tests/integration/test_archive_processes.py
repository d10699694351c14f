"""An archive's writer is killed with -9 at every step of its protocol; the next writer or reader finds each row
once."""

import multiprocessing
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from children import child_environment
from integration.archive_writer import main
from penstock.spark.pipeline.archive.archive import Archive
from unit.archive_kit import check_whole, numbers_of, step
from waiting import PATIENCE_SECONDS

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["integration.archive_writer"])
STEPS = {
    "append": ("staged", "synced", "commit-written", "commit-linked", "committed", "file-placed", "placed", "settled"),
    "compact": ("merged", "staged", "synced", "commit-linked", "committed", "directory-replaced", "placed", "settled"),
    "replace": ("staged", "synced", "commit-linked", "committed", "directory-replaced", "placed", "settled"),
    "retain": ("staged", "synced", "commit-linked", "committed", "directory-replaced", "placed", "settled"),
}
COMMITTED = ("commit-linked", "committed", "file-placed", "directory-replaced", "placed", "settled")


def run(path: Path, action: str, wanted: str = "", count: int = 1) -> int:
    """Run the step in a process of its own, forked from one that has already imported everything."""
    process = PROCESSES.Process(target=main, args=(str(path), action, wanted, str(count)))
    process.start()
    process.join(timeout=PATIENCE_SECONDS)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode


def rows_of(path: Path) -> list[int]:
    """The rows that a reader finds by the catalogue, whatever the state of the tables' directories."""
    return sorted(pq.read_table(Archive.open(path).paths("trade")).column("seq").to_pylist())


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "filled"
    with Archive.writing(path) as archive:
        for date in ("2024-01-01", "2024-01-02", "2024-01-02"):
            step(archive, date)
    return path


@pytest.mark.spec("PIPE-6")
@pytest.mark.parametrize("action", STEPS)
def test_a_writer_killed_at_any_step_leaves_an_archive_that_is_whole(tmp_path: Path, filled: Path, action: str) -> None:
    for wanted in STEPS[action]:
        path = tmp_path / wanted
        shutil.copytree(filled, path)
        assert run(path, action, wanted, 2 if wanted in ("file-placed", "directory-replaced") else 1) != 0, wanted
        is_done = wanted in COMMITTED
        changed = {"append": 40, "compact": 30, "replace": 30, "retain": 20}[action]
        assert len(rows_of(path)) == (changed if is_done else 30), wanted
        # the writer that finishes the commit may be killed, too
        for again in ("file-placed", "directory-replaced", "placed", "nothing"):
            run(path, "open", again)
        last = check_whole(path, 11 if action == "retain" and is_done else 1)
        assert last == (40 if action == "append" and is_done else 30), wanted
        files = len(list((path / "trade").rglob("*.parquet")))
        assert files == (6 if not is_done else 8 if action == "append" else 4)
        assert run(path, action) == 0, "and the work can be done"
        assert check_whole(path, 11 if action == "retain" else 1) >= 30


def test_a_full_disk_commits_nothing_by_half(tmp_path: Path, project: Path) -> None:
    """A real full disk: 300 KiB of tmpfs in a mount namespace of its own, where that is permitted."""
    script = f"""
import sys
from penstock.base.errors import ArchiveFullError
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.archive.commits import cannot
from unit.archive_kit import check_whole, step
from pathlib import Path
path = Path({str(tmp_path)!r}) / "archive"
with Archive.writing(path) as archive:
    done = 0
    try:
        for done in range(1000):
            try:
                step(archive)
            except OSError as error:
                raise cannot("write", path, error) from None
    except ArchiveFullError as error:
        assert "No space left" in str(error), error
    else:
        raise SystemExit("the disk never filled")
(Path({str(tmp_path)!r}) / "ballast").unlink()
Archive.writing(path).close()
assert check_whole(path) == 10 * done > 0, done
with Archive.writing(path) as archive:
    step(archive)
assert check_whole(path) == 10 * done + 10
"""
    mount = f"mount -t tmpfs -o size=1m tmpfs {tmp_path} && head -c 700000 /dev/zero > {tmp_path}/ballast"
    allowed = subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True)
    if allowed.returncode:
        pytest.skip(f"no mount namespace here: {allowed.stderr.decode().strip()}")
    command = ["unshare", "-rm", "sh", "-c", f'{mount} && exec "$0" -c "$1"', sys.executable, script]
    environment = child_environment()
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stderr


def test_plain_readers_agree(filled: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    expected = numbers_of(filled, "trade")
    assert sorted(pandas.read_parquet(filled / "trade")["seq"]) == expected
    assert sorted(polars.read_parquet(filled / "trade")["seq"].to_list()) == expected
    found = duckdb.sql(f"select seq, stream, date from read_parquet('{filled}/trade/**/*.parquet')").fetchall()
    assert sorted(row[0] for row in found) == expected
    assert {row[1] for row in found} == {0, 1}


def test_a_slice_that_finds_no_room_says_so_and_leaves_no_file(tmp_path: Path, project: Path) -> None:
    script = f"""
import resource
from datetime import date
from pathlib import Path
from penstock.feed.core.play.generator import GeneratorConfig, ItchGenerator
from penstock.spark.feedindex import plan_slices
from penstock.spark.feedslices import Conversion
from penstock.spark.pipeline.archive.archive import Archive
from penstock.base.errors import ArchiveFullError
from penstock.spark.pipeline.failures import Failure, attempt
from penstock.spark.pipeline.work import write_slice
folder = Path({str(tmp_path)!r})
generator = ItchGenerator(GeneratorConfig(seed=1, symbols=10, messages=20_000))
with (folder / "day.itch").open("wb") as file:
    while blocks := bytes(generator.blocks()):
        file.write(blocks)
(piece,) = plan_slices(folder / "day.itch", conversion=Conversion("itch", 1, "2024-01-02"), cache=folder / "cache")
with Archive.writing(folder / "archive") as archive:
    staging = archive.begin()
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    failure = attempt(staging, lambda: write_slice(staging, piece))
    assert isinstance(failure, Failure), failure
    assert isinstance(failure.error(), ArchiveFullError) and "File too large" in str(failure.error()), failure
    assert not list(staging.path.rglob("*.parquet"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert write_slice(staging, piece).account.is_balanced
"""
    environment = child_environment()
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
