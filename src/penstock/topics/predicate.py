"""Predicates: compiled filter expressions for the live path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.base.errors import LocalProtocolError, ModelError
from penstock.model import Message, MessageModel
from penstock.topics._predicate import Program
from penstock.topics.condition import Condition
from penstock.topics.lowering import compile_program

if TYPE_CHECKING:
    from typing_extensions import Buffer

    Array = np.ndarray[Any, Any]


class Predicate:
    """A filter expression over the records of one version of a model; created by compile().

    Selects the same records as Spark with the same text: a comparison with a missing value is unknown, and unknown
    records are not selected. A field beyond the end of a short record is missing. Spark has no has().
    """

    __slots__ = ("_condition", "_programs", "model", "program", "text", "version")

    def __init__(self, text: str, model: MessageModel, condition: Condition, version: int) -> None:
        self.text = text
        self.model = model
        self.version = version
        self.program = compile_program(condition, version)
        self._condition = condition
        self._programs = {version: self.program}

    @staticmethod
    def compile(text: str, model: MessageModel, version: int | None = None) -> Predicate:
        """Compile an expression; `version` is that of the records if it differs from the model's. Fields added later
        are missing.
        """
        from penstock.topics.expression import parse_expression  # imported late, because its parser is slow to import

        return Predicate(text, model, parse_expression(text, model), model.version if version is None else version)

    def __call__(self, record: Buffer) -> bool:
        """True if one record matches: its bytes, or a message, whose own version is used."""
        if isinstance(record, Message):
            return self._program_for(record)(record)
        return self.program(record)

    def select(self, records: Array | Buffer) -> Array:
        """Return a bool array of the matching records of a numpy array, or of a buffer of adjacent records."""
        record_size = self.model.record_size
        if isinstance(records, np.ndarray):
            if records.ndim != 1 or not records.flags.c_contiguous:
                raise LocalProtocolError("records must be a contiguous array of one dimension")
            if records.dtype != np.uint8:
                self._check_dtype(records.dtype)
                record_size = records.itemsize
            data = records.view(np.uint8)
        else:
            data = np.frombuffer(memoryview(records), np.uint8)
        if len(data) % record_size:
            raise LocalProtocolError(f"{len(data)} bytes are not a multiple of the record size {record_size}")
        passes = np.empty(len(data) // record_size, np.bool_)
        self.program.select(data, record_size, passes.view(np.uint8))
        return passes

    def select_at(self, data: Buffer, offsets: Array, sizes: Array) -> Array:
        """Return a bool array of the matching records in `data` at `offsets` (uint32) with `sizes` (uint32)."""
        passes = np.empty(len(offsets), np.bool_)
        self.program.select_at(np.frombuffer(memoryview(data), np.uint8), offsets, sizes, passes.view(np.uint8))
        return passes

    def __repr__(self) -> str:
        return f"<Predicate {self.text!r} over {self.model.name}, {len(self.program)} tests>"

    def _program_for(self, message: Message) -> Program:
        if message.model is not self.model:
            self._check_model(message.model)
        version = min(message.version, self.model.version)
        program = self._programs.get(version)
        if program is None:
            program = self._programs[version] = compile_program(self._condition, version)
        return program

    def _check_model(self, other: MessageModel) -> None:
        """Refuse a message of another model. Another version of the model has its fields in the same places, or lacks
        them.
        """
        ours = self.model
        is_version = (other.id, other.name) == (ours.id, ours.name) and other.version != ours.version
        if not is_version and other != ours:
            raise ModelError(
                f"the message has model {other!r}, but the predicate {self.text[:80]!r} is for {ours!r}",
                hint="compile a predicate for each model",
            )

    def _check_dtype(self, dtype: np.dtype[Any]) -> None:
        """Refuse records whose dtype is neither the model's nor that of the predicate's older version."""
        model = self.model
        if dtype == model.dtype:
            return
        present = {field.name for field in model.fields if field.since <= self.version}
        is_older = (
            self.version < model.version
            and dtype.names is not None
            and set(dtype.names) == present
            and dtype.fields is not None
            and model.dtype.fields is not None
            and all(dtype.fields[name][:2] == model.dtype.fields[name][:2] for name in present)
        )
        if not is_older:
            what = f"fields {', '.join(dtype.names[:6])}, …" if dtype.names else f"dtype {dtype}"
            raise ModelError(
                f"the records have {what} and {dtype.itemsize} bytes, unlike {model.name} version {self.version} "
                f"of {model.record_size} bytes",
                hint="pass an array of the model's dtype, or the records' bytes",
            )
