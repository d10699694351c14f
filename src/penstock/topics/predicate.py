"""Predicates: filter expressions compiled for the live path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.base.errors import LocalProtocolError
from penstock.model import MessageModel
from penstock.topics._predicate import Program
from penstock.topics.expression import parse_expression
from penstock.topics.lowering import compile_program

if TYPE_CHECKING:
    from typing_extensions import Buffer

    Array = np.ndarray[Any, Any]


class Predicate:
    """A filter expression over the records of one model, and of one version of it; made by compile().

    Selects what Spark selects with the same text from the same records: a comparison with a missing value is unknown,
    and what is unknown is not selected. A record too short for a field counts as missing it. has() is not Spark's.
    """

    __slots__ = ("model", "program", "text")

    def __init__(self, text: str, model: MessageModel, program: Program) -> None:
        self.text = text
        self.model = model
        self.program = program

    @staticmethod
    def compile(text: str, model: MessageModel, version: int | None = None) -> Predicate:
        """`version` is that of the records, if it is not the model's: fields they do not have yet are missing."""
        condition = parse_expression(text, model)
        return Predicate(text, model, compile_program(condition, model.version if version is None else version))

    def __call__(self, record: Buffer) -> bool:
        """Whether one record passes."""
        return self.program(record)

    def select(self, records: Array | Buffer) -> Array:
        """Which records pass, as an array of bool: of a numpy array of records, or a buffer of them end to end."""
        if isinstance(records, np.ndarray):
            if records.ndim != 1 or not records.flags.c_contiguous:
                raise LocalProtocolError("records must be a contiguous array of one dimension")
            data, record_size = records.view(np.uint8), records.itemsize
        else:
            data, record_size = np.frombuffer(memoryview(records), np.uint8), self.model.record_size
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
