"""Random feeds and tables: a converter counts invalid messages and continues; a table is compiled or refused."""

import random

import pytest

from penstock.base.errors import PenstockError
from penstock.convert import Converter, ConverterTable, SourceBatch, shipped_tables
from penstock.convert.table import DIRECTORY
from penstock.feed.core.play.generator import GeneratorConfig, ItchGenerator

ROUNDS = 200


def damaged(message: bytes, source: random.Random) -> bytes:
    data = bytearray(message)
    for _ in range(source.randint(1, 4)):
        choice = source.randrange(3)
        if choice == 0 and data:
            data[source.randrange(len(data))] = source.randrange(256)
        elif choice == 1:
            del data[source.randrange(len(data) + 1) :]
        else:
            data += source.randbytes(source.randrange(8))
    return bytes(data)


@pytest.mark.spec("FEED-8")
@pytest.mark.parametrize("table", shipped_tables())
def test_random_bytes_never_stop_a_converter(table: str, soak: bool) -> None:
    converter = Converter(ConverterTable.load(table).compile(), 1)
    keys = [message.key or b"" for message in ConverterTable.load(table).format.messages.values()]
    sizes = [message.size_min for message in ConverterTable.load(table).format.messages.values()]
    source = random.Random(7)
    sequence = 1
    for _ in range(ROUNDS * (50 if soak else 1)):
        batch = []
        for _ in range(20):
            number = source.randrange(len(keys))
            size = max(sizes[number] - len(keys[number]) + source.choice([0, 0, 0, -1, 1, 40]), 0)
            batch.append(keys[number] + source.randbytes(size))
        converter.convert(SourceBatch.from_messages(batch, sequence))
        sequence += len(batch)
    assert converter.next_source_sequence == sequence
    taken = sum(converter.counters.by_cause("source_messages").values())
    untyped = converter.counters.by_cause("source_messages_malformed").get("kind", 0)
    assert taken + untyped == sequence - 1


@pytest.mark.spec("FEED-8")
def test_two_converters_convert_a_damaged_day_alike(soak: bool) -> None:
    source = random.Random(11)
    size = 200_000 if soak else 5_000
    messages = [
        damaged(message, source) if source.random() < 0.2 else message
        for message in ItchGenerator(GeneratorConfig(seed=1, symbols=10, messages=size))
    ]
    plan = ConverterTable.load("itch").compile()
    one, other = Converter(plan, 1, seed=1), Converter(plan, 1, seed=2)
    expected = list(one.convert(SourceBatch.from_messages(messages, 1)))
    found = []
    for start in range(0, len(messages), 37):
        found += list(other.convert(SourceBatch.from_messages(messages[start : start + 37], start + 1)))
    assert found == expected
    assert one.checkpoint_now() == other.checkpoint_now()
    assert one.counters["source_messages_malformed"] > 0


def test_damaged_tables_are_refused_or_compiled(soak: bool) -> None:
    source = random.Random(3)
    text = (DIRECTORY / "iex-deep.toml").read_text()
    words = text.split('"')
    refused = 0
    for _ in range(20 * ROUNDS if soak else ROUNDS):
        changed = list(words)
        for _ in range(source.randint(1, 3)):
            changed[source.randrange(len(changed))] = source.choice([*words, "", "x | y(", "constant()", "1e9", "{n}"])
        try:
            ConverterTable.parse('"'.join(changed)).compile()
        except PenstockError:
            refused += 1
    assert refused > 0
