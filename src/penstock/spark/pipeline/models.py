"""The message models of an archive besides the shipped ones: given by its user, or found in band in a capture.

    register_models(archive, [MessageModel.load("tick.toml")])
    own_models(archive.catalogue)              # by id
    read_again(archive)                        # rows of `raw` whose model has become known move to its table

Messages of an unknown model, or of a newer version than the known one, are kept in full in the table `raw`, and are
converted when the model or the version becomes known. The archive stores the documents of its models for later runs. A
newer version of a model replaces an older one if it only adds fields; an older version never replaces a newer one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from penstock.base.errors import ConfigurationError, PenstockError
from penstock.base.log import logger
from penstock.model import MessageModel, shipped_names
from penstock.model.columns import beyond_spark, to_spark
from penstock.spark.pipeline.archive.archive import Archive, Staging
from penstock.spark.pipeline.archive.bounds import PartitionBound
from penstock.spark.pipeline.archive.commits import Account, Catalogue, Commit, FileEntry, cannot
from penstock.spark.pipeline.archive.parquet import ROW_GROUP_ROWS
from penstock.spark.pipeline.archive.placing import kept
from penstock.spark.pipeline.archive.tables import (
    ENVELOPE,
    RAW,
    TableRows,
    arrow_schema,
    event_times,
    shipped_models,
    table_schema,
)
from penstock.spark.pipeline.archive.writer import PartitionedFiles, rewrite
from penstock.spark.pipeline.audit.report import TABLE as AUDIT
from penstock.spark.pipeline.derive import DERIVATIONS
from penstock.spark.pipeline.recordings import messages_of_raw
from penstock.spark.pipeline.sources.facts import FACT_SCHEMAS

MODELS_MAX = 1_024
"""Models that an archive takes from captures, which anybody may have sent."""

_TABLE_NAME = re.compile(r"[a-z][a-z0-9_]*")

log = logger("spark.pipeline")


def own_models(catalogue: Catalogue) -> dict[int, MessageModel]:
    """By id, the models whose documents the archive keeps."""
    return {model.id: model for model in map(MessageModel.parse, catalogue.models.values())}


def register_models(archive: Archive, models: Sequence[MessageModel]) -> None:
    """Keep the documents of models that a user gives; a commit of its own if one of them is new."""
    known = own_models(archive.catalogue)
    new: dict[str, str] = {}
    for model in models:
        refused = why_not(model, known)
        if refused:
            raise ConfigurationError(f"cannot take the model {model.name!r}: {refused}", where="--model")
        if model.id not in known or known[model.id].version < model.version:
            known[model.id] = model
            new[str(model.id)] = model.text
    if new:
        archive.commit(archive.begin(), "models", models=new)


def models_in_band(catalogue: Catalogue, documents: Iterable[str]) -> dict[str, str]:
    """By id, the documents of a capture that the archive takes; others are logged, and their messages stay in `raw`."""
    known = own_models(catalogue)
    new: dict[str, str] = {}
    for text in documents:
        try:
            model = MessageModel.parse(text, where="model in band")
        except PenstockError as error:
            log.warning("model_in_band_refused", why=str(error))
            continue
        refused = why_not(model, known)
        if refused or len(known) >= MODELS_MAX:
            log.warning("model_in_band_refused", model=model.name, why=refused or f"there are {MODELS_MAX} already")
        elif model.id not in shipped_models() and (model.id not in known or known[model.id].version < model.version):
            known[model.id] = model
            new[str(model.id)] = text
    return new


def why_not(model: MessageModel, known: Mapping[int, MessageModel]) -> str:
    """Why a model cannot have a table here; empty if it can."""
    shipped = shipped_models().get(model.id)
    if shipped is not None:
        return "" if not shipped.incompatibilities(model) else f"its id {model.id} is that of {shipped.name!r}"
    if not _TABLE_NAME.fullmatch(model.name):
        return f"{model.name!r} cannot be the name of a table"
    if model.name in reserved_tables() or any(
        other.name == model.name for other in known.values() if other.id != model.id
    ):
        return f"another table has the name {model.name!r}"
    other = known.get(model.id)
    if other is None:
        return ""
    older, newer = (model, other) if model.version < other.version else (other, model)
    return "; ".join(newer.incompatibilities(older))


def reserved_tables() -> set[str]:
    derived = {table for derivation in DERIVATIONS for table in derivation.tables}
    return {*shipped_names(), *FACT_SCHEMAS, *derived, RAW, AUDIT}


def read_again(archive: Archive) -> Commit | None:
    """Move rows of `raw` to the tables of their models, as far as these are known now; None if there are none.

    A file is read once for the same models: rows that these cannot read stay in `raw` and are not tried again.
    """
    catalogue = archive.catalogue
    waiting = {int(number) for number, count in catalogue.account.unknown_models.items() if count > 0}
    known = {**own_models(catalogue), **shipped_models()}
    models = {number: model for number, model in known.items() if number in waiting}
    versions = frozenset((number, model.version) for number, model in known.items())
    untried = [path for path in catalogue.files.get(RAW, {}) if archive.tried.get(path) != versions]
    if not models or not untried:
        return None
    staging = archive.begin()
    try:
        again = _Again(staging, models)
        for file in archive.files(RAW):
            if archive.tried.get(file.path) != versions:
                again.take(archive, file)
    except OSError as error:
        archive.abandon(staging)
        raise cannot("read the table raw again", archive.path, error) from None
    except BaseException:
        archive.abandon(staging)
        raise
    if not again.removed:
        archive.abandon(staging)
        _note_tried(archive, again, versions)
        return None
    schemas = {model.name: table_schema(model) for model in models.values() if model.name in again.account.rows}
    commit = archive.commit(
        staging, "append", files=again.files, removed=again.removed, account=again.account, schemas=schemas
    )
    _note_tried(archive, again, versions)
    return commit


def _note_tried(archive: Archive, again: _Again, versions: frozenset[tuple[int, int]]) -> None:
    """Note the files that need not be read again; forget those that the archive no longer has."""
    tried = archive.tried | dict.fromkeys(again.tried, versions)
    archive.tried = {path: tried[path] for path in archive.catalogue.files.get(RAW, {}) if path in tried}


class _Again:
    """Files of `raw`, each split into rows of known models and rows that stay."""

    def __init__(self, staging: Staging, models: Mapping[int, MessageModel]) -> None:
        self.files: list[FileEntry] = []
        self.removed: list[str] = []
        self.tried: list[str] = []
        """Paths of files whose other rows these models cannot read."""
        self.account = Account()
        self._staging = staging
        self._models = models
        self._tables = PartitionedFiles(staging)
        """Of the file at hand."""
        self._bound = PartitionBound()
        self._is_bounded = False
        """Rows of the file at hand stay only because of the bound: they can be read next time."""

    def take(self, archive: Archive, file: FileEntry) -> None:
        source = kept(archive.path, file.path)
        ids = pq.ParquetFile(source).read(columns=["model_id"]).column(0)
        if not set(pc.unique(ids).to_pylist()) & self._models.keys():
            self.tried.append(file.path)
            return
        stays: list[pa.RecordBatch] = []
        is_split = False
        self._is_bounded = False
        self._tables = PartitionedFiles(self._staging)
        with pq.ParquetFile(source) as opened:
            for batch in opened.iter_batches(ROW_GROUP_ROWS):
                is_read = self._read(batch, file.stream or 0)
                is_split |= bool(is_read.any())
                stays.append(batch.filter(pa.array(~is_read)))
        if is_split:
            self.removed.append(file.path)
            self.files += [msgspec.structs.replace(made, source=file.source) for made in self._tables.finish()]
            rest = rewrite(self._staging, file, stays)
            self.files += [] if rest is None else [rest]
        else:
            rest = file
        if rest is not None and not self._is_bounded:
            self.tried.append(rest.path)

    def _read(self, batch: pa.RecordBatch, stream: int) -> NDArray[np.bool_]:
        """Which rows have been written into the table of their model."""
        is_read = np.zeros(len(batch), np.bool_)
        ids = batch.column("model_id").to_numpy(zero_copy_only=False)
        versions = batch.column("version").to_numpy(zero_copy_only=False)
        for number, model in self._models.items():
            chosen = np.flatnonzero((ids == number) & (versions <= model.version))
            if len(chosen):
                for rows in self._rows(batch.take(pa.array(chosen)), model, stream, chosen, is_read):
                    self._tables.add(rows)
                self._count(model, int(np.count_nonzero(is_read[chosen])))
        return is_read

    def _rows(
        self,
        batch: pa.RecordBatch,
        model: MessageModel,
        stream: int,
        places: NDArray[np.intp],
        is_read: NDArray[np.bool_],
    ) -> Iterator[TableRows]:
        messages = messages_of_raw(batch, stream)
        good = np.flatnonzero(messages.sound(model))
        records = messages.select(good).records(model)
        is_fit = ~beyond_spark(model, records)
        good, records = good[is_fit], records[is_fit]
        captured = batch.column("captured").fill_null(0).to_numpy(zero_copy_only=False)[good]
        times = event_times(model, records)
        times = np.where(times == 0, captured, times)
        is_placed = times >= 0
        is_admitted = self._bound.admit(times[is_placed], np.full(np.count_nonzero(is_placed), stream))
        self._is_bounded |= not is_admitted.all()
        is_placed[is_placed] = is_admitted
        good, records, times = good[is_placed], records[is_placed], times[is_placed]
        if not len(good):
            return
        is_read[places[good]] = True
        schema = arrow_schema(model)
        envelope = batch.take(pa.array(good))
        columns = [
            envelope.column(name).cast(schema.field(name).type) for name in ENVELOPE if name not in model.fields_by_name
        ]
        made = pa.RecordBatch.from_arrays([*columns, *to_spark(model, records).columns], schema=schema)
        yield TableRows(model.name, made, times, np.full(len(good), stream, np.int64))

    def _count(self, model: MessageModel, count: int) -> None:
        account = self.account
        account.rows[RAW] = account.rows.get(RAW, 0) - count
        account.rows[model.name] = account.rows.get(model.name, 0) + count
        account.unknown_models[str(model.id)] = account.unknown_models.get(str(model.id), 0) - count
