"""The cache of indexes of recorded feeds.

    cache/<name>-<digest of its path>/lock
                                      <digest of the request>/index.json, and the files it names

The directory of an index appears atomically when the index is complete. One process builds an index, while other
processes that need the same index wait. Building an index removes the indexes of earlier contents of the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

import msgspec

from penstock.base.crc32c import crc32c
from penstock.base.errors import FeedIndexError
from penstock.base.files import create_or_open, make_directory
from penstock.base.log import logger
from penstock.feed.recorded.files import open_file

DOCUMENT = "index.json"
MAKING = "making"
SAMPLE_SIZE = 64 * 1024

log = logger("spark.feeds")

T = TypeVar("T")


class _Document(msgspec.Struct, Generic[T]):
    """The content of index.json, which is stored after its checksum in 8 hexadecimal digits and a line feed."""

    file: str
    """Identifies the content of the feed's file."""
    sizes: dict[str, int]
    """Sizes of the other files of the index, in bytes."""
    content: T


class Making:
    """A directory in which an index is being built."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sizes: dict[str, int] = {}

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        """Create a file of the index; the file is complete and synced when the context ends."""
        with open(create_or_open(self.directory / name, os.O_RDWR | os.O_EXCL), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            self.sizes[name] = file.tell()


class FeedCache:
    """The indexes of one file. `root` is the cache directory (None: below the user's cache directory)."""

    def __init__(self, root: Path | None, path: Path) -> None:
        self._root = root or default_root()
        self._path = path
        full = path.resolve()
        self._directory = self._root / f"{full.name[:64]}-{sha256(os.fsencode(full)).hexdigest()[:16]}"
        self._file = _identity(path)

    def key(self, *parts: Any) -> str:
        """Return the key of an index that is built from the file's current content and these parts."""
        text = msgspec.json.encode([self._file, *parts])
        return f"{parts[0]}-{sha256(text).hexdigest()[:24]}"

    def get_or_make(self, key: str, kind: type[T], make: Callable[[Making], T]) -> tuple[T, Path]:
        """Return the index with this key and its directory; build the index if no complete one exists."""
        directory = self._directory / key
        found = _read(directory, kind)
        if found is not None:
            return found, directory
        try:
            make_directory(self._directory)
            with open(create_or_open(self._directory / "lock", os.O_WRONLY | os.O_APPEND), "ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                found = _read(directory, kind)  # another process may have built the index meanwhile
                if found is None:
                    self._remove_stale(key)
                    found = self._make(directory, make)
        except OSError as error:
            raise FeedIndexError(
                f"cannot build the index: {error.strerror}",
                where=str(self._directory),
                hint="set cache=DIR to another directory",
            ) from None
        return found, directory

    def _make(self, directory: Path, make: Callable[[Making], T]) -> T:
        making = Making(self._directory / MAKING)
        make_directory(making.directory)
        content = make(making)
        if _identity(self._path) != self._file:
            raise FeedIndexError(
                "the file changed while its index was built", where=str(self._path), hint="read the file again"
            )
        text = msgspec.json.encode(_Document(self._file, making.sizes, content))
        with making.create(DOCUMENT) as file:
            file.write(b"%08x\n" % crc32c(text) + text)
        os.rename(making.directory, directory)
        _sync(self._directory)
        return content

    def _remove_stale(self, key: str) -> None:
        """Remove indexes that are incomplete, damaged or built from an earlier content of the file."""
        for each in self._directory.iterdir():
            if each.is_dir() and (each.name in (MAKING, key) or _file_of(each) != self._file):
                log.info("index_removed", index=str(each))
                shutil.rmtree(each)


def default_root() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock" / "feeds"


def _identity(path: Path) -> str:
    """Return a digest of the file's size, modification time and samples of its content."""
    with open_file(path) as file:
        status = os.fstat(file.fileno())
        samples = sha256()
        for offset in (0, status.st_size // 2, status.st_size - SAMPLE_SIZE):
            samples.update(os.pread(file.fileno(), SAMPLE_SIZE, max(offset, 0)))
    return f"{status.st_size}-{status.st_mtime_ns}-{samples.hexdigest()[:24]}"


def _document(directory: Path) -> bytes | None:
    try:
        checksum, _, text = (directory / DOCUMENT).read_bytes().partition(b"\n")
    except OSError:
        return None
    return text if checksum == b"%08x" % crc32c(text) else None


def _read(directory: Path, kind: type[T]) -> T | None:
    """Return the index; None if the index is absent or incomplete."""
    text = _document(directory)
    try:
        if text is None:
            return None
        document = msgspec.json.decode(text, type=_Document[kind])  # type: ignore[valid-type]
        is_whole = all((directory / name).stat().st_size == size for name, size in document.sizes.items())
    except (msgspec.DecodeError, OSError):
        return None
    content: T = document.content
    return content if is_whole else None


def _file_of(directory: Path) -> str:
    """Return the file identity that an index was built from."""
    text = _document(directory)
    try:
        return msgspec.json.decode(text or b"null", type=_Document[Any]).file
    except msgspec.DecodeError:
        return ""


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
