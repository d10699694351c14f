"""Files of a commit are put where readers look for them: again and again if need be, with the same result.

A commit counts from its document on. Its files then move from the staging directory into the tables. Whoever is killed
in between leaves the staging directory behind, and the next one that opens the archive ends the work. Appended files
are renamed one by one. Where files are replaced, a whole directory is: a new one is exchanged for the old one in one
step, so that a reader of plain Parquet sees the old files or the new ones, never both and never neither.
"""

import ctypes
import errno
import os
import shutil
from pathlib import Path

from penstock.base.errors import ArchiveCorruptError
from penstock.spark.pipeline import commits
from penstock.spark.pipeline.commits import Commit, FileEntry, cannot, sync_directory

AT_FDCWD = -100
RENAME_EXCHANGE = 2

STATES = "_state"
"""Where derivations keep what their next step begins with."""

TRASH = "_removed"
"""Within a staging directory: what a commit took away."""


def place(root: Path, staging: Path, commit: Commit) -> None:
    """Everything of a commit in its place, and the staging directory gone."""
    try:
        for file in staged_files(commit) if not commit.removed else ():
            _place_file(root, staging, file, commit)
            commits.reached("file-placed")
        for directory in sorted({path.rpartition("/")[0] for path in commit.removed}):
            _replace_directory(root, staging, directory, commit)
            commits.reached("directory-replaced")
        for directory in {file.directory for file in staged_files(commit)}:
            sync_with_parents(root, root / directory)
        for table in {path.partition("/")[0] for path in commit.removed}:
            sync_directory(root / table if (root / table).exists() else root)
        remove_old_states(root, commit)
        commits.reached("placed")
        shutil.rmtree(staging)
    except OSError as error:
        failed = cannot(f"put the files of commit {commit.number} in place", root, error)
        failed.hint = "the commit counts; the next run ends this work"
        raise failed from None


def staged_files(commit: Commit) -> list[FileEntry]:
    return [*commit.files, *(file for files in commit.carried.values() for file in files)]


def make_directories(root: Path, commit: Commit) -> None:
    """Before the commit counts: a disk without room for them is found out in time."""
    for directory in {file.directory for file in staged_files(commit)}:
        (root / directory).mkdir(parents=True, exist_ok=True)


def prepare_replacement(root: Path, staging: Path, commit: Commit) -> None:
    """The directories that are exchanged: beside the new files, those that stay (as further names of the same)."""
    removed = set(commit.removed)
    for directory in {path.rpartition("/")[0] for path in removed}:
        for name in os.listdir(root / directory):
            if f"{directory}/{name}" in removed:
                continue
            (staging / directory).mkdir(parents=True, exist_ok=True)
            os.link(root / directory / name, staging / directory / name)


def sync_staged(staging: Path, commit: Commit) -> None:
    """The names of the staged files are on the disk; their contents are already."""
    for directory in {file.directory for file in staged_files(commit)}:
        sync_with_parents(staging.parent, staging / directory)


def sync_with_parents(top: Path, directory: Path) -> None:
    for each in (directory, *directory.parents):
        sync_directory(each)
        if each == top:
            return


def remove_old_states(root: Path, commit: Commit) -> None:
    """States of derivations that this commit's replace."""
    for name, files in commit.carried.items():
        kept = {root / file.path for file in files}
        for path in (root / STATES / name).glob("*.parquet"):
            if path not in kept:
                path.unlink()


def _place_file(root: Path, staging: Path, file: FileEntry, commit: Commit) -> None:
    try:
        os.rename(staging / file.path, root / file.path)
    except FileNotFoundError:
        if not (root / file.path).exists():
            raise ArchiveCorruptError(
                f"commit {commit.number} has this file, which is neither there nor in {staging.name}",
                where=str(root / file.path),
                hint="restore it from a copy",
            ) from None


def _replace_directory(root: Path, staging: Path, directory: str, commit: Commit) -> None:
    """Done already if nothing of what the commit removed is there any more."""
    live, new = root / directory, staging / directory
    if new.exists() and not live.exists():  # killed between the two steps of a file system that cannot exchange
        os.rename(new, live)
    if not any((root / path).exists() for path in commit.removed if path.rpartition("/")[0] == directory):
        return
    if new.exists():
        exchange(new, live)
        return
    old = staging / TRASH / directory
    old.parent.mkdir(parents=True, exist_ok=True)
    os.rename(live, old)
    if live.parent != root and not any(live.parent.iterdir()):
        live.parent.rmdir()  # the last stream of a date, or the last date of a table that has no streams


def exchange(one: Path, other: Path) -> None:
    """Two directories change their names in one step; where the file system cannot, in two."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
        return
    number = ctypes.get_errno()
    if number not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        raise OSError(number, os.strerror(number))
    aside = one.with_name(f"{one.name}.old")
    os.rename(other, aside)
    os.rename(one, other)
