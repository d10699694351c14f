"""The place of a journal: a directory, or a TCP address served by `penstock journal serve`.

    place = JournalPlace("captured.d")              # or JournalPlace("tcp://10.0.0.7:7410", secret="…", ca="…")
    place.measure()                                 # the range of its records
    for batch in place.read(1_000, 2_000): ...      # these records

A place is plain data and is sent to the workers with the tasks. The files that a place names must exist on every
worker.
"""

from __future__ import annotations

import asyncio
import functools
import glob
import ssl
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from penstock.base.errors import ConfigurationError, JournalError
from penstock.journal import FollowConfig, JournalReader, RecordBatch
from penstock.journal.client import follow_remote_batches, measure_remote
from penstock.journal.core.messages import Extent
from penstock.journal.live.extent import measure
from penstock.net.secret import read_secret
from penstock.security.live.journal_access import JournalLogin, admin_access

REMOTE = "tcp://"
READERS_MAX = 8
LOGINS_MAX = 8
READ_CONFIG = FollowConfig(chunk_bytes=4 * 1024 * 1024)

_readers: OrderedDict[str, JournalReader] = OrderedDict()
"""The most recently used readers of this process; a reader remembers positions in the segments, which makes finding the
next stretch fast.
"""


class JournalPlace(msgspec.Struct, frozen=True, omit_defaults=True):
    """The location of a journal, and the credentials for reading it."""

    where: str
    """A directory, or tcp://host:port."""
    secret: str = ""
    """The file with the secret shared with the server; only for TCP."""
    ca: str = ""
    """The CA certificates that the TLS connection is verified with; empty: no TLS."""
    admin: str = ""
    """The administration server whose tokens the journal's server requires; only for TCP."""
    credentials: str = ""
    """The file with the credentials for the administration server."""

    @property
    def is_remote(self) -> bool:
        return self.where.startswith(REMOTE)

    def measure(self, from_time_ns: int | None = None) -> Extent:
        """Return the range of records; with a time, also the first record that is not older."""
        if not self.is_remote:
            return measure(self.where, from_time_ns)
        host, port = self._address()
        return asyncio.run(measure_remote(host, port, from_time_ns=from_time_ns, **self._access()))

    def read(self, first: int, last: int) -> Iterator[RecordBatch]:
        """Yield all records from `first` to `last`; raise JournalError if any are missing."""
        if first > last:
            return
        expected = first
        for batch in self._batches(first):
            rows = batch.rows[: max(0, last - int(batch.rows[0]["sequence"]) + 1)]
            if len(rows):
                expected = int(rows[-1]["sequence"]) + 1
                yield RecordBatch(batch.data, rows)
            if expected > last:
                return
        raise JournalError(f"the journal ends before record {expected}, but had records up to {last}", where=self.where)

    def _batches(self, first: int) -> Iterator[RecordBatch]:
        if self.is_remote:
            yield from self._remote_batches(first)
            return
        reader = _readers.pop(self.where, None) or JournalReader.open(self.where, READ_CONFIG)
        try:
            reader.seek(first)
            while len(batch := reader.read_batch()):
                yield batch
        finally:
            reader.close()
            _readers[self.where] = reader
            while len(_readers) > READERS_MAX:
                _readers.popitem(last=False)

    def _remote_batches(self, first: int) -> Iterator[RecordBatch]:
        host, port = self._address()
        loop = asyncio.new_event_loop()
        batches = follow_remote_batches(host, port, from_sequence=first, is_live=False, **self._access())
        try:
            while True:
                try:
                    yield loop.run_until_complete(anext(batches))
                except StopAsyncIteration:
                    return
        finally:
            loop.run_until_complete(batches.aclose())
            loop.close()

    def _address(self) -> tuple[str, int]:
        return parse_address(self.where)

    def _access(self) -> dict[str, Any]:
        try:
            tls = ssl.create_default_context(cafile=self.ca) if self.ca else None
        except OSError as error:
            raise ConfigurationError(f"cannot read the CA file: {error.strerror or error}", where=self.ca) from None
        return {
            "secret": read_secret(Path(self.secret)) if self.secret else None,
            "tls": tls,
            "node": "spark",
            "log_in": _log_in(self.admin, self.credentials),
        }


@functools.lru_cache(maxsize=LOGINS_MAX)
def _log_in(url: str, credentials: str) -> JournalLogin | None:
    """Return this process's login: all its tasks share one subscription, because the number per client is limited."""
    access = admin_access(url, credentials)
    return None if access is None else JournalLogin(access)


def parse_address(where: str) -> tuple[str, int]:
    """Return host and port of tcp://host:port."""
    parts = urlsplit(where)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or parts.scheme != "tcp":
        raise ConfigurationError(f"{where!r} is not a journal address", hint="use tcp://host:port, or host:port")
    return host, port


def find_journals(
    patterns: tuple[str, ...], connect: tuple[str, ...], secret: str, ca: str, admin: str = "", credentials: str = ""
) -> list[JournalPlace]:
    """Return the journals in these directories (wildcards allowed) and at these addresses; raise an error if there is
    none.
    """
    found: dict[str, JournalPlace] = {}
    for pattern in patterns:
        is_pattern = any(sign in pattern for sign in "*?[") and not Path(pattern).exists()
        paths = sorted(glob.glob(pattern, recursive=True)) if is_pattern else [pattern]
        if not paths:
            raise JournalError("no journal matches this path", where=pattern)
        for path in paths:
            found[path] = JournalPlace(str(Path(path).absolute()))
    for address in connect:
        where = address if address.startswith(REMOTE) else REMOTE + address
        parse_address(where)
        found[where] = JournalPlace(where, secret, ca, admin, credentials)
    if not found:
        raise ConfigurationError("no journal is given", hint="set option journal (directories) or connect (host:port)")
    return list(found.values())
