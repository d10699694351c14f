"""The files of a commit: where they are kept, and the directories that readers of plain Parquet list.

Every file has its place below `_files` before its commit counts. A file that a later commit replaces keeps this place
for the grace period of its archive, so readers of an earlier commit still find it.

The directories of the tables are a view of the last commit: hard links to the files below `_files`. The view changes
after the commit point. A killed writer leaves its staging directory behind, and the next writer finishes the work; it
makes no difference how often this is repeated. New files are linked one by one. Where files are replaced, a new
directory is exchanged for the old one in one step: a reader lists the old files or the new ones, never both.
"""

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from penstock.base.errors import ArchiveCorruptError
from penstock.base.files import make_directory
from penstock.spark.pipeline.archive import commits
from penstock.spark.pipeline.archive.commits import Commit, FileEntry, sync_directory

AT_FDCWD = -100
RENAME_EXCHANGE = 2

FILES = "_files"
"""The directory of all files that a commit names."""

STATES = "_state"
"""The tables of the states that derivations carry to their next step; they have no view."""

VIEW = "_view"
"""Within a staging directory: directories that are about to be exchanged for those of the view."""

TRASH = "_removed"
"""Within a staging directory: directories that have left the view."""


def kept(root: Path, path: str) -> Path:
    """Where the file of a commit is, from before its commit counts until its grace period is over."""
    return root / FILES / path


def staged_files(commit: Commit) -> list[FileEntry]:
    return [*commit.files, *(file for files in commit.carried.values() for file in files)]


# Before the commit counts


def keep_files(root: Path, staging: Path, commit: Commit) -> None:
    """Link the staged files to their places and sync these names; the contents of the files are synced already.

    The directories of the view are made, too: a disk without room for them is noticed in time.
    """
    for file in commit.files:
        make_directory(root / file.directory)
    for file in staged_files(commit):
        target = kept(root, file.path)
        make_directory(target.parent)
        os.link(staging / file.path, target)
    _sync_with_parents(root, (f"{FILES}/{file.directory}" for file in staged_files(commit)))


def discard(root: Path, staging: Path) -> None:
    """Remove the files of a commit that was not made."""
    for directory, _, names in os.walk(staging):
        for name in names:
            path = os.path.relpath(os.path.join(directory, name), staging)
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                kept(root, path).unlink()
    shutil.rmtree(staging, ignore_errors=True)  # a task of a killed run may still be writing there


# After the commit point; all of it may be repeated


def settle(root: Path, staging: Path, commit: Commit) -> None:
    """Bring the view up to date, remove files whose grace period is over, and remove the staging directory."""
    exchanged = exchanged_directories(commit)
    for directory in exchanged:
        _replace_directory(root, staging, directory, commit)
        commits.reached("directory-replaced")
    for file in commit.files:
        if not _is_below(file.directory, exchanged):
            _show_file(root, file, commit)
            commits.reached("file-placed")
    _sync_with_parents(root, (file.directory for file in commit.files))
    for table in {path.partition("/")[0] for path in commit.removed}:
        sync_directory(root / table if (root / table).exists() else root)
    _remove_expired(root, commit)
    _remove_old_states(root, commit)
    commits.reached("placed")
    shutil.rmtree(staging)


def exchanged_directories(commit: Commit) -> list[str]:
    """The directories of the view that change by an exchange.

    A commit that puts other rows in the place of old ones changes each table in one step: the directory that has all
    its changes is exchanged. Elsewhere every partition is exchanged for itself.
    """
    directories = {path.rpartition("/")[0] for path in commit.removed}
    if commit.kind != "replace":
        return sorted(directories)
    changed: dict[str, list[str]] = {}
    for directory in [*directories, *(file.directory for file in commit.files)]:
        changed.setdefault(directory.partition("/")[0], []).append(directory)
    tables = {directory.partition("/")[0] for directory in directories}
    return sorted(os.path.commonpath(changed[table]) for table in tables)


def _show_file(root: Path, file: FileEntry, commit: Commit) -> None:
    target = root / file.path
    try:
        make_directory(target.parent)
        os.link(kept(root, file.path), target)
    except FileExistsError:
        return
    except FileNotFoundError:
        raise ArchiveCorruptError(
            f"file of commit {commit.number} is missing",
            where=str(kept(root, file.path)),
            hint="restore it from a copy",
        ) from None


def _replace_directory(root: Path, staging: Path, directory: str, commit: Commit) -> None:
    live, new = root / directory, staging / VIEW / directory
    if new.exists() and not live.exists():  # killed between the two renames of a file system that cannot exchange
        os.rename(new, live)
    added = [file for file in commit.files if _is_below(file.directory, [directory])]
    removed = {path for path in commit.removed if _is_below(path, [directory])}
    if not any((root / path).exists() for path in removed):  # exchanged already
        for file in added:
            _show_file(root, file, commit)
        return
    shutil.rmtree(new, ignore_errors=True)
    names = [(path, root / path) for path in _paths_below(root, directory) if path not in removed]
    for path, source in [*names, *((file.path, kept(root, file.path)) for file in added)]:
        target = staging / VIEW / path
        make_directory(target.parent)
        os.link(source, target)
    if new.exists():
        for each, _, _ in os.walk(new):
            sync_directory(Path(each))
        exchange(new, live)
        return
    old = staging / TRASH / directory
    make_directory(old.parent)
    os.rename(live, old)
    parent = live.parent
    while parent != root and not any(parent.iterdir()):  # the last stream of a date, the last date of a table
        parent.rmdir()
        parent = parent.parent


def _paths_below(root: Path, directory: str) -> Iterator[str]:
    for folder, _, names in os.walk(root / directory):
        for name in names:
            yield os.path.relpath(os.path.join(folder, name), root)


def _is_below(path: str, directories: Iterable[str]) -> bool:
    return any(path == each or path.startswith(f"{each}/") for each in directories)


def _remove_expired(root: Path, commit: Commit) -> None:
    """Remove the files that a commit long ago replaced, and directories that are empty without them."""
    for path in commit.expired:
        kept(root, path).unlink(missing_ok=True)
    for directory in {path.rpartition("/")[0] for path in commit.expired}:
        with contextlib.suppress(OSError):  # not empty
            while directory:
                kept(root, directory).rmdir()
                directory = directory.rpartition("/")[0]


def _remove_old_states(root: Path, commit: Commit) -> None:
    """Remove states of derivations that those of this commit replace; only the writer reads them."""
    for name, files in commit.carried.items():
        current = {kept(root, file.path) for file in files}
        for path in kept(root, f"{STATES}/{name}").glob("*.parquet"):
            if path not in current:
                path.unlink()


def _sync_with_parents(root: Path, directories: Iterable[str]) -> None:
    """Sync these directories below `root` and all between, each of them once."""
    found = {root}
    for directory in directories:
        path = root / directory
        while path not in found:
            found.add(path)
            path = path.parent
    for path in sorted(found, key=lambda each: len(each.parts), reverse=True):
        sync_directory(path)


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
