"""Captures and feeds for the archive, and the expected content of the archive."""

import random
from datetime import date, timedelta
from pathlib import Path

from penstock.convert import Converter, ConverterTable
from penstock.feed.core.play.generator import GeneratorConfig, ItchGenerator
from penstock.journal import JournalConfig, JournalWriter
from penstock.spark.pipeline.archive.commits import Account
from penstock.spark.pipeline.archive.tables import shipped_models
from penstock.wire import Extension, Origin, OriginFlag, Packer, encode_extensions, encode_gone, encode_origin
from penstock.wire.term import SESSION_TAG_SHIFT, session_tag

DAY = date(2024, 1, 2)
TERM = 1 << 14
GROUP = 0xEF010101
STREAM = 1
CAPTURED_NS = 1_704_204_000_000_000_000  # 2024-01-02 14:00 UTC


class Silent:
    """A progress callback that does nothing."""

    def begin(self, slices: int) -> None: ...

    def advance(self, slices: int, account: Account) -> None: ...

    def derive(self, name: str) -> None: ...


def write_feed(path: Path, messages: int = 20_000, symbols: int = 20, seed: int = 3) -> int:
    """Write a day of order flow; return the number of its messages."""
    generator = ItchGenerator(GeneratorConfig(seed=seed, symbols=symbols, messages=messages))
    with path.open("wb") as file:
        while blocks := bytes(generator.blocks()):
            file.write(blocks)
    return generator.next_sequence - 1


def converted(messages: int, symbols: int = 10) -> list[tuple[str, Origin, int, bytes]]:
    """The (topic, origin, model id, record) of each message that an adapter publishes."""
    generator = ItchGenerator(GeneratorConfig(seed=5, symbols=symbols, messages=messages))
    converter = Converter(ConverterTable.load("itch").compile(), STREAM, trading_date=DAY)
    made = []
    while len(batch := generator.take()):
        made += list(converter.convert(batch))
    return made


def two_sessions(messages: int, symbols: int = 10) -> list[tuple[str, Origin, int, bytes]]:
    """Messages of an adapter on two days: the session, the date and the lineage change, numbers continue."""
    converter = Converter(ConverterTable.load("itch").compile(), STREAM, trading_date=DAY)
    made = []
    for number, name in enumerate(("monday", "tuesday"), start=1):
        if number > 1:
            converter.new_session(name, DAY + timedelta(days=1))
            converter.skip_to(1)
        converter.flags = session_tag(name) << SESSION_TAG_SHIFT
        converter.term = number * TERM
        generator = ItchGenerator(GeneratorConfig(seed=4 + number, symbols=symbols, messages=messages))
        while len(batch := generator.take()):
            made += list(converter.convert(batch))
    return made


def version_of(model_id: int) -> int:
    """The version of a shipped model that a converter writes."""
    return shipped_models()[model_id].version


def capture_of(messages: list[tuple[str, Origin, int, bytes]], seed: int = 1, corrupt: int = -1) -> list[bytes]:
    """Packets of two adapters that publish the same messages; the second is behind. Message `corrupt` differs in the
    second."""
    chance = random.Random(seed)
    queues: list[list[bytes]] = []
    for publisher in (1, 2):
        packer, queue = Packer(publisher, GROUP, 1), []
        for number, (topic, made, model, record) in enumerate(messages):
            origin = made._replace(term=made.term or TERM, flags=made.flags | int(OriginFlag.SYNCHRONISED))
            if number == corrupt and publisher == 2:
                record = bytes([record[0] ^ 1]) + record[1:]
            extensions = encode_extensions({Extension.ORIGIN: encode_origin(origin)})
            queue += packer.add(topic, record, extensions=extensions, model_id=model, model_version=version_of(model))
        if (rest := packer.flush()) is not None:
            queue.append(rest)
        queues.append(queue)
    mixed = []
    while any(queues):
        ahead = queues[0] and (not queues[1] or len(queues[0]) >= len(queues[1]) or chance.random() < 0.4)
        mixed.append((queues[0] if ahead else queues[1]).pop(0))
    return mixed


def write_journal(path: Path, records: list[bytes], first: int = 1) -> None:
    """Append the records; a record's time follows from its number."""
    with JournalWriter.open(path, JournalConfig(segment_bytes=65_536, preallocate_bytes=0)) as journal:
        for number, record in enumerate(records, start=first):
            journal.append(record, CAPTURED_NS + number * 1_000)


LOST = encode_gone(1, GROUP, 1, [(7, 9)])
