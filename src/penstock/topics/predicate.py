"""Predicates: filter expressions compiled for the live path."""

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
    """A filter expression over the records of one model, and of one version of it; made by compile().

    Selects what Spark selects with the same text from the same records: a comparison with a missing value is unknown,
    and what is unknown is not selected. A record too short for a field counts as missing it. has() is not Spark's.
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
        """`version` is that of the records, if it is not the model's: fields they do not have yet are missing."""
        from penstock.topics.expression import parse_expression  # its parser takes long to import

        return Predicate(text, model, parse_expression(text, model), model.version if version is None else version)

    def __call__(self, record: Buffer) -> bool:
        """Whether one record passes: its bytes, or a message, which is read as the version that it says it has."""
        if isinstance(record, Message):
            return self._program_for(record)(record)
        return self.program(record)

    def select(self, records: Array | Buffer) -> Array:
        """Which records pass, as an array of bool: of a numpy array of records, or a buffer of them end to end."""
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
            raise LocalProtocolError(f"{len(data)} bytes are no whole number of records of {record_size} bytes")
        passes = np.empty(len(data) // record_size, np.bool_)
        self.program.select(data, record_size, passes.view(np.uint8))
        return passes

    def select_at(self, data: Buffer, offsets: Array, sizes: Array) -> Array:
        """Which of the records in `data` pass that start at `offsets` (uint32) and have `sizes` (uint32) bytes."""
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
        """A message may be of another version of the model, which has the fields in the same places, or lacks them."""
        ours = self.model
        is_version = (other.id, other.name) == (ours.id, ours.name) and other.version != ours.version
        if not is_version and other != ours:
            raise ModelError(
                f"the message is of {other!r}, the predicate {self.text[:80]!r} of {ours!r}",
                hint="compile a predicate for each model",
            )

    def _check_dtype(self, dtype: np.dtype[Any]) -> None:
        """Records are of the model's dtype, or of that of the older version that the predicate is for."""
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
                f"the records have {what} and {dtype.itemsize} bytes, they are not {model.name} version {self.version} "
                f"of {model.record_size} bytes",
                hint="give an array of the model's dtype, or the records' bytes",
            )
