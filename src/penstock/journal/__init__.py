"""The journal: an append-only log in segment files. An acknowledged record is on the disk.

    core/     group commit (journal.py), recovery, format of segments and messages; no I/O. Read core/events.py first.
    live/     JournalWriter (driver.py), JournalReader (reader.py), files, verification, TCP server and client
    client, server    the public modules for following over TCP

Records are bytes; only the writer knows their contents. docs/reference/protocol/journal.md has the layout.
"""

from penstock.journal.config import FollowConfig, JournalConfig
from penstock.journal.core.journal import Journal
from penstock.journal.core.records import Record, RecordBatch
from penstock.journal.live._inline_commit import InlineWriter
from penstock.journal.live.driver import JournalWriter
from penstock.journal.live.reader import JournalReader

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
