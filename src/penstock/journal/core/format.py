"""What stands in front of a segment's records, the mark beside the segments, and their names.

docs/reference/protocol/journal.md draws all of it; the numbers are in _log.pxd.
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
"""Ends the name of a segment while it is made."""

SEGMENT = struct.Struct("<8sII16sQQqI")
MARK = struct.Struct("<8sII16s16sQI")
OLDEST = struct.Struct("<8sII16sQI")
CHECKSUM = struct.Struct("<I")
SEGMENT_NAME = re.compile(r"(\d{20})\.journal")
SEQUENCE_MAX = 2**63 - 1
OLDEST_SLOT_SIZE = 512
"""Each of the two slots is a sector of its own: a write that a power failure interrupts leaves the other slot whole."""
OLDEST_SIZE = 2 * OLDEST_SLOT_SIZE
OLDEST_VERSION = 1

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


class Oldest(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest record that the journal retains. The writer syncs it before it removes the segments of older ones."""

    journal_id: bytes
    sequence: int


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


def encode_oldest(oldest: Oldest) -> bytes:
    """One slot."""
    body = OLDEST.pack(OLDEST_MAGIC, OLDEST_VERSION, 0, oldest.journal_id, oldest.sequence, 0)
    return (body + CHECKSUM.pack(crc32c(body))).ljust(OLDEST_SLOT_SIZE, b"\0")


def decode_oldest(data: bytes, *, where: str) -> list[Oldest | None]:
    """Each slot; None when it is missing or torn."""
    return [_decode_slot(data[at : at + OLDEST_SLOT_SIZE], where) for at in range(0, OLDEST_SIZE, OLDEST_SLOT_SIZE)]


def _decode_slot(data: bytes, where: str) -> Oldest | None:
    if len(data) < OLDEST_SLOT_SIZE or crc32c(data[: OLDEST.size]) != CHECKSUM.unpack_from(data, OLDEST.size)[0]:
        return None
    magic, version, _, journal_id, sequence, _ = OLDEST.unpack_from(data)
    if magic != OLDEST_MAGIC:
        return None
    if version != OLDEST_VERSION:
        raise JournalError(f"has version {version} of the format, this program knows {OLDEST_VERSION}", where=where)
    return Oldest(journal_id=journal_id, sequence=sequence)


def newest_slot(slots: Sequence[Oldest | None], journal_id: bytes) -> int | None:
    """The index of this journal's current slot: the valid one with the highest sequence number."""
    ours = [(each.sequence, at) for at, each in enumerate(slots) if each is not None and each.journal_id == journal_id]
    return max(ours)[1] if ours else None
