"""Truncation: removing the newest records of a journal."""

from pathlib import Path

import pytest

from penstock.base.errors import JournalLockedError
from penstock.journal import JournalConfig, JournalReader, JournalWriter
from penstock.journal.live.truncation import cut

SMALL = JournalConfig(segment_bytes=4_096, preallocate_bytes=0)


def write(path: Path, *numbers: int) -> None:
    with JournalWriter.open(path, SMALL) as journal:
        for number in numbers:
            journal.append(number.to_bytes(8, "little") * 25)
            journal.commit()


def records(path: Path) -> list[int]:
    with JournalReader.open(path) as journal:
        return [int.from_bytes(each.payload[:8], "little") for each in journal.read()]


@pytest.mark.parametrize("after", [1, 7, 19, 40, 59, 60])
def test_records_after_the_truncation_point_are_removed_and_the_journal_continues(tmp_path: Path, after: int) -> None:
    write(tmp_path, *range(1, 61))
    assert len(list(tmp_path.glob("*"))) > 3, "there are several segments"
    cut(tmp_path, after)
    assert records(tmp_path) == list(range(1, after + 1))
    cut(tmp_path, after)  # again, as after a crash
    write(tmp_path, 900, 901)
    assert records(tmp_path) == [*range(1, after + 1), 900, 901]


def test_all_records_can_be_removed_and_numbers_begin_elsewhere(tmp_path: Path) -> None:
    write(tmp_path, *range(1, 61))
    cut(tmp_path, 0)
    assert records(tmp_path) == []
    with JournalWriter.open(tmp_path, SMALL, first=500) as journal:
        assert journal.append(b"5" * 100) == 500


def test_a_journal_with_an_open_writer_is_not_truncated(tmp_path: Path) -> None:
    with JournalWriter.open(tmp_path, SMALL) as journal:
        journal.append(b"1")
        with pytest.raises(JournalLockedError):
            cut(tmp_path, 0)
    cut(tmp_path, 0)
    assert records(tmp_path) == []
