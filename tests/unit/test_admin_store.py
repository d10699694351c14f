"""The server's database: committed changes survive a restart, and a replica follows exactly."""

import sqlite3
from pathlib import Path

import pytest

from penstock.admin.core.records import Denial, Denials, Meta
from penstock.admin.core.state import Audit, Stored
from penstock.admin.live.store import FILE_NAME, Store
from penstock.base.errors import ConfigurationError


def line(number: int) -> Audit:
    return Audit(number, "alice", "127.0.0.1", "subscribe", "done", "", f"line {number}")


def denials(client: str) -> Stored:
    return Stored("denials", client, Denials(client, (Denial((">",), "why", 1),)))


def test_committed_changes_survive_a_restart(tmp_path: Path) -> None:
    store = Store(tmp_path, changes_kept=10)
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
    store.commit([denials("a"), denials("b"), Stored("meta", "server", Meta(generation=3))], [line(1)], {"role": "x"})
    store.commit([Stored("denials", "a", None)])
    assert store.number == 5
    store.close()
    again = Store(tmp_path, changes_kept=10)
    assert again.number == 5
    assert sorted(again.records()) == sorted([denials("b"), Stored("meta", "server", Meta(generation=3))])
    assert again.local("role") == "x"
    assert again.local("nothing") is None
    assert [each.detail for each in again.audit_after(0)] == ["line 1"]
    again.close()


def test_a_second_server_cannot_open_the_database(tmp_path: Path) -> None:
    store = Store(tmp_path, changes_kept=10)
    with pytest.raises(ConfigurationError, match="another server uses it"):
        Store(tmp_path, changes_kept=10)
    store.close()


@pytest.mark.parametrize("data", [b"garbage" * 1_000, b"SQLite format 3\0" + bytes(5_000)])
def test_a_damaged_database_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(data)
    with pytest.raises(ConfigurationError, match="cannot be used"):
        Store(tmp_path, changes_kept=10)


def test_a_failed_commit_changes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path, changes_kept=10)
    store.commit([denials("a")])
    (pages,) = store._database.execute("PRAGMA page_count").fetchone()
    store._database.execute(f"PRAGMA max_page_count = {pages}")  # as if the disk were full
    with pytest.raises(sqlite3.Error, match="full"):
        store.commit([denials(f"b{number}") for number in range(1_000)], [line(1)])
    assert store.number == 1
    assert store.records() == [denials("a")]
    assert store.audit_after(0) == []
    store._database.execute("PRAGMA max_page_count = 100000")
    store.commit([denials("c")])
    assert store.number == 2
    store.close()


@pytest.mark.spec("ADM-1")
def test_the_audit_log_is_append_only(tmp_path: Path) -> None:
    store = Store(tmp_path, changes_kept=10)
    store.commit([], [line(1)])
    store.close()
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        for statement in ("UPDATE audit SET detail = 'x'", "DELETE FROM audit"):
            with pytest.raises(sqlite3.IntegrityError, match="only appended to"):
                database.execute(statement)
    database.close()


@pytest.mark.spec("ADM-8")
def test_a_replica_follows(tmp_path: Path) -> None:
    primary, standby = Store(tmp_path / "a", changes_kept=4), Store(tmp_path / "b", changes_kept=4)
    primary.commit([denials("a"), denials("b")], [line(1)])
    standby.commit([denials("stale")], [line(0)])
    standby.replace(primary.everything(), primary.number, {"history_id": "h"})
    assert standby.records() == primary.records()
    assert standby.number == primary.number
    primary.commit([Stored("denials", "a", None), denials("c")], [line(2)])
    changes = primary.changes_after(standby.number, 100)
    assert changes is not None
    standby.follow(changes, {})
    assert (standby.records(), standby.number) == (primary.records(), primary.number)
    assert [each.detail for each in standby.audit_after(0)] == ["line 0", "line 1", "line 2"]
    standby.replace(primary.everything(), primary.number, {})
    assert [each.detail for each in standby.audit_after(0)] == ["line 0", "line 1", "line 2"]  # no change twice
    assert standby.changes_after(standby.number, 10) == []
    assert standby.local("history_id") == "h"
    for store in (primary, standby):
        store.close()


def test_changes_that_are_no_longer_kept_cause_a_full_copy(tmp_path: Path) -> None:
    store = Store(tmp_path, changes_kept=3)
    for number in range(6):
        store.commit([denials(f"c{number}")])
    assert store.changes_after(2, 10) is None
    kept = store.changes_after(3, 2)
    assert kept is not None
    assert [each.number for each in kept] == [4, 5]
    assert store.changes_after(7, 10) is None  # from another history
    store.close()
