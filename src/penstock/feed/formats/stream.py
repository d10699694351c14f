"""Reads a file, plain or compressed (gzip, Zstandard, a zip archive of one file), and records its damages."""

import io
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO, Protocol, cast

import msgspec

CHUNK_SIZE = 256 * 1024
EXCERPT_SIZE = 24
DAMAGES_MAX = 100
GZIP_BITS = 31

COMPRESSIONS = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd", "zip": b"PK\x03\x04"}
"""The magic numbers."""

ZSTD_READ_SIZE = 16 * 1024
"""Bytes decompressed at a time; a truncated file loses at most this many before its end."""

UNPACK_ERRORS = (OSError, EOFError, RuntimeError, NotImplementedError, zlib.error, zipfile.BadZipFile)
"""Exceptions of libraries for archives that are damaged, encrypted or packed in an unknown way."""


class Damage(msgspec.Struct, frozen=True):
    """A damage in a file. All valid data before it has been returned."""

    what: str
    offset: int
    """Position in bytes from the start of the file; after decompression, if it is compressed."""

    excerpt: str = ""
    """The first bytes at this position, in hexadecimal."""

    def __str__(self) -> str:
        bytes_there = f": {self.excerpt}" if self.excerpt else ""
        return f"at {self.offset:,}: {self.what}{bytes_there}"


class Damages:
    """Damages in order: the first ones in full, the others only counted."""

    def __init__(self) -> None:
        self._first: list[Damage] = []
        self.total = 0

    def note(self, damage: Damage | None) -> None:
        """Record a damage; None is ignored."""
        if damage is not None:
            self.total += 1
            if len(self._first) < DAMAGES_MAX:
                self._first.append(damage)

    def __iter__(self) -> Iterator[Damage]:
        return iter(self._first)

    def __len__(self) -> int:
        return len(self._first)


def excerpt(data: bytes | memoryview) -> str:
    return bytes(data[:EXCERPT_SIZE]).hex(" ")


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...

    def readinto(self, room: memoryview, /) -> int | None: ...


def compression_of(start: bytes) -> str:
    """The name of the compression of a file with these first bytes; empty: none."""
    return next((name for name, magic in COMPRESSIONS.items() if start.startswith(magic)), "")


class ByteStream:
    """Reads a file from its start; compressed content is detected and decompressed piece by piece. `name` is that of
    the file in a zip archive.

    If the file is truncated or damaged, everything before that is returned, then the stream ends and `damage` has
    the error.
    """

    def __init__(self, file: Readable) -> None:
        self._file = file
        self._buffer = bytearray()
        self._raw = file.read(CHUNK_SIZE)
        self.compression = compression_of(self._raw)
        self._unpacker = zlib.decompressobj(GZIP_BITS) if self.compression == "gzip" else None
        self.offset = 0
        """Offset of the next byte that read() returns."""

        self.damage: Damage | None = None
        self.name = ""
        self._unpacked = self._open_unpacked()

    def read(self, size: int) -> bytes:
        """Read `size` bytes, fewer only at the end."""
        more = b"" if self._buffer else self._more()
        if len(more) == size:
            self.offset += size
            return more  # as read
        self._buffer += more
        while len(self._buffer) < size and (more := self._more()):
            self._buffer += more
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        self.offset += len(data)
        return data

    def read_into(self, room: memoryview) -> int:
        """Read the next bytes into reused memory, as many as are available at once; 0 at the end."""
        if self.compression or self._buffer or self._raw:
            data = self.read(len(room))
            room[: len(data)] = data
            return len(data)
        size = self._file.readinto(room) or 0
        self.offset += size
        return size

    def peek(self, size: int) -> bytes:
        """The next bytes, without taking them."""
        data = self.read(size)
        self._buffer[:0] = data
        self.offset -= len(data)
        return data

    def _more(self) -> bytes:
        if not self.compression:
            raw, self._raw = self._raw, b""
            return raw or self._file.read(CHUNK_SIZE)
        if self.compression != "gzip":
            return self._more_unpacked()
        while self.damage is None:
            self._raw = self._raw or self._file.read(CHUNK_SIZE)
            if self._unpacker is None and self._raw:
                self._unpacker = zlib.decompressobj(GZIP_BITS)  # another member follows
            if self._unpacker is None:
                return b""
            if not self._raw:
                self._give_up("the compressed file is truncated")
                return self._unpacker.flush()
            if unpacked := self._unpack(self._unpacker):
                return unpacked
        return b""

    def _unpack(self, unpacker: "zlib._Decompress") -> bytes:
        try:
            unpacked = unpacker.decompress(self._raw, CHUNK_SIZE)
        except zlib.error as error:
            self._give_up(f"the compressed file is damaged ({error})")
            return b""
        self._raw = unpacker.unconsumed_tail or unpacker.unused_data
        if unpacker.eof:
            self._unpacker = None
            self._raw = self._raw.lstrip(b"\0")  # padding between members, or after the last
        return unpacked

    def _open_unpacked(self) -> Readable | None:
        try:
            if self.compression == "zstd":
                from pyarrow import CompressedInputStream, PythonFile

                whole = PythonFile(io.BufferedReader(_Rejoined(self._raw, self._file)), mode="r")
                return cast(Readable, CompressedInputStream(whole, "zstd"))
            if self.compression == "zip":
                return self._open_member(zipfile.ZipFile(cast(BinaryIO, self._file)))
        except UNPACK_ERRORS as error:
            self._give_up(f"the {self.compression} file is damaged ({error})")
        return None

    def _open_member(self, archive: zipfile.ZipFile) -> Readable | None:
        members = [member for member in archive.infolist() if not member.is_dir()]
        if len(members) != 1:
            names = ", ".join(member.filename for member in members[:3])
            self._give_up(f"the zip file has {len(members)} files, not one: {names}")
            return None
        self.name = members[0].filename
        return cast(Readable, archive.open(members[0]))

    def _more_unpacked(self) -> bytes:
        if self._unpacked is None or self.damage is not None:
            return b""
        try:
            return self._unpacked.read(ZSTD_READ_SIZE if self.compression == "zstd" else CHUNK_SIZE)
        except UNPACK_ERRORS as error:
            self._give_up(f"the {self.compression} file is truncated or damaged ({error})")
            return b""

    def _give_up(self, what: str) -> None:
        self.damage = Damage(what, self.offset + len(self._buffer))


class _Rejoined(io.RawIOBase):
    """A file with its first bytes, which were already read, put back."""

    def __init__(self, start: bytes, file: Readable) -> None:
        super().__init__()
        self._start = memoryview(start)
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, room: "memoryview | bytearray") -> int:  # type: ignore[override]
        if self._start:
            size = min(len(room), len(self._start))
            room[:size] = self._start[:size]
            self._start = self._start[size:]
            return size
        data = self._file.read(len(room))
        room[: len(data)] = data
        return len(data)
