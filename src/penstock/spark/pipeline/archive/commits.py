"""The commits of an archive: one document per commit for all tables, created exclusively and never changed.

    log = CommitLog(root / "_commits")
    catalogue = log.read()                      # the sum of all commits
    log.append(commit)                          # the commit point: a commit that is not appended never happened

A document lists added and removed files, the read positions of the sources, and the account of the messages read:
everything that a later run needs. Every STATE_INTERVAL commits, a document with the whole state is written as well,
which keeps opening an archive fast. docs/reference/protocol/archive.md describes every key.
"""

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from penstock.base.crc32c import crc32c
from penstock.base.errors import ArchiveCorruptError, ArchiveError, ArchiveFullError, ArchiveUnsettledError
from penstock.base.files import create_or_open

VERSION = 2
"""Version of the archive's layout and documents."""

STATE_INTERVAL = 64
"""Number of commits between two state documents."""

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

NOT_LINKED = NO_ROOM | {errno.EACCES, errno.EPERM, errno.EROFS, errno.EMLINK, errno.ENOENT, errno.ENOTDIR, errno.EXDEV}
"""Errors of link(2) after which the name cannot appear; after any other error the name can still appear on a file
server.
"""

CommitKind: TypeAlias = Literal["append", "derive", "compact", "retain", "replace", "models"]


class FileEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A Parquet file of a table. Paths are relative to the archive's directory; times are event times in
    nanoseconds.
    """

    table: str
    path: str
    rows: int
    size: int
    commit_first: int
    commit_last: int
    """The first and last commit whose rows the file has; both are equal until the file is compacted."""
    date: str = ""
    stream: int | None = None
    seq_min: int | None = None
    seq_max: int | None = None
    time_min: int | None = None
    time_max: int | None = None
    captured_max: int | None = None
    source: str = ""
    """The key of the source of the rows; empty for derived tables."""
    venues: list[str] = []
    """Venues of the rows, if any: the first VENUES_MAX, sorted."""
    has_untimed: bool = False
    """True if the file also has rows without an event time."""

    @property
    def directory(self) -> str:
        return self.path.rpartition("/")[0]


class TradingDay(NamedTuple):
    """A trading date of a venue by its calendar; without a calendar, from midnight to midnight in the venue's time
    zone.
    """

    date: str
    venue: str
    begin_ns: int
    end_ns: int

    def __str__(self) -> str:
        return f"{self.date} of {self.venue}"

    def has(self, file: FileEntry) -> bool:
        """True if a file may have rows of the venue and the day."""
        if file.time_min is None or file.time_max is None or self.venue not in (file.venues or [""]):
            return False
        return file.time_min < self.end_ns and file.time_max >= self.begin_ns

    def is_all_of(self, file: FileEntry) -> bool:
        """True if all rows of a file are of the day; a row without an event time belongs to no day."""
        return not file.has_untimed and self.has_all_times_of(file)

    def has_all_times_of(self, file: FileEntry) -> bool:
        """True if all rows of a file that have an event time are of the day."""
        if file.time_min is None or file.time_max is None or (file.venues or [""]) != [self.venue]:
            return False
        return self.begin_ns <= file.time_min and file.time_max < self.end_ns


class SourceAccount(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Counts of the source's own units by outcome: records of a journal, messages of a feed."""

    taken: int = 0
    used: int = 0
    repeated: int = 0
    quarantined: dict[str, int] = {}
    """Unreadable units, by code."""
    unmatched: dict[str, int] = {}
    """Units that refer to an order, trade or instrument that was never received, by code; counted but not quarantined.

    """
    lost: int = 0
    """Units that the source reports as missing; not part of the other counts."""
    removed: int = 0
    """Journal records that were removed before they could be read; not part of the other counts."""
    damages: int = 0
    """Damaged stretches that contain no unit; each is quarantined."""

    @property
    def is_balanced(self) -> bool:
        return self.taken == self.used + self.repeated + sum(self.quarantined.values()) + sum(self.unmatched.values())


class Account(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Counts of the messages read by outcome: `taken` is always the sum of all the others."""

    source: SourceAccount = msgspec.field(default_factory=SourceAccount)
    taken: int = 0
    rows: dict[str, int] = {}
    """Messages that became a row, by table."""
    repeated: int = 0
    """Duplicates of messages that were read before."""
    quarantined: dict[str, int] = {}
    """Quarantined messages, by code."""
    skipped: dict[str, int] = {}
    """Messages that belong to no table, by cause."""
    unknown_models: dict[str, int] = {}
    """Messages in `raw` with an unknown model, by model id; they can be read again later."""
    sealed: int = 0
    """Sealed messages in `raw`."""
    facts: dict[str, int] = {}
    """Rows of tables about messages, which are not messages themselves."""

    def add(self, other: "Account") -> None:
        _add(self, other)

    @property
    def given(self) -> int:
        """Return the sum that must equal `taken`."""
        return sum(self.rows.values()) + self.repeated + sum(self.quarantined.values()) + sum(self.skipped.values())

    @property
    def is_balanced(self) -> bool:
        return self.taken == self.given and self.source.is_balanced

    @property
    def in_quarantine(self) -> int:
        """Return the number of rows added to the quarantine."""
        return self.facts.get("quarantine", 0)


def _add(mine: msgspec.Struct, other: msgspec.Struct) -> None:
    """Add all counts of `other`, including the named ones."""
    for name in mine.__struct_fields__:
        value, more = getattr(mine, name), getattr(other, name)
        if isinstance(value, msgspec.Struct):
            _add(value, more)
        elif isinstance(value, dict):
            for key, count in more.items():
                value[key] = value.get(key, 0) + count
        else:
            setattr(mine, name, value + more)


class SessionEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session of a stream, identified by the position of its first message."""

    place: int
    tag: int
    """Tag of the session name, as in the ORIGIN flags of the session's messages."""
    begun: int
    """The commit with the session's first messages."""
    first_ns: int
    """Event times of the session's messages so far."""
    last_ns: int
    ended: int = 0
    """The commit in which the derivations closed the session; 0: open."""
    last_place: int | None = None
    """The place of its last message, if its end was announced."""


class Commit(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One commit of an archive."""

    number: int
    kind: CommitKind
    run: str
    """The staging directory of the commit's files."""
    made_ns: int
    files: list[FileEntry] = []
    removed: list[str] = []
    """Removed paths. Their files are kept until the grace period is over."""
    expired: list[str] = []
    """Paths that earlier commits removed; their files are deleted after this commit."""
    sources: dict[str, dict[str, Any]] = {}
    """Read position of each source, in the source's own format."""
    forgotten: list[str] = []
    """Keys of files whose rows another file has replaced; the sessions of their streams are removed as well."""
    cursors: dict[str, Any] = {}
    """By stream: the read position, in the format of capture.core.cursors."""
    account: Account = msgspec.field(default_factory=Account)
    schemas: dict[str, str] = {}
    """New or changed schemas of tables, as Spark DDL."""
    models: dict[str, str] = {}
    """By id: the documents of new models and of newer versions."""
    derived: dict[str, int] = {}
    """By derivation: the last commit whose rows the derivation has processed."""
    carried: dict[str, list[FileEntry]] = {}
    """By derivation: the state files that its next step begins with."""
    sessions: dict[str, list[SessionEntry]] = {}
    """By stream: the sessions that begin or continue with this commit."""
    ended: dict[str, list[int]] = {}
    """By stream: the positions of the sessions that the derivations closed."""
    watermarks: dict[str, int] = {}
    """By stream: the highest event time."""


class Catalogue(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The sum of all commits up to `number`."""

    number: int = 0
    files: dict[str, dict[str, FileEntry]] = {}
    """By table and path."""
    replaced: dict[str, int] = {}
    """Removed paths whose files are kept for readers of earlier commits, by the time of removal."""
    sources: dict[str, dict[str, Any]] = {}
    cursors: dict[str, Any] = {}
    account: Account = msgspec.field(default_factory=Account)
    schemas: dict[str, str] = {}
    models: dict[str, str] = {}
    appended: int = 0
    """The last commit with rows of messages."""
    derived: dict[str, int] = {}
    carried: dict[str, list[FileEntry]] = {}
    sessions: dict[str, list[SessionEntry]] = {}
    """By stream, in the order of their positions."""
    watermarks: dict[str, int] = {}

    def take(self, commit: Commit) -> None:
        """Apply the next commit."""
        for path in commit.removed:
            self.files.get(path.partition("/")[0], {}).pop(path, None)
            self.replaced[path] = commit.made_ns
        for path in commit.expired:
            self.replaced.pop(path, None)
        for file in commit.files:
            self.files.setdefault(file.table, {})[file.path] = file
        for source in commit.forgotten:
            stream = str(self.sources.pop(source, {}).get("stream", ""))
            self.sessions.pop(stream, None)
            self.watermarks.pop(stream, None)
        self.sources.update(commit.sources)
        self.cursors.update(commit.cursors)
        self.account.add(commit.account)
        self.schemas.update(commit.schemas)
        self.models.update(commit.models)
        self.derived.update(commit.derived)
        self.carried.update(commit.carried)
        for stream, time_ns in commit.watermarks.items():
            self.watermarks[stream] = max(time_ns, self.watermarks.get(stream, time_ns))
        self._take_sessions(commit)
        if commit.kind == "append":
            self.appended = commit.number
        self.number = commit.number

    def _take_sessions(self, commit: Commit) -> None:
        for stream, entries in commit.sessions.items():
            known = {entry.place: entry for entry in [*self.sessions.get(stream, []), *entries]}
            self.sessions[stream] = [known[place] for place in sorted(known)]
        for stream, places in commit.ended.items():
            self.sessions[stream] = [
                msgspec.structs.replace(entry, ended=commit.number) if entry.place in places else entry
                for entry in self.sessions[stream]
            ]


class _Sealed(msgspec.Struct):
    """A document on disk; `crc32c` is the checksum of the exact bytes of `body`."""

    version: int
    crc32c: int
    body: msgspec.Raw


Document = TypeVar("Document", Commit, Catalogue)

_COMMIT_NAME = re.compile(r"(\d{16})\.json")
_STATE_NAME = re.compile(r"(\d{16})\.state")


def commit_name(number: int) -> str:
    return f"{number:016}.json"


def state_name(number: int) -> str:
    return f"{number:016}.state"


def reached(step: str) -> None:
    """Called after each step of the protocol; tests replace this function to kill the process at that point."""


class CommitLog:
    """The directory of the documents. The appender must hold the archive's lock."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, last: int | None = None) -> Catalogue:
        """Return the committed state, or the state after commit `last`."""
        numbers = [number for number in self._numbers(_COMMIT_NAME) if last is None or number <= last]
        catalogue = self._state(numbers, last)
        for number in numbers:
            if number <= catalogue.number:
                continue
            if number != catalogue.number + 1:
                raise ArchiveCorruptError(
                    f"commit {catalogue.number + 1} is missing, but commit {number} exists",
                    where=str(self.path),
                    hint="restore its document from a backup; nothing was changed",
                )
            catalogue.take(self.commit(number))
        return catalogue

    def commit(self, number: int) -> Commit:
        return self._load(commit_name(number), Commit)

    def find(self, number: int) -> Commit | None:
        """Return a commit; None if there is no such commit."""
        return self.commit(number) if (self.path / commit_name(number)).exists() else None

    def append(self, commit: Commit) -> None:
        """Append the commit. After ArchiveUnsettledError the commit may have been made; after any other error it was
        not made.
        """
        target = self.path / commit_name(commit.number)
        new = self.path / f"{target.name}.{commit.run}.new"
        try:
            _write(new, commit)
            reached("commit-written")
        except OSError as error:
            _remove(new)
            raise cannot("commit", target, error) from None
        try:
            os.link(new, target)
        except OSError as error:
            _check_link(new, target, error)
        reached("commit-linked")
        try:
            sync_directory(self.path)
        except OSError as error:
            raise _uncertain(target, error) from None
        _remove(new)

    def note_state(self, catalogue: Catalogue) -> None:
        """Write a state document when one is due. A failure is harmless: the state only speeds up opening, and a later
        commit writes one.
        """
        if catalogue.number % STATE_INTERVAL == 0:
            new = self.path / f"{state_name(catalogue.number)}.new"
            _write(new, catalogue)
            new.rename(self.path / state_name(catalogue.number))

    def remove_unfinished(self) -> None:
        """Remove the temporary files of a crashed writer."""
        for name in self._names():
            if name.endswith(".new"):
                (self.path / name).unlink(missing_ok=True)

    def prune(self) -> int:
        """Remove the documents before the second newest state, which are not needed, and return their number."""
        states = self._numbers(_STATE_NAME)[-2:]
        if len(states) < 2 or not self._is_good(state_name(states[-1])):
            return 0
        old = [
            *(commit_name(number) for number in self._numbers(_COMMIT_NAME) if number <= states[0]),
            *(state_name(number) for number in self._numbers(_STATE_NAME) if number < states[0]),
        ]
        if old:
            sync_directory(self.path)  # the states that replace these documents are on disk
        for name in old:
            (self.path / name).unlink()
        return len(old)

    def _state(self, numbers: list[int], last: int | None) -> Catalogue:
        """Return the newest readable state; a damaged state matters only if older commits are gone."""
        for number in reversed(self._numbers(_STATE_NAME)):
            if (last is None or number <= last) and self._is_good(state_name(number)):
                return self._load(state_name(number), Catalogue)
        if numbers and numbers[0] != 1:
            raise ArchiveCorruptError(
                f"the commits before {numbers[0]} and all their state documents are missing or damaged",
                where=str(self.path),
                hint="restore a *.state document from a backup; nothing was changed",
            )
        return Catalogue()

    def _is_good(self, name: str) -> bool:
        try:
            self._load(name, Catalogue)
        except ArchiveCorruptError:
            return False
        return True

    def _load(self, name: str, kind: type[Document]) -> Document:
        path = self.path / name
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ArchiveCorruptError(f"cannot read the commit document: {error.strerror}", where=str(path)) from None
        try:
            sealed = msgspec.json.decode(data, type=_Sealed)
            if sealed.version != VERSION:
                raise wrong_version(sealed.version, path)
            if crc32c(bytes(sealed.body)) != sealed.crc32c:
                raise ArchiveCorruptError("the document is damaged: wrong checksum", where=str(path), hint=RESTORE)
            return msgspec.json.decode(sealed.body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ArchiveCorruptError(f"the document is invalid: {error}", where=str(path), hint=RESTORE) from None

    def _numbers(self, pattern: re.Pattern[str]) -> list[int]:
        return sorted(int(found[1]) for name in self._names() if (found := pattern.fullmatch(name)))

    def _names(self) -> Iterator[str]:
        try:
            yield from os.listdir(self.path)
        except OSError as error:
            raise ArchiveError(f"cannot list the directory: {error.strerror}", where=str(self.path)) from None


RESTORE = "restore the document from a backup; nothing was changed"


def wrong_version(version: int, path: Path) -> ArchiveError:
    hint = "use a newer Penstock" if version > VERSION else "archive the sources again, into a new directory"
    return ArchiveError(
        f"the document has version {version}, but this Penstock reads version {VERSION}", where=str(path), hint=hint
    )


def _check_link(new: Path, target: Path, error: OSError) -> None:
    """Return if the link exists although link(2) failed; a file server may report an error after a repeated request."""
    try:
        is_linked = os.path.samefile(new, target)
    except FileNotFoundError:
        if error.errno not in NOT_LINKED:
            raise _uncertain(target, error) from None
        _remove(new)
        raise cannot("commit", target, error) from None
    except OSError:
        raise _uncertain(target, error) from None
    if not is_linked:
        _remove(new)
        raise ArchiveError("another process has made this commit", where=str(target), hint="open the archive again")


def _uncertain(target: Path, error: OSError) -> ArchiveUnsettledError:
    return ArchiveUnsettledError(
        f"cannot tell whether the commit was made: {error.strerror or error}",
        where=str(target),
        hint="nothing was removed; run the command again to bring the archive to the state before or after the commit",
    )


def _remove(path: Path) -> None:
    """Remove a temporary name; the next writer removes one that remains."""
    with contextlib.suppress(OSError):
        path.unlink()


def cannot(do: str, path: Path, error: OSError) -> ArchiveError:
    """Return the error for a failed operation, with a hint if the disk is full."""
    reason = error.strerror or str(error)
    if error.errno in NO_ROOM:
        return ArchiveFullError(
            f"cannot {do}: {reason}",
            where=str(path),
            hint="nothing was committed; free disk space and run the command again, which resumes at the last commit",
        )
    return ArchiveError(f"cannot {do}: {reason}", where=str(path))


def sync_directory(path: Path) -> None:
    """Sync the names in a directory."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write(path: Path, document: Commit | Catalogue) -> None:
    body = msgspec.json.encode(document)
    data = msgspec.json.encode(_Sealed(VERSION, crc32c(body), msgspec.Raw(body)))
    with open(create_or_open(path, os.O_WRONLY | os.O_TRUNC), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
