"""How a journal is written, followed and served, and every bound that is kept."""

from typing import Annotated

import msgspec

from penstock.base.config import Config
from penstock.base.limits import JOURNAL_PAYLOAD_SIZE_MAX

GIB = 1024**3
MIB = 1024**2

Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=3_600_000)]


class JournalConfig(Config, frozen=True):
    segment_bytes: Annotated[int, msgspec.Meta(ge=4_096, le=GIB)] = 64 * MIB
    """Size at which a new segment begins. A batch is never divided, so a segment may be one batch longer."""

    linger_us: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 1_000
    """How long a record that nobody waits for may gather company before it is written; commit() writes at once."""

    gather_bytes_max: Annotated[int, msgspec.Meta(ge=4_096, le=256 * MIB)] = 16 * MIB
    """Bytes gathered in memory while the disk is busy; further appends wait."""

    preallocate_bytes: Annotated[int, msgspec.Meta(ge=0, le=GIB)] = 4 * MIB
    """Bytes that the file system is asked for ahead of the records, which makes syncs quicker; 0 for none."""

    retention_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Whole segments are removed, the oldest first, while all together have more bytes than this; 0 keeps them."""

    retention_seconds: Annotated[int, msgspec.Meta(ge=0, le=10**10)] = 0
    """Segments that ended longer ago than this are removed; 0 keeps them."""

    retry_ms: Milliseconds = 100
    """How often a full disk is tried again."""

    failures_max: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    """I/O errors in a row, each on a fresh segment, after which the journal fails for good."""


class FollowConfig(Config, frozen=True):
    """How a reader waits for new records, and how much it reads at once."""

    poll_min_us: Annotated[int, msgspec.Meta(ge=10, le=1_000_000)] = 200
    """Shortest wait between two looks at the journal; it doubles while nothing comes."""

    poll_max_us: Annotated[int, msgspec.Meta(ge=10, le=10_000_000)] = 10_000
    """Longest wait between two looks."""

    chunk_bytes: Annotated[int, msgspec.Meta(ge=4_096, le=64 * MIB)] = MIB
    """Bytes read from a segment at a time; more when one record is larger."""


RECORD_SPACE_MAX = JOURNAL_PAYLOAD_SIZE_MAX + 64
"""Bytes that one record takes at most, with its header and padding."""
