"""A journal wherever it is: in a directory, or served over TCP by `penstock journal serve`.

    place = JournalPlace("captured.d")              # or JournalPlace("tcp://10.0.0.7:7410", secret="…", ca="…")
    place.measure()                                 # which records there are
    for batch in place.read(1_000, 2_000): ...      # these records

It is plain data, and goes with the tasks to wherever they run. The files it names must be there.
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
"""Those used last in this process: they know places in the segments, so that the next stretch is found at once."""


class JournalPlace(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a journal is, and what it takes to read it there."""

    where: str
    """A directory, or tcp://host:port."""
    secret: str = ""
    """The file with the secret that the server shares; only for TCP."""
    ca: str = ""
    """Certificates that a TLS connection is checked with; without, there is no TLS."""
    admin: str = ""
    """The administration server whose tokens the journal's server asks for; only for TCP."""
    credentials: str = ""
    """The file with the credentials at the administration server."""

    @property
    def is_remote(self) -> bool:
        return self.where.startswith(REMOTE)

    def measure(self, from_time_ns: int | None = None) -> Extent:
        """Which records there are; with a time, also the first that is not older."""
        if not self.is_remote:
            return measure(self.where, from_time_ns)
        host, port = self._address()
        return asyncio.run(measure_remote(host, port, from_time_ns=from_time_ns, **self._access()))

    def read(self, first: int, last: int) -> Iterator[RecordBatch]:
        """The records from `first` to `last`, all of them; JournalError if there are fewer."""
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
        raise JournalError(f"ends before record {expected}, though records up to {last} were there", where=self.where)

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
            raise ConfigurationError(f"cannot be read: {error.strerror or error}", where=self.ca) from None
        return {
            "secret": read_secret(Path(self.secret)) if self.secret else None,
            "tls": tls,
            "node": "spark",
            "log_in": _log_in(self.admin, self.credentials),
        }


@functools.lru_cache(maxsize=LOGINS_MAX)
def _log_in(url: str, credentials: str) -> JournalLogin | None:
    """Of this process: the tasks that run in it share one subscription, because a client has a limited number."""
    access = admin_access(url, credentials)
    return None if access is None else JournalLogin(access)


def parse_address(where: str) -> tuple[str, int]:
    """Host and port of tcp://host:port."""
    parts = urlsplit(where)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or parts.scheme != "tcp":
        raise ConfigurationError(f"{where!r} is no address of a journal", hint="tcp://host:port, or host:port")
    return host, port


def find_journals(
    patterns: tuple[str, ...], connect: tuple[str, ...], secret: str, ca: str, admin: str = "", credentials: str = ""
) -> list[JournalPlace]:
    """The journals in these directories (with * and the like) and at these addresses; an error if there is none."""
    found: dict[str, JournalPlace] = {}
    for pattern in patterns:
        is_pattern = any(sign in pattern for sign in "*?[") and not Path(pattern).exists()
        paths = sorted(glob.glob(pattern, recursive=True)) if is_pattern else [pattern]
        if not paths:
            raise JournalError("no journal has a name like this", where=pattern)
        for path in paths:
            found[path] = JournalPlace(str(Path(path).absolute()))
    for address in connect:
        where = address if address.startswith(REMOTE) else REMOTE + address
        parse_address(where)
        found[where] = JournalPlace(where, secret, ca, admin, credentials)
    if not found:
        raise ConfigurationError("no journal is named", hint="option journal (directories) or connect (host:port)")
    return list(found.values())
