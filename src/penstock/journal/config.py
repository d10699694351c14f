"""Configuration and limits for writing, following and serving a journal."""

from typing import Annotated

import msgspec

from penstock.base.config import Config
from penstock.base.limits import JOURNAL_PAYLOAD_SIZE_MAX

GIB = 1024**3
MIB = 1024**2

Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=3_600_000)]


class JournalConfig(Config, frozen=True):
    segment_bytes: Annotated[int, msgspec.Meta(ge=4_096, le=GIB)] = 64 * MIB
    """Size at which a new segment begins. A batch is never split, so a segment may exceed the size by one batch."""

    linger_us: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 1_000
    """Maximum time that an uncommitted record waits in a batch before the write; commit() writes at once."""

    gather_bytes_max: Annotated[int, msgspec.Meta(ge=4_096, le=256 * MIB)] = 16 * MIB
    """Maximum size of the batch in memory while the disk is busy; further appends wait."""

    preallocate_bytes: Annotated[int, msgspec.Meta(ge=0, le=GIB)] = 4 * MIB
    """Bytes preallocated ahead of the records, which makes syncs faster; 0 disables preallocation."""

    retention_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Maximum total size of all segments; the oldest whole segments are removed. 0: no limit."""

    retention_seconds: Annotated[int, msgspec.Meta(ge=0, le=10**10)] = 0
    """Maximum age of a segment since its end; older segments are removed. 0: no limit."""

    retry_ms: Milliseconds = 100
    """Retry interval while the disk is full."""

    failures_max: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    """Number of consecutive I/O errors, each on a new segment, after which the journal fails permanently."""


class FollowConfig(Config, frozen=True):
    """Polling interval and read size of a reader that follows a journal."""

    poll_min_us: Annotated[int, msgspec.Meta(ge=10, le=1_000_000)] = 200
    """Minimum polling interval; it doubles while no record arrives."""

    poll_max_us: Annotated[int, msgspec.Meta(ge=10, le=10_000_000)] = 10_000
    """Maximum polling interval."""

    chunk_bytes: Annotated[int, msgspec.Meta(ge=4_096, le=64 * MIB)] = MIB
    """Bytes read from a segment at a time; more for a larger record."""


RECORD_SPACE_MAX = JOURNAL_PAYLOAD_SIZE_MAX + 64
"""Maximum size of a record in bytes, with header and padding."""
