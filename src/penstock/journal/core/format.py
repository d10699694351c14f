"""The header of a segment, the mark file, the oldest file, and segment names.

docs/reference/protocol/journal.md draws all of them; the numbers are in _log.pxd.
"""

import re
import struct
from collections.abc import Sequence

import msgspec

from penstock.base.crc32c import crc32c
from penstock.base.errors import JournalCorruptError, JournalError
from penstock.journal.core._log import JOURNAL_VERSION, MARK_SIZE, SEGMENT_HEADER_SIZE

SEGMENT_MAGIC = b"PSJOURN\n"
MARK_MAGIC = b"PSJMARK\n"
MARK_NAME = "journal.mark"
OLDEST_MAGIC = b"PSJOLDE\n"
OLDEST_NAME = "journal.oldest"
NEW_SUFFIX = ".new"
"""Suffix of a segment's name while the segment is being created."""

SEGMENT = struct.Struct("<8sII16sQQqI")
MARK = struct.Struct("<8sII16s16sQI")
OLDEST = struct.Struct("<8sII16sQI")
CHECKSUM = struct.Struct("<I")
SEGMENT_NAME = re.compile(r"(\d{20})\.journal")
SEQUENCE_MAX = 2**63 - 1
OLDEST_SLOT_SIZE = 512
"""Each of the two slots is a separate sector, so that a write interrupted by a power failure leaves the other slot
valid.
"""
OLDEST_SIZE = 2 * OLDEST_SLOT_SIZE
OLDEST_VERSION = 1

assert SEGMENT.size + CHECKSUM.size == SEGMENT_HEADER_SIZE
assert MARK.size + CHECKSUM.size == MARK_SIZE


class SegmentHeader(msgspec.Struct, frozen=True, kw_only=True):
    journal_id: bytes
    nonce: int
    """Start value of the checksums of this segment's records, so that records of another file never pass as valid."""
    first_sequence: int
    previous_first: int
    """First sequence number of the previous segment, 0 if there was none."""
    created_ns: int


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """The position up to which the journal is known to be on disk. A writer renews the mark after every sync, and syncs
    it when closing.
    """

    journal_id: bytes
    boot_id: bytes
    """Identifies the boot of the machine in which the mark was written."""
    durable: int


class Oldest(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest retained record. The writer syncs this file before it removes segments of older records."""

    journal_id: bytes
    sequence: int


def segment_name(first_sequence: int) -> str:
    return f"{first_sequence:020}.journal"


def parse_segment_name(name: str) -> int | None:
    """Return the first sequence number in the segment; None if the name is not a segment name."""
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
        raise JournalCorruptError(f"the file has {len(data)} bytes, less than a segment's header", where=where)
    magic, version, nonce, journal_id, first, previous, created_ns, _ = SEGMENT.unpack_from(data)
    if magic != SEGMENT_MAGIC:
        raise JournalError("the file is not a journal segment", where=where, hint="move foreign files elsewhere")
    if crc32c(data[: SEGMENT.size]) != CHECKSUM.unpack_from(data, SEGMENT.size)[0]:
        raise JournalCorruptError("the segment's header is damaged", where=where)
    if version != JOURNAL_VERSION:
        raise JournalError(
            f"the segment has format version {version}, but this program reads version {JOURNAL_VERSION}", where=where
        )
    return SegmentHeader(
        journal_id=journal_id, nonce=nonce, first_sequence=first, previous_first=previous, created_ns=created_ns
    )


def encode_mark(mark: Mark) -> bytes:
    body = MARK.pack(MARK_MAGIC, JOURNAL_VERSION, 0, mark.journal_id, mark.boot_id, mark.durable, 0)
    return body + CHECKSUM.pack(crc32c(body))


def decode_mark(data: bytes) -> Mark | None:
    """Decode the mark; None when it is missing, torn or of another version. Losing the mark is harmless."""
    if len(data) < MARK_SIZE or crc32c(data[: MARK.size]) != CHECKSUM.unpack_from(data, MARK.size)[0]:
        return None
    magic, version, _, journal_id, boot_id, durable, _ = MARK.unpack_from(data)
    if magic != MARK_MAGIC or version != JOURNAL_VERSION:
        return None
    return Mark(journal_id=journal_id, boot_id=boot_id, durable=durable)


def encode_oldest(oldest: Oldest) -> bytes:
    """Encode one slot."""
    body = OLDEST.pack(OLDEST_MAGIC, OLDEST_VERSION, 0, oldest.journal_id, oldest.sequence, 0)
    return (body + CHECKSUM.pack(crc32c(body))).ljust(OLDEST_SLOT_SIZE, b"\0")


def decode_oldest(data: bytes, *, where: str) -> list[Oldest | None]:
    """Decode each slot; None for a missing or torn slot."""
    return [_decode_slot(data[at : at + OLDEST_SLOT_SIZE], where) for at in range(0, OLDEST_SIZE, OLDEST_SLOT_SIZE)]


def _decode_slot(data: bytes, where: str) -> Oldest | None:
    if len(data) < OLDEST_SLOT_SIZE or crc32c(data[: OLDEST.size]) != CHECKSUM.unpack_from(data, OLDEST.size)[0]:
        return None
    magic, version, _, journal_id, sequence, _ = OLDEST.unpack_from(data)
    if magic != OLDEST_MAGIC:
        return None
    if version != OLDEST_VERSION:
        raise JournalError(
            f"the file has format version {version}, but this program reads version {OLDEST_VERSION}", where=where
        )
    return Oldest(journal_id=journal_id, sequence=sequence)


def newest_slot(slots: Sequence[Oldest | None], journal_id: bytes) -> int | None:
    """Return the index of this journal's current slot: the valid one with the highest sequence number."""
    ours = [(each.sequence, at) for at, each in enumerate(slots) if each is not None and each.journal_id == journal_id]
    return max(ours)[1] if ours else None
