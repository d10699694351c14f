"""The server's state on disk: a SQLite database, written before a request is answered.

records   kind, key → value              the current state (records.py)
changes   number → kind, key, value      the newest changes, which a standby follows
audit     number → one line              append-only, enforced by the database
local     name → value                   values of this server alone: its role, the history
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from penstock.admin.core.records import KINDS, decode, encode
from penstock.admin.core.state import Audit, Stored
from penstock.base.errors import ConfigurationError
from penstock.base.files import create_or_open, make_directory
from penstock.security.core.operating import AuditEntry, Change

FILE_NAME = "admin.sqlite"
AUDIT = "audit"
AUDIT_PAGE = 1_000
AUDIT_COPIED_MAX = 50_000
"""Maximal number of audit lines copied to a new standby: the newest."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS records (kind TEXT, key TEXT, value BLOB NOT NULL, PRIMARY KEY (kind, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS changes (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, key TEXT NOT NULL, value BLOB);
CREATE TABLE IF NOT EXISTS audit (
    number INTEGER PRIMARY KEY AUTOINCREMENT, time_ns INTEGER NOT NULL, client TEXT NOT NULL, address TEXT NOT NULL,
    action TEXT NOT NULL, outcome TEXT NOT NULL, code TEXT NOT NULL, detail TEXT NOT NULL);
CREATE TRIGGER IF NOT EXISTS audit_is_not_changed BEFORE UPDATE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit log is only appended to'); END;
CREATE TRIGGER IF NOT EXISTS audit_is_not_removed BEFORE DELETE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit log is only appended to'); END;
CREATE TABLE IF NOT EXISTS local (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""

_ADD_AUDIT = "INSERT INTO audit (time_ns, client, address, action, outcome, code, detail) VALUES (?, ?, ?, ?, ?, ?, ?)"
_audit_decoder = msgspec.msgpack.Decoder(Audit)


class Store:
    """Used by one thread at a time; a lock excludes other processes."""

    def __init__(self, directory: Path, *, changes_kept: int) -> None:
        self._path = directory / FILE_NAME
        self._changes_kept = changes_kept
        try:
            make_directory(directory)
            os.close(create_or_open(self._path, os.O_RDWR))
            self._path.chmod(0o600)  # it holds stream keys: no group reads it
        except OSError as error:
            raise ConfigurationError(f"cannot be used: {error.strerror}", where=str(self._path)) from None
        self._database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=1.0)
        try:
            self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.executescript(_SCHEMA)
            with self._transaction():
                self._database.execute("INSERT OR IGNORE INTO local VALUES ('opened', '')")
        except sqlite3.Error as error:
            self._database.close()
            hint = "another server uses it" if "locked" in str(error) else "restore the file from a copy, or remove it"
            raise ConfigurationError(f"cannot be used: {error}", where=str(self._path), hint=hint) from None
        (number,) = self._database.execute("SELECT max(number) FROM changes").fetchone()
        self.number = number or 0
        """The number of the last change."""

    def close(self) -> None:
        self._database.close()

    def records(self) -> list[Stored]:
        rows = self._database.execute("SELECT kind, key, value FROM records").fetchall()
        try:
            return [Stored(kind, key, decode(kind, value)) for kind, key, value in rows]
        except (KeyError, msgspec.MsgspecError) as error:
            raise ConfigurationError(f"has a record that is not understood: {error}", where=str(self._path)) from None

    def local(self, name: str) -> str | None:
        row = self._database.execute("SELECT value FROM local WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def commit(
        self, changes: Iterable[Stored], audits: Iterable[Audit] = (), local: dict[str, str] | None = None
    ) -> None:
        """Returns when all changes are on the disk. If sqlite3.Error is raised, no change is stored."""
        rows = [(each.kind, each.key, None if each.record is None else encode(each.record)) for each in changes]
        rows += [(AUDIT, "", msgspec.msgpack.encode(each)) for each in audits]
        numbered = [Change(self.number + step, *row) for step, row in enumerate(rows, start=1)]
        with self._transaction():
            self._apply(numbered)
            self._set_local(local)
        self.number += len(numbered)

    def follow(self, changes: list[Change], local: dict[str, str]) -> None:
        """Store changes of the primary under their original numbers."""
        with self._transaction():
            self._apply(changes)
            self._set_local(local)
        self.number = changes[-1].number if changes else self.number

    def replace(self, changes: list[Change], number: int, local: dict[str, str]) -> None:
        """Replace the state by that of the primary, and append the missing lines to the audit log."""
        with self._transaction():
            self._database.execute("DELETE FROM records")
            self._database.execute("DELETE FROM changes")
            known = set(self._database.execute("SELECT time_ns, client, action, outcome, detail FROM audit").fetchall())
            self._apply([each for each in changes if not _is_known(each, known)], is_logged=False)
            marker = Change(number, "", "", None)  # the numbers continue from there
            self._database.execute("INSERT INTO changes VALUES (?, ?, ?, ?)", tuple(msgspec.structs.astuple(marker)))
            self._set_local(local)
        self.number = number

    def changes_after(self, number: int, count_max: int) -> list[Change] | None:
        """The changes after a number, or None if they are no longer kept."""
        (first,) = self._database.execute("SELECT min(number) FROM changes").fetchone()
        if number > self.number or number < (first or 1) - 1:
            return None
        query = "SELECT number, kind, key, value FROM changes WHERE number > ? ORDER BY number LIMIT ?"
        return [Change(*row) for row in self._database.execute(query, (number, count_max))]

    def everything(self) -> list[Change]:
        """All records and the newest audit lines, as changes that create them."""
        rows = self._database.execute("SELECT kind, key, value FROM records").fetchall()
        query = f"SELECT * FROM (SELECT * FROM audit ORDER BY number DESC LIMIT {AUDIT_COPIED_MAX}) ORDER BY number"
        audits = [msgspec.msgpack.encode(Audit(*row[1:])) for row in self._database.execute(query)]
        found = [Change(self.number, kind, key, value) for kind, key, value in rows]
        return found + [Change(self.number, AUDIT, "", each) for each in audits]

    def audit_after(self, number: int) -> list[AuditEntry]:
        query = "SELECT * FROM audit WHERE number > ? ORDER BY number LIMIT ?"
        names = AuditEntry.__struct_fields__
        rows = self._database.execute(query, (number, AUDIT_PAGE)).fetchall()
        return [AuditEntry(**dict(zip(names, row, strict=True))) for row in rows]

    def _apply(self, changes: list[Change], *, is_logged: bool = True) -> None:
        for each in changes:
            if each.kind == AUDIT:
                self._database.execute(_ADD_AUDIT, tuple(_audit_decoder.decode(each.value or b"")))
            elif each.kind in KINDS and each.value is None:
                self._database.execute("DELETE FROM records WHERE kind = ? AND key = ?", (each.kind, each.key))
            elif each.kind in KINDS:
                self._database.execute("REPLACE INTO records VALUES (?, ?, ?)", (each.kind, each.key, each.value))
            if is_logged:
                self._database.execute("INSERT INTO changes VALUES (?, ?, ?, ?)", msgspec.structs.astuple(each))
        if changes and is_logged:
            self._database.execute("DELETE FROM changes WHERE number <= ?", (changes[-1].number - self._changes_kept,))

    def _set_local(self, local: dict[str, str] | None) -> None:
        for item in (local or {}).items():
            self._database.execute("REPLACE INTO local VALUES (?, ?)", item)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._database.in_transaction:  # after some errors SQLite has already rolled back
                self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")


def _is_known(change: Change, known: set[tuple[object, ...]]) -> bool:
    if change.kind != AUDIT:
        return False
    line = _audit_decoder.decode(change.value or b"")
    return (line.time_ns, line.client, line.action, line.outcome, line.detail) in known
