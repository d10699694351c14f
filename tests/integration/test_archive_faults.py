"""Archives on disks and file servers that fail: a commit that may have been made is never undone."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from children import child_environment
from integration.failing_syncs import LINKS, failing_syncs, preload
from penstock.spark.pipeline.archive.archive import Archive
from unit.archive_kit import check_whole, step
from waiting import PATIENCE_SECONDS

WRITER = """
import os, sys
from pathlib import Path
from penstock.base.errors import ArchiveError, ArchiveUnsettledError
from penstock.spark.pipeline.archive import commits
from penstock.spark.pipeline.archive.archive import Archive
from unit.archive_kit import step

def reached(name):
    if name == os.environ.get("FAIL_FROM"):
        Path(os.environ["SYNCS_FAIL"]).touch()

commits.reached = reached
try:
    with Archive.writing(sys.argv[1]) as archive:
        try:
            step(archive)
        except ArchiveUnsettledError:
            try:
                archive.begin()
            except ArchiveUnsettledError as error:
                print("refused:", error)  # a caller that goes on
            raise
except ArchiveError as error:
    print(error.code, error)
"""


def write(path: Path, project: Path) -> list[str]:
    """Commit in another process, and return its output."""
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(path)],
        cwd=project, env=child_environment(), capture_output=True, text=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.spec("PIPE-6", "PROOF-2")
@pytest.mark.parametrize("steps_before", [0, 1])
@pytest.mark.parametrize("since", ["commit-linked", "committed", "file-placed"])
def test_a_commit_stays_when_a_sync_fails_behind_its_commit_point(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch, since: str, steps_before: int
) -> None:
    path = tmp_path / "archive"
    if steps_before:
        with Archive.writing(path) as archive:
            step(archive)
    failing = failing_syncs(tmp_path, monkeypatch)
    monkeypatch.setenv("FAIL_FROM", since)
    refused, failed = write(path, project)
    assert refused.startswith("refused")
    assert failed.startswith("archive-unsettled")
    assert "Input/output error" in failed
    assert Archive.open(path).catalogue.number == steps_before + 1, "readers see it"
    assert write(path, project)[-1].startswith("archive"), "a disk that still fails is no reason to remove anything"
    failing.unlink()
    monkeypatch.delenv("FAIL_FROM")
    assert write(path, project) == []
    assert check_whole(path) == 10 * (steps_before + 2)


@pytest.mark.parametrize("fails", ["synced", "commit-written"])
def test_a_commit_before_its_commit_point_is_removed_when_a_sync_fails(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """The document cannot be written; with `commit-written`, the sync after the link fails."""
    path = tmp_path / "archive"
    failing = failing_syncs(tmp_path, monkeypatch)
    monkeypatch.setenv("FAIL_FROM", fails)
    last = write(path, project)[-1]
    failing.unlink()
    monkeypatch.delenv("FAIL_FROM")
    assert last.startswith("archive-unsettled" if fails == "commit-written" else "archive ")
    assert write(path, project) == []
    assert check_whole(path) == (20 if fails == "commit-written" else 10)


@pytest.mark.spec("PIPE-6")
@pytest.mark.parametrize(
    ("number", "happens", "says"),
    [
        (errno.EEXIST, True, ""),  # the reply was lost, and the repeated request found the name
        (errno.EIO, True, ""),
        (errno.EDQUOT, True, ""),
        (errno.EIO, False, "archive-unsettled"),
        (errno.ETIMEDOUT, False, "archive-unsettled"),
        (errno.EDQUOT, False, "archive-full"),
        (errno.EROFS, False, "archive "),
    ],
)
def test_a_link_whose_reply_is_lost_is_judged_by_what_is_there(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch, number: int, happens: bool, says: str
) -> None:
    path = tmp_path / "archive"
    with Archive.writing(path) as archive:
        step(archive)
    preload(tmp_path, monkeypatch, LINKS)
    with monkeypatch.context() as patch:
        patch.setenv("LINK_FAILS", str(number))
        if happens:
            patch.setenv("LINK_HAPPENS", "yes")
        told = write(path, project)
    assert (not told) if not says else told[-1].startswith(says), told
    is_left = bool(list((path / "_staging").iterdir()))
    assert is_left == (says == "archive-unsettled"), "files are removed only if the commit cannot have been made"
    Archive.writing(path).close()
    assert check_whole(path) == (20 if happens else 10)
