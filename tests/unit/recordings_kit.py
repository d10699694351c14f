"""A generated day as an adapter publishes it (packets, a journal, an archive), and options of a run."""

from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.capture.core.rows import MessageRows, rows_of_converted
from penstock.convert import Converter, ConverterTable
from penstock.feed.core.play.generator import GeneratorConfig, ItchGenerator
from penstock.journal import JournalWriter
from penstock.model import shipped, shipped_names
from penstock.model.columns import to_spark
from penstock.spark.envelope import envelope_array
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.archive.commits import FileEntry, sync_file
from penstock.spark.pipeline.archive.parquet import open_parquet
from penstock.spark.pipeline.sources.find import SourceSelection
from penstock.wire import PacketStore

DAY = date(2024, 1, 2)
COLUMNS = ("topic", "seq", "source_seq", "part", "captured", "term", "origin", "version")
TERM = 1 << 14


class Published(NamedTuple):
    """A message including its padding."""

    topic: str
    model_id: int
    version: int
    extensions: bytes
    payload: bytes


class Day:
    """The messages that a converter makes of a generated ITCH day; the rows are copies."""

    def __init__(self, messages: int = 3_000, *, stream_id: int = 5, seed: int = 3) -> None:
        generator = ItchGenerator(GeneratorConfig(seed=seed, symbols=20, messages=messages))
        converter = Converter(ConverterTable.load("itch").compile(), stream_id=stream_id)
        converter.term = TERM
        converter.flags = 1
        converted = converter.convert(generator.take(messages))
        held = rows_of_converted(converted)
        self.stream_id = stream_id
        self.rows = MessageRows(held.topic_data.copy(), held.payloads.copy(), held.rows.copy())

    def published(self) -> list[Published]:
        return published(self.rows.topic_data, self.rows.payloads, self.rows.rows)

    def packets(self, publisher_id: int, *, epoch: int = 1, group: int = 0xEF010101) -> list[bytes]:
        store = PacketStore(1 << 16, 1 << 28)
        count = store.pack(
            self.rows.topic_data, self.rows.payloads, self.rows.rows,
            publisher_id=publisher_id, group=group, epoch=epoch,
        )  # fmt: skip
        return [store.get(number) for number in range(1, count + 1)]


def published(topic_data: Any, payloads: Any, rows: Any) -> list[Published]:
    topics, data = topic_data.tobytes(), payloads.tobytes()
    return [
        Published(
            topics[row["topic_offset"] : row["topic_offset"] + row["topic_size"]].decode(),
            int(row["model_id"]),
            int(row["model_version"]),
            data[row["extensions_offset"] : row["extensions_offset"] + row["extensions_size"]],
            data[row["payload_offset"] : row["payload_offset"] + row["payload_size"]],
        )
        for row in rows
    ]


def pipeline_options(**given: Any) -> SourceSelection:
    """Options of `penstock pipeline run`; the default is files of the table itch."""
    return SourceSelection(**{"sources": [], "tables": ["itch"], **given})


def write_journal(path: Path, packets: Iterable[bytes], *, start_ns: int, step_ns: int) -> None:
    with JournalWriter.open(path) as journal:
        for number, packet in enumerate(packets):
            journal.append(packet, start_ns + number * step_ns)


def write_archive(path: Path, days: Iterable[Day], *, files: int = 2) -> None:
    """Tables by model, each with several files."""
    with Archive.writing(path) as archive:
        staging = archive.begin()
        entries: list[FileEntry] = []
        schemas = {}
        for day in days:
            for name in shipped_names():
                chosen = day.rows.select(day.rows.rows["model_id"] == shipped(name).id)
                if not len(chosen):
                    continue
                schemas[name] = "seq BIGINT"
                parts = np.array_split(np.arange(len(chosen)), files)
                entries += [_write(staging, name, chosen.select(part), day.stream_id) for part in parts]
        archive.commit(staging, "append", files=entries, schemas=schemas)


def _write(staging: Any, name: str, rows: MessageRows, stream: int) -> FileEntry:
    model = shipped(name)
    fields = to_spark(model, rows.records(model))
    names = [column for column in COLUMNS if column not in model.fields_by_name]
    batch = pa.RecordBatch.from_arrays(
        [*(envelope_array(rows, column) for column in names), *fields.columns], names=[*names, *fields.schema.names]
    )
    where = staging.new_file(f"{name}/date={DAY}/stream={stream}")
    target = staging.path / where
    target.parent.mkdir(parents=True, exist_ok=True)
    with open_parquet(target, batch.schema) as writer:
        writer.write_batch(batch)
    sync_file(target)
    return FileEntry(
        table=name, path=where, rows=len(rows), size=target.stat().st_size, commit_first=1, commit_last=1,
        date=str(DAY), stream=stream,
    )  # fmt: skip
