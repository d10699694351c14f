"""Journals of random bytes: no crash, and complete accounts."""

import random
from pathlib import Path

from penstock.base.crc32c import crc32c
from penstock.capture.core.cursors import Cursors
from penstock.capture.core.rows import PacketRows
from penstock.journal import JournalWriter
from penstock.model import shipped
from penstock.spark.journals import JournalPlace
from penstock.spark.rowplan import RowPlan
from penstock.spark.slices import JournalSliceReader, cut
from penstock.wire import Extension, Origin, Packer, encode_extensions, encode_gone, encode_origin
from unit.rows_kit import batch_of

TRADE = shipped("trade")


def stamped(packet: bytearray) -> bytes:
    """With a correct checksum, so that other checks must find the damage."""
    if len(packet) >= 48:
        packet[8:12] = len(packet).to_bytes(4, "little")
        packet[12:16] = crc32c(bytes(packet[16:]), crc32c(bytes(packet[:12]))).to_bytes(4, "little")
    return bytes(packet)


def mutated(chance: random.Random, content: bytes) -> bytes:
    made = bytearray(content)
    for _ in range(chance.randrange(4)):
        match chance.randrange(4):
            case 0 if made:
                made[chance.randrange(len(made))] = chance.randrange(256)
            case 1:
                del made[chance.randrange(len(made) + 1) :]
            case 2:
                made += chance.randbytes(chance.randrange(64))
            case 3 if len(made) > 64:
                at = chance.randrange(48, len(made) - 2)
                made[at : at + 2] = chance.choice([0, 1, 7, 28, 255, 65_535]).to_bytes(2, "little")
    return stamped(made) if chance.random() < 0.8 else bytes(made)


def contents(chance: random.Random) -> list[bytes]:
    packer = Packer(chance.randrange(1, 3), 0xEF010101, 1)
    made: list[bytes] = []
    for number in range(1, chance.randrange(2, 40)):
        origin = Origin(
            chance.randrange(3), chance.choice([0, 1 << 14, 5 << 14]), 0, chance.randrange(8), number, number
        )
        extensions = encode_extensions({Extension.ORIGIN: encode_origin(origin)})
        payload = chance.choice([b"", bytes(TRADE.new(symbol="A")), chance.randbytes(3_000)])
        made += packer.add("a.b", payload, model_id=TRADE.id, model_version=chance.randrange(3), extensions=extensions)
        if chance.random() < 0.3:
            made += [packet for packet in [packer.flush()] if packet]
        if chance.random() < 0.1:
            made.append(encode_gone(1, 0xEF010101, 1, [(number, number)]))
    chance.shuffle(made) if chance.random() < 0.3 else None
    return [mutated(chance, content) for content in made]


def test_random_bytes_in_records(soak: bool) -> None:
    plan = RowPlan(("topic", "seq", "record", "symbol", "price"), TRADE, ("a.*",), "price > 1")
    for seed in range(20_000 if soak else 300):
        chance = random.Random(seed)
        reader, cursors = PacketRows(), Cursors()
        for _ in range(3):
            rows = reader.take(batch_of(contents(chance), prefix=b"x" * chance.randrange(9)))
            assert len(cursors.judge(rows)) == len(rows) == len(rows.origins) == len(rows.topics())
            assert len(rows.contents()) == len(rows)
            assert Cursors.of(cursors.export()).export() == cursors.export()
            plan.batch(rows.select(rows.sound(TRADE)))


def test_random_bytes_in_a_journal(tmp_path: Path) -> None:
    for seed in range(10):
        path = tmp_path / f"{seed}.d"
        with JournalWriter.open(path) as journal:
            for content in contents(random.Random(seed)):
                journal.append(content)
        place = JournalPlace(str(path))
        for piece in cut(place, 1, place.measure().next_sequence - 1):
            reader = JournalSliceReader(piece)
            given = sum(len(rows) for rows in reader)
            assert reader.account.is_balanced
            assert reader.account.given == given
            assert sum(reader.account.quarantined.values()) == len(reader.bad)
