"""An archive: a directory of Parquet tables that change by commits, each of which counts for all tables or for none.

    with Archive.writing(path) as archive:
        staging = archive.begin()
        ...                                            # files below staging.path, by whoever writes them
        archive.commit(staging, "append", files=files, account=account)

    archive = Archive.open(path)                       # a reader: what is committed now
    archive.frame(spark, "trade", dates=["2024-01-02"])
    pandas.read_parquet(archive.paths("trade"))

One process writes; others are refused. A writer first finishes or removes what a killed one left. Readers never write;
the files of the commit that they opened stay for the grace period. protocol/archive.md describes every file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import (
    ArchiveCorruptError,
    ArchiveError,
    ArchiveLockedError,
    ArchiveUnsettledError,
    NotFoundError,
)
from penstock.base.files import create_or_open, make_directory, write_file
from penstock.base.log import logger
from penstock.spark.pipeline.archive import commits
from penstock.spark.pipeline.archive.commits import (
    VERSION,
    Account,
    Catalogue,
    Commit,
    CommitKind,
    CommitLog,
    FileEntry,
    cannot,
    sync_directory,
    wrong_version,
)
from penstock.spark.pipeline.archive.placing import FILES, STATES, discard, keep_files, kept, settle
from penstock.spark.pipeline.archive.schemas import evolved

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MARK = "_archive.json"
LOCK = "_lock"
COMMITS = "_commits"
STAGING = "_staging"
FORMAT = "penstock archive"

LOCK_SECONDS = 0.5
"""How long a writer waits for the lock: an audit, for one, holds it for a moment only."""

GRACE_SECONDS = 3_600.0
"""How long the files that a commit replaced or removed stay for those who opened the archive before it."""

log = logger("archive")


class TableInfo(msgspec.Struct, frozen=True):
    """What the catalogue says about a table."""

    name: str
    rows: int
    files: int
    size: int
    first_date: str
    last_date: str
    streams: int


class Staging(msgspec.Struct, frozen=True):
    """Where the files of the next commit are written: `path` mirrors the archive's directory."""

    root: str
    run: str
    number: int
    """Of the commit that is to be."""

    @property
    def path(self) -> Path:
        return Path(self.root) / STAGING / self.run

    def new_file(self, directory: str) -> str:
        """A path that nobody else has, counted from the archive; tasks that are run twice do not meet."""
        return f"{directory}/part-{self.number:08}-{secrets.token_hex(6)}.parquet"


class _Mark(msgspec.Struct):
    format: str
    version: int


class Archive:
    """Made by open() to read, by writing() to write. `catalogue` is what was committed when it was opened."""

    def __init__(self, path: Path, lock_fd: int, *, is_new: bool = False, grace_seconds: float = GRACE_SECONDS) -> None:
        self.path = path
        self._is_new = is_new
        self._grace_seconds = grace_seconds
        self._unsettled = 0
        """Number of an unfinished commit whose outcome may be unknown."""
        self.catalogue = Catalogue()
        self.tried: dict[str, frozenset[tuple[int, int]]] = {}
        """By path of a file of the table `raw`: the models (id, version) that cannot read what the file has."""
        self._lock_fd = lock_fd
        self._log = CommitLog(path / COMMITS)

    @staticmethod
    def open(path: str | Path) -> Archive:
        """Open to read. Nothing is written, and the lock is not taken."""
        archive = Archive(_checked(Path(path)), -1)
        archive.refresh()
        return archive

    @staticmethod
    def writing(path: str | Path, *, grace_seconds: float = GRACE_SECONDS) -> Archive:
        """Open to write, alone; a new archive is made if there is none. What a killed writer left is finished.

        Files that commits of this writer replace stay for at least `grace_seconds`.
        """
        root = Path(path)
        try:
            is_new = _create(root)
            archive = Archive(_checked(root), _locked(root), is_new=is_new, grace_seconds=grace_seconds)
        except NotADirectoryError:
            raise ArchiveError(
                "is a file, and an archive is a directory",
                where=str(root),
                hint="name a directory, new or an archive's",
            ) from None
        except OSError as error:
            raise cannot("open the archive", root, error) from None
        try:
            archive._recover()
        except OSError as error:
            archive.close()
            raise cannot("open the archive", root, error) from None
        except BaseException:
            archive.close()
            raise
        return archive

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """An archive that was made for something that failed, and that has no commit, is removed."""
        if kind is not None and self._is_new and not self.catalogue.number and not self._unsettled:
            for name in (MARK, LOCK):
                (self.path / name).unlink(missing_ok=True)
            for name in (COMMITS, STAGING, FILES):
                shutil.rmtree(self.path / name, ignore_errors=True)
            for each in os.walk(self.path, topdown=False):  # directories of partitions that got no file
                with contextlib.suppress(OSError):  # somebody else has put something there
                    os.rmdir(each[0])
        self.close()

    def close(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def refresh(self) -> None:
        """Read what is committed now."""
        self.catalogue = self._log.read()

    # Reading

    def tables(self) -> list[TableInfo]:
        """The tables that have files."""
        return [_info(name, files.values()) for name, files in sorted(self.catalogue.files.items()) if files]

    def files(
        self, table: str, *, dates: Collection[str] | None = None, streams: Collection[int] | None = None
    ) -> list[FileEntry]:
        """The files of a table, in the order of their commits."""
        if table not in self.catalogue.schemas:
            known = ", ".join(sorted(self.catalogue.schemas)) or "none yet"
            raise NotFoundError(f"there is no table {table!r}", where=str(self.path), hint=f"tables: {known}")
        return [
            file
            for file in sorted(self.catalogue.files.get(table, {}).values(), key=lambda each: each.path)
            if (dates is None or file.date in dates) and (streams is None or file.stream in streams)
        ]

    def paths(
        self, table: str, *, dates: Collection[str] | None = None, streams: Collection[int] | None = None
    ) -> list[str]:
        """The files of exactly the committed rows, for any reader of Parquet; `date` and `stream` are in the paths.

        The files stay for the grace period after a later commit replaces them, unlike those of the table's directory.
        """
        return [str(kept(self.path, file.path)) for file in self.files(table, dates=dates, streams=streams)]

    def frame(
        self,
        spark: SparkSession,
        table: str,
        *,
        dates: Collection[str] | None = None,
        streams: Collection[int] | None = None,
    ) -> DataFrame:
        """Exactly the committed rows of a table, with its partitions as columns."""
        return self.frame_of(spark, table, self.files(table, dates=dates, streams=streams))

    def frame_of(self, spark: SparkSession, table: str, files: Iterable[FileEntry]) -> DataFrame:
        """The rows of some of its files."""
        return read_frame(spark, self.path / FILES, table, files, self.catalogue.schemas[table])

    # Writing

    def begin(self) -> Staging:
        """A place for the files of the next commit."""
        self._require_lock()
        number = self.catalogue.number + 1
        staging = Staging(str(self.path.absolute()), f"{number:08}-{secrets.token_hex(6)}", number)
        try:
            make_directory(staging.path)
        except OSError as error:
            raise cannot("begin a commit", staging.path, error) from None
        return staging

    def abandon(self, staging: Staging) -> None:
        """Remove the files of a commit that is not made."""
        discard(self.path, staging.path)

    def commit(
        self,
        staging: Staging,
        kind: CommitKind,
        *,
        files: Iterable[FileEntry] = (),
        removed: Iterable[str] = (),
        account: Account | None = None,
        schemas: Mapping[str, str] | None = None,
        **what: Any,
    ) -> Commit:
        """Make a commit of these files; `what` are further keys of a Commit.

        After ArchiveUnsettledError the commit was made or may have been made, and this writer refuses further work;
        reopening the archive finishes the commit. After any other error the commit was not made, and its files are
        removed.
        """
        self._require_lock()
        made_ns = time.time_ns()
        try:
            changed = self._changed_schemas(schemas or {})
        except ArchiveError:
            self.abandon(staging)
            raise
        commit = Commit(
            number=staging.number,
            kind=kind,
            run=staging.run,
            made_ns=made_ns,
            files=list(files),
            removed=list(removed),
            expired=self.expired(made_ns),
            account=account or Account(),
            schemas=changed,
            **what,
        )
        commits.reached("staged")
        try:
            keep_files(self.path, staging.path, commit)
        except OSError as error:
            self.abandon(staging)
            raise cannot("commit", self.path, error) from None
        commits.reached("synced")
        self._unsettled = commit.number
        try:
            self._log.append(commit)
        except ArchiveUnsettledError:
            raise
        except ArchiveError:
            self._unsettled = 0
            self.abandon(staging)
            raise
        commits.reached("committed")
        self._settle(staging.path, commit)
        commits.reached("settled")
        self._unsettled = 0
        self.catalogue.take(commit)
        self._note_state()
        return commit

    def _changed_schemas(self, schemas: Mapping[str, str]) -> dict[str, str]:
        """Schemas that are new or changed; a table keeps its columns, even if the new rows do not have all of them."""
        known = self.catalogue.schemas
        merged = {
            table: evolved(table, known[table], ddl) if table in known and not table.startswith(STATES) else ddl
            for table, ddl in schemas.items()
        }
        return {table: ddl for table, ddl in merged.items() if known.get(table) != ddl}

    def expired(self, now_ns: int) -> list[str]:
        """The replaced files whose grace period is over; the next commit removes them."""
        limit_ns = now_ns - int(self._grace_seconds * NS_PER_SECOND)
        return [path for path, replaced_ns in self.catalogue.replaced.items() if replaced_ns <= limit_ns]

    def _settle(self, staging: Path, commit: Commit) -> None:
        try:
            settle(self.path, staging, commit)
        except OSError as error:
            raise ArchiveUnsettledError(
                f"cannot bring the tables' directories up to commit {commit.number}: {error.strerror or error}",
                where=str(self.path),
                hint="the commit counts; the next run finishes it",
            ) from None

    def _note_state(self) -> None:
        try:
            self._log.note_state(self.catalogue)
        except OSError as error:
            log.warning("state_not_written", path=str(self.path), error=error.strerror)

    def prune_log(self) -> int:
        """Documents that nobody needs are removed; how many."""
        self._require_lock()
        return self._log.prune()

    def _recover(self) -> None:
        self._log.remove_unfinished()  # first: a link of them that is still on its way to a file server then fails
        self.catalogue = self._log.read()
        left = sorted((self.path / STAGING).iterdir())
        if left:
            sync_directory(self._log.path)  # the last writer may have failed to
        for staging in left:
            number = staging.name.partition("-")[0]
            commit = self._log.find(int(number)) if number.isdecimal() else None
            if commit is not None and commit.run == staging.name:
                log.info("commit_finished", path=str(self.path), commit=commit.number)
                self._settle(staging, commit)
            else:
                log.info("uncommitted_removed", path=str(self.path), run=staging.name)
                discard(self.path, staging)
        commits.reached("recovered")

    def _require_lock(self) -> None:
        if self._lock_fd < 0:
            raise ArchiveError("is open to be read", where=str(self.path), hint="use Archive.writing()")
        if self._unsettled:
            raise ArchiveUnsettledError(
                f"commit {self._unsettled} counts or may count, and was not finished",
                where=str(self.path),
                hint="open the archive again, which finishes it",
            )


def read_frame(spark: SparkSession, root: Path, table: str, files: Iterable[FileEntry], schema: str) -> DataFrame:
    """Files below `root` as a DataFrame; what an older file has no column for is null."""
    paths = [str(root / file.path) for file in files]
    if not paths:
        return spark.createDataFrame([], schema)
    missing = [path for path in paths if not os.path.exists(path)]
    if missing:
        raise ArchiveCorruptError(
            f"{len(missing)} of the {len(paths)} committed files of {table!r} are missing",
            where=missing[0],
            hint="open the archive again: files that a commit replaces stay for a grace period only; "
            "if they are missing then, restore them from a copy",
        )
    base = f"file://{(root / table).absolute()}"
    return spark.read.schema(schema).option("basePath", base).parquet(*map(_spark_path, paths))


def _spark_path(path: str) -> str:
    """A local path for Spark, which takes a path for a pattern, and one without a scheme for one of fs.defaultFS."""
    return "file://" + re.sub(r"[][{}*?\\]", r"\\\g<0>", os.path.abspath(path))


def _info(name: str, files: Collection[FileEntry]) -> TableInfo:
    dates = sorted({file.date for file in files})
    return TableInfo(
        name=name,
        rows=sum(file.rows for file in files),
        files=len(files),
        size=sum(file.size for file in files),
        first_date=dates[0],
        last_date=dates[-1],
        streams=len({file.stream for file in files if file.stream is not None}),
    )


def _create(root: Path) -> bool:
    """The directory of a new archive; the mark comes last, and with it the archive. False if there is one."""
    if (root / MARK).exists():
        return False
    foreign = [each.name for each in root.iterdir() if not each.name.startswith("_")] if root.exists() else []
    if foreign:
        raise ArchiveError(
            f"is no archive, and has other things in it ({min(foreign)})", where=str(root), hint="name a new directory"
        )
    for name in (COMMITS, STAGING, FILES):
        make_directory(root / name)
    new = root / f"{MARK}.{secrets.token_hex(4)}"
    write_file(new, msgspec.json.encode(_Mark(FORMAT, VERSION)))
    commits.sync_file(new)
    new.rename(root / MARK)
    sync_directory(root)
    return True


def _checked(root: Path) -> Path:
    """It is an archive, and one that we know."""
    try:
        mark = msgspec.json.decode((root / MARK).read_bytes(), type=_Mark)
    except FileNotFoundError:
        raise ArchiveError(
            "holds no archive", where=str(root), hint="penstock pipeline run --archive makes one"
        ) from None
    except (OSError, msgspec.DecodeError) as error:
        raise ArchiveCorruptError(f"cannot be read: {error}", where=str(root / MARK)) from None
    if mark.format != FORMAT:
        raise ArchiveCorruptError(f"is no mark of an archive, but of a {mark.format!r}", where=str(root / MARK))
    if mark.version != VERSION:
        raise wrong_version(mark.version, root / MARK)
    return root


def _locked(root: Path) -> int:
    """The lock, which ends with the process; in the file stands who has it."""
    fd = create_or_open(root / LOCK, os.O_RDWR)
    give_up_at = time.monotonic() + LOCK_SECONDS
    while not _try_lock(fd):
        if time.monotonic() > give_up_at:
            holder = os.pread(fd, 256, 0).decode(errors="replace").strip()
            os.close(fd)
            raise ArchiveLockedError(
                f"is being written by {holder or 'another process'}",
                where=str(root),
                hint="an archive has one writer at a time; wait for it, or end it. A run with --follow compacts itself",
            )
        time.sleep(LOCK_SECONDS / 10)
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return fd


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
