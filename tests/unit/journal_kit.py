"""Helpers shared by the journal's tests."""

from pathlib import Path

from penstock.journal import JournalConfig, JournalReader, JournalWriter, Record

SMALL = JournalConfig(segment_bytes=4_096, preallocate_bytes=0)


def write(path: Path, payloads: list[bytes], config: JournalConfig = SMALL, *, per_commit: int = 1) -> None:
    """A journal with these records, in commits of several records."""
    with JournalWriter.open(path, config) as journal:
        for index, payload in enumerate(payloads, start=1):
            journal.append(payload, index * 10)
            if index % per_commit == 0:
                journal.commit()


def read(path: Path) -> list[Record]:
    with JournalReader.open(path) as reader:
        return list(reader.read())


def segments(path: Path) -> list[Path]:
    return sorted(path.glob("*.journal"))
