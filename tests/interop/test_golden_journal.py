"""A journal's bytes never change: golden files, an independent decoder, and files of the real writer."""

from pathlib import Path

import pytest

from interop import journal_decoder
from penstock.journal import JournalConfig, JournalWriter
from penstock.journal.core import _log as layout
from penstock.journal.core._log import RecordBuffer
from penstock.journal.core.format import (
    MARK_NAME,
    OLDEST_NAME,
    Mark,
    Oldest,
    SegmentHeader,
    decode_header,
    decode_mark,
    decode_oldest,
    encode_header,
    encode_mark,
    encode_oldest,
)

GOLDEN = Path(__file__).parent / "golden_journal"
JOURNAL_ID = bytes(range(16))
BOOT_ID = bytes(range(16, 32))
HEADER = SegmentHeader(
    journal_id=JOURNAL_ID, nonce=0xC0FFEE01, first_sequence=1_001, previous_first=501, created_ns=1_767_225_600 * 10**9
)
MARK = Mark(journal_id=JOURNAL_ID, boot_id=BOOT_ID, durable=1_003)
PAYLOADS = [(b"", -1), (b"seven b", 1_767_225_600_000_000_001), (bytes(range(40)), 1_767_225_600_000_000_002)]


def golden(name: str) -> bytes:
    return bytes.fromhex((GOLDEN / f"{name}.hex").read_text())


def segment() -> bytes:
    records = RecordBuffer(HEADER.first_sequence)
    for payload, timestamp_ns in PAYLOADS:
        records.append(payload, timestamp_ns)
    records.seal(HEADER.nonce, 1_000)
    return encode_header(HEADER) + bytes(records)


def test_golden_segment() -> None:
    assert segment() == golden("segment")
    assert decode_header(golden("segment"), where="golden") == HEADER


def test_golden_mark() -> None:
    assert encode_mark(MARK) == golden("mark")
    assert decode_mark(golden("mark")) == MARK


def test_golden_oldest() -> None:
    assert encode_oldest(Oldest(journal_id=JOURNAL_ID, sequence=501)) + bytes(512) == golden("oldest")
    assert decode_oldest(golden("oldest"), where="golden") == [Oldest(journal_id=JOURNAL_ID, sequence=501), None]


def test_the_independent_decoder_reads_the_golden_files() -> None:
    header, records = journal_decoder.decode_segment(golden("segment"))
    assert header == (1, HEADER.nonce, JOURNAL_ID, 1_001, 501, HEADER.created_ns)
    assert [(each.payload, each.timestamp_ns) for each in records] == PAYLOADS
    assert [(each.sequence, each.durable) for each in records] == [(1_001, 1_000), (1_002, 1_000), (1_003, 1_000)]
    assert journal_decoder.decode_mark(golden("mark")) == (1, JOURNAL_ID, BOOT_ID, 1_003)
    assert journal_decoder.decode_oldest(golden("oldest")) == [(1, JOURNAL_ID, 501)]


@pytest.mark.parametrize("preallocate_bytes", [0, 65_536])
def test_the_independent_decoder_reads_files_of_the_writer(tmp_path: Path, preallocate_bytes: int) -> None:
    config = JournalConfig(segment_bytes=4_096, preallocate_bytes=preallocate_bytes)
    payloads = [bytes([number]) * (number * 7 % 300) for number in range(1, 101)]
    journal = JournalWriter.open(tmp_path, config)
    with journal:
        for number, payload in enumerate(payloads, start=1):
            journal.append(payload, number)
            if number % 3 == 0:
                journal.commit()
        journal.commit()
        check(tmp_path, payloads)
    check(tmp_path, payloads)


def check(path: Path, payloads: list[bytes]) -> None:
    found: list[journal_decoder.Record] = []
    previous = 0
    for file in sorted(path.glob("*.journal")):
        header, records = journal_decoder.decode_segment(file.read_bytes())
        assert file.name == f"{header.first_sequence:020}.journal"
        assert header.previous_first == previous
        previous = header.first_sequence
        found += records
    assert [each.payload for each in found] == payloads
    assert [each.timestamp_ns for each in found] == [each.sequence for each in found] == list(range(1, 101))
    assert journal_decoder.decode_mark((path / MARK_NAME).read_bytes()).durable == 100
    assert [each.sequence for each in journal_decoder.decode_oldest((path / OLDEST_NAME).read_bytes())] == [1]


def test_the_layout_is_the_documented_one(project: Path) -> None:
    """The code has the offsets of the document's tables."""
    text = (project / "docs" / "reference" / "protocol" / "journal.md").read_text()
    for name, at in (
        ("nonce", layout.SEGMENT_NONCE_AT),
        ("journal_id", layout.SEGMENT_JOURNAL_ID_AT),
        ("first_sequence", layout.SEGMENT_FIRST_AT),
        ("previous_first", layout.SEGMENT_PREVIOUS_AT),
        ("created", layout.SEGMENT_CREATED_AT),
        ("sequence", layout.RECORD_SEQUENCE_AT),
        ("timestamp", layout.RECORD_TIMESTAMP_AT),
        ("durable", layout.RECORD_DURABLE_AT),
        ("boot_id", layout.MARK_BOOT_ID_AT),
        ("durable", layout.MARK_DURABLE_AT),
    ):
        assert any(line.startswith(f"| {at} | ") and f"| {name} |" in line for line in text.splitlines()), name
