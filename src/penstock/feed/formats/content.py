"""Detection of a file's format from its first bytes: a capture, messages, text, or not a feed."""

import re

from penstock.feed.formats.pcap import is_capture
from penstock.feed.formats.stream import COMPRESSIONS, excerpt

LOOK_SIZE = 4_096
"""Number of bytes examined."""

BLOCK_SIZE_USUAL = 1_024
"""A file counts as messages with sizes before them if the first messages are not larger than this."""

TABLE_LINES = 64
"""Number of lines of a text examined."""

SIGNATURES = {
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"Obj\x01": "an Avro file",
    b"ORC": "an ORC file",
    b"BZh": "compressed with bzip2",
    b"\xfd7zXZ\0": "compressed with xz",
    b"\x04\x22\x4d\x18": "compressed with LZ4",
    b"PK\x05\x06": "a zip archive without a file",
    b"7z\xbc\xaf\x27\x1c": "a 7-Zip archive",
    b"Rar!": "a RAR archive",
    b"\x89HDF\r\n\x1a\n": "an HDF5 file",
    b"SQLite format 3\0": "a SQLite database",
    b"%PDF": "a PDF document",
    b"\x7fELF": "a program",
}

DBZ_FRAME = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18.{4}DBZ", re.DOTALL)
"""A Zstandard frame to be skipped, with the metadata of Databento's first format."""

CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")
JSON_START = re.compile(rb'\s*(\d+\s+)?[\[{]\s*["\[{\]}\d]')
"""An object or a list, or a line with the time of its receipt before one."""


def foreign(start: bytes) -> str:
    """The format of a file that is certainly not a supported feed; empty if unknown."""
    if start.startswith(b"DBN") and len(start) > 3:
        return f"Databento Binary Encoding (DBN version {start[3]}){_dataset(start)}"
    if DBZ_FRAME.match(start):
        return "Databento's older encoding (DBZ)"
    if is_text(start) and JSON_START.match(start):
        return "JSON"
    for signature, what in SIGNATURES.items():
        if start.startswith(signature):
            return what
    for name, signature in COMPRESSIONS.items():
        if start.startswith(signature):
            return f"compressed twice, the second time with {name}"
    return ""


def is_text(start: bytes) -> bool:
    return bool(start) and CONTROL.search(start) is None


def is_table(start: bytes) -> bool:
    """True if every line of a text has at least two columns; empty lines and comments do not count."""
    lines = [line for line in start.split(b"\n")[:TABLE_LINES] if line.strip() and not line.startswith(b"#")]
    return bool(lines) and all(b"," in line for line in lines[: max(len(lines) - 1, 1)])


def is_blocks(start: bytes) -> bool:
    """True if messages with their sizes before them begin here: every size in the examined bytes is plausible."""
    at = 0
    while at + 2 <= len(start):
        size = int.from_bytes(start[at : at + 2], "big")
        if not 1 <= size <= BLOCK_SIZE_USUAL:
            return False
        at += 2 + size
    return at > 0


def described(start: bytes) -> str:
    """Describe unrecognised content: its kind and its first bytes."""
    if is_text(start):
        line = start.split(b"\n", 1)[0][:60].decode("utf-8", errors="replace").strip()
        return f"text of unknown layout that begins {line!r}"
    return f"binary data of unknown format that begins {excerpt(start)}"


def _dataset(start: bytes) -> str:
    """The dataset's code in 16 bytes, after the version and the size of the metadata."""
    code = start[8:24].rstrip(b"\0")
    return f" of {code.decode('ascii')}" if code.isascii() and code.decode("ascii").isprintable() and code else ""


__all__ = ["LOOK_SIZE", "described", "foreign", "is_blocks", "is_capture", "is_text"]
