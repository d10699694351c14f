"""Random bytes: the journal's decoders refuse them and never fail otherwise."""

import random

import msgspec
import numpy
import pytest

from penstock.base.errors import JournalError, RemoteProtocolError
from penstock.journal.core._log import RECORD_DTYPE, RecordBuffer, find_record, scan
from penstock.journal.core.format import (
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
from penstock.journal.core.messages import Records, decode_records
from penstock.journal.core.recovery import Segment, recover

ROUNDS = 3_000
SOAK_ROUNDS = 300_000
HEADER = SegmentHeader(journal_id=bytes(16), nonce=99, first_sequence=1, previous_first=0, created_ns=5)


@pytest.fixture
def rounds(soak: bool) -> int:
    return SOAK_ROUNDS if soak else ROUNDS


def journal(choice: random.Random) -> bytes:
    records = RecordBuffer(1)
    for _ in range(choice.randrange(6)):
        records.append(choice.randbytes(choice.randrange(60)), 1)
    records.seal(HEADER.nonce, 0)
    return encode_header(HEADER) + bytes(records)


def mutated(data: bytes, choice: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(choice.randrange(1, 5)):
        match choice.randrange(4):
            case 0 if changed:
                changed[choice.randrange(len(changed))] ^= 1 << choice.randrange(8)
            case 1:
                del changed[choice.randrange(len(changed) + 1) :]
            case 2:
                at = choice.randrange(len(changed) + 1)
                changed[at:at] = choice.randbytes(choice.randrange(20))
            case _ if len(changed) > 4:
                at = choice.randrange(len(changed) - 4)
                changed[at : at + 4] = choice.choice([bytes(4), b"\xff" * 4, b"\x20\0\0\0", b"\x21\0\0\0"])
    return bytes(changed)


def test_segments(rounds: int) -> None:
    choice, rows = random.Random(1), numpy.zeros(8, RECORD_DTYPE)
    for _ in range(rounds):
        good = journal(choice)
        data = mutated(good, choice)
        count, end, _ = scan(data, HEADER.nonce, 1, rows, min(64, len(data)))
        assert end <= len(data)
        for row in rows[:count]:
            assert data[row["offset"] : row["offset"] + row["size"]] in good
        find_record(data, HEADER.nonce, choice.randrange(10), min(64, len(data)))
        try:
            header = decode_header(data, where="fuzz")
            found = recover([Segment(header, len(data))], data, None, [], boot_id=bytes(16), new_journal_id=bytes(16))
        except JournalError:
            continue
        assert found.next_sequence <= 7


def test_marks(rounds: int) -> None:
    choice = random.Random(2)
    mark = Mark(journal_id=bytes(16), boot_id=bytes(16), durable=7)
    for _ in range(rounds):
        assert decode_mark(mutated(encode_mark(mark), choice)) in (None, mark)


def test_notes_of_the_oldest_record(rounds: int) -> None:
    choice = random.Random(3)
    oldest = Oldest(journal_id=bytes(16), sequence=7)
    for _ in range(rounds):
        slots = decode_oldest(mutated(encode_oldest(oldest) * 2, choice), where="fuzz")
        assert len(slots) == 2
        assert all(each in (None, oldest) for each in slots)


def test_messages(rounds: int) -> None:
    choice = random.Random(3)
    for _ in range(rounds):
        sizes = numpy.array([choice.randrange(9) for _ in range(choice.randrange(4))], "<u4")
        good = Records(1, sizes.tobytes(), bytes(8 * len(sizes)), bytes(int(sizes.sum())))
        for name in ("sizes", "timestamps", "data"):
            bad = msgspec.structs.replace(good, **{name: mutated(getattr(good, name), choice)})
            try:
                batch = decode_records(bad)
            except RemoteProtocolError:
                continue
            assert sum(len(record.payload) for record in batch) == len(bad.data)
