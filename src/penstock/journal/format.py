"""What stands in front of a segment's records, the mark beside the segments, and their names.

docs/protocol/journal.md draws all of it; the numbers are in _log.pxd.
"""

import re
import struct

import msgspec

from penstock.base.crc32c import crc32c
from penstock.base.errors import JournalCorruptError, JournalError
from penstock.journal._log import JOURNAL_VERSION, MARK_SIZE, SEGMENT_HEADER_SIZE

SEGMENT_MAGIC = b"PSJOURN\n"
MARK_MAGIC = b"PSJMARK\n"
MARK_NAME = "journal.mark"
NEW_SUFFIX = ".new"
"""Ends the name of a segment while it is made."""

SEGMENT = struct.Struct("<8sII16sQQqI")
MARK = struct.Struct("<8sII16s16sQI")
CHECKSUM = struct.Struct("<I")
SEGMENT_NAME = re.compile(r"(\d{20})\.journal")
SEQUENCE_MAX = 2**63 - 1

assert SEGMENT.size + CHECKSUM.size == SEGMENT_HEADER_SIZE
assert MARK.size + CHECKSUM.size == MARK_SIZE


class SegmentHeader(msgspec.Struct, frozen=True, kw_only=True):
    journal_id: bytes
    nonce: int
    """Where the checksums of this segment's records begin, so that records of another file never pass for its own."""
    first_sequence: int
    previous_first: int
    """The first sequence number of the segment before, 0 if there was none."""
    created_ns: int


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """How far the journal is known to be on the disk. A writer renews it after every sync, and syncs it at its end."""

    journal_id: bytes
    boot_id: bytes
    """Of the run of the machine in which the mark was written."""
    durable: int


def segment_name(first_sequence: int) -> str:
    return f"{first_sequence:020}.journal"


def parse_segment_name(name: str) -> int | None:
    """The first sequence number in the segment, or None when the name is not a segment's."""
    match = SEGMENT_NAME.fullmatch(name)
    return int(match[1]) if match else None


def encode_header(header: SegmentHeader) -> bytes:
    body = SEGMENT.pack(
        SEGMENT_MAGIC,
        JOURNAL_VERSION,
        header.nonce,
        header.journal_id,
        header.first_sequence,
        header.previous_first,
        header.created_ns,
        0,
    )
    return body + CHECKSUM.pack(crc32c(body))


def decode_header(data: bytes, *, where: str) -> SegmentHeader:
    """Check the header at the start of `data`; `where` names the file in errors."""
    if len(data) < SEGMENT_HEADER_SIZE:
        raise JournalCorruptError(f"has {len(data)} bytes, which is less than a segment's header", where=where)
    magic, version, nonce, journal_id, first, previous, created_ns, _ = SEGMENT.unpack_from(data)
    if magic != SEGMENT_MAGIC:
        raise JournalError("is not a segment of a journal", where=where, hint="move foreign files elsewhere")
    if crc32c(data[: SEGMENT.size]) != CHECKSUM.unpack_from(data, SEGMENT.size)[0]:
        raise JournalCorruptError("the segment's header is damaged", where=where)
    if version != JOURNAL_VERSION:
        raise JournalError(f"has version {version} of the format, this program knows {JOURNAL_VERSION}", where=where)
    return SegmentHeader(
        journal_id=journal_id, nonce=nonce, first_sequence=first, previous_first=previous, created_ns=created_ns
    )


def encode_mark(mark: Mark) -> bytes:
    body = MARK.pack(MARK_MAGIC, JOURNAL_VERSION, 0, mark.journal_id, mark.boot_id, mark.durable, 0)
    return body + CHECKSUM.pack(crc32c(body))


def decode_mark(data: bytes) -> Mark | None:
    """The mark, or None when it is missing, torn or of another version; it may be lost."""
    if len(data) < MARK_SIZE or crc32c(data[: MARK.size]) != CHECKSUM.unpack_from(data, MARK.size)[0]:
        return None
    magic, version, _, journal_id, boot_id, durable, _ = MARK.unpack_from(data)
    if magic != MARK_MAGIC or version != JOURNAL_VERSION:
        return None
    return Mark(journal_id=journal_id, boot_id=boot_id, durable=durable)
