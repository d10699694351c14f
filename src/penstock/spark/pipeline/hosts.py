"""Which host wants which topics: from a file that says so, or from what an administration server has written down.

    [hosts]                                             a TOML document; or the same as JSON
    trader-1 = ["md.us.eq.AAPL.>", "md.us.eq.MSFT.>"]

or the output of `penstock admin audit --json`, or the database of an administration server that is not running.
"""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from penstock.base.config import Config, convert, load_toml
from penstock.base.errors import ConfigurationError, TopicError
from penstock.security.core.operating import AuditEntry
from penstock.topics import Interest

FILE_SIZE_MAX = 1 << 30
HOSTS_MAX = 65_536
SQLITE_MAGIC = b"SQLite format 3\0"

Hosts = dict[str, list[str]]


class HostsDocument(Config, frozen=True):
    hosts: Annotated[dict[str, list[str]], msgspec.Meta(min_length=1, max_length=HOSTS_MAX)]


def read_hosts(path: Path) -> Hosts:
    """Interests by host, checked."""
    if path.suffix == ".toml":
        found = dict(load_toml(path, HostsDocument, size_max=FILE_SIZE_MAX).hosts)
    elif is_audit_log(path):
        found = hosts_of_log(read_audit_log(path))
    else:
        try:
            data = msgspec.json.decode(_read(path))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"is neither TOML nor JSON: {error}", where=str(path)) from None
        found = dict(convert(data, HostsDocument, where=str(path)).hosts)
    for host, interests in found.items():
        for text in interests:
            try:
                Interest.parse(text)
            except TopicError as error:
                raise ConfigurationError(str(error), where=f"{path}: hosts.{host}") from None
    return found


def is_audit_log(path: Path) -> bool:
    """Whether this is what an administration server wrote: its database, or lines of its log as JSON."""
    try:
        with path.open("rb") as file:
            head = file.read(4_096)
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror}", where=str(path)) from None
    return head.startswith(SQLITE_MAGIC) or (head.startswith(b"{") and b'"time_ns"' in head.partition(b"\n")[0])


def read_audit_log(path: Path) -> Iterator[AuditEntry]:
    """The lines of an administration server's audit log."""
    if _is_database(path):
        yield from _entries_of_database(path)
        return
    decoder = msgspec.json.Decoder(AuditEntry)
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    yield decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise ConfigurationError(f"is no line of an audit log: {error}", where=f"{path}:{number}") from None


def hosts_of_log(entries: Iterator[AuditEntry]) -> Hosts:
    """What each host was granted to receive, by the last word on every subscription that the log tells of.

    A host is the address that subscribed; the clients of this machine itself count each for one.
    """
    granted: dict[str, tuple[str, list[str]]] = {}
    for entry in entries:
        if entry.action in ("subscribe", "modify") and entry.outcome == "done":
            subscription, _, rights = entry.detail.partition(": ")
            granted[subscription] = _host(entry), receive_patterns(rights)
    found: Hosts = {}
    for host, patterns in granted.values():
        known = found.setdefault(host, [])
        known += [pattern for pattern in patterns if pattern not in known]
    return found


def receive_patterns(rights: str) -> list[str]:
    """Of "receive md.> 0, send x.y 0": md.>"""
    words = [right.split() for right in rights.split(", ")]
    return [each[1] for each in words if len(each) == 3 and each[0] == "receive"]


def _host(entry: AuditEntry) -> str:
    address = entry.address.rpartition(":")[0] if entry.address.count(":") == 1 else entry.address
    return entry.client if not address or address.startswith(("127.", "::1", "[::1")) else address


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC


def _entries_of_database(path: Path) -> Iterator[AuditEntry]:
    names = AuditEntry.__struct_fields__
    try:
        database = sqlite3.connect(f"file:{path.absolute()}?mode=ro", uri=True, timeout=0.5)
        try:
            for row in database.execute(f"SELECT {', '.join(names)} FROM audit ORDER BY number"):
                yield AuditEntry(**dict(zip(names, row, strict=True)))
        finally:
            database.close()
    except sqlite3.Error as error:
        raise ConfigurationError(
            f"cannot be read: {error}",
            where=str(path),
            hint="a running server keeps it for itself: use the output of `penstock admin audit --json`",
        ) from None


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > FILE_SIZE_MAX:
            raise ConfigurationError(f"has more than {FILE_SIZE_MAX} bytes", where=str(path))
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror}", where=str(path)) from None
