"""The journal: an append-only log in segment files; what was acknowledged is on the disk.

    driver.JournalWriter    appends, and waits for the disk
    reader.JournalReader    reads by sequence number or time, and follows the writer
    server, client          following over TCP

Records are bytes; what is in them is the writer's business. Read events.py first, then core.py for the group commit
and recovery.py for what happens after a crash. docs/protocol/journal.md has the bytes.
"""

from penstock.journal._inline_commit import InlineWriter
from penstock.journal.config import FollowConfig, JournalConfig
from penstock.journal.core import Journal
from penstock.journal.driver import JournalWriter
from penstock.journal.reader import JournalReader, Record, RecordBatch

__all__ = [
    "FollowConfig",
    "InlineWriter",
    "Journal",
    "JournalConfig",
    "JournalReader",
    "JournalWriter",
    "Record",
    "RecordBatch",
]
